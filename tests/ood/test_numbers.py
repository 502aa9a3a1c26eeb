"""Scores against closed forms and independent slow versions."""

import decimal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cosine
from scipy.special import softmax
from sklearn.covariance import OAS, EmpiricalCovariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from sklearn.neural_network import MLPClassifier
from torch import nn
from torch.nn.functional import log_softmax

from sklearn_quam import ood
from sklearn_quam.ood._core.reading import Seen, make_reader
from sklearn_quam.ood.features import _Neighborhood, _points
from sklearn_quam.ood.last_layer import _Regret
from sklearn_quam.ood.logits import _GeneralizedEntropy

from ..networks import IMAGES, LABELS, SEQUENCES, TOKENS, Attention, Recurrent, Tokens, fitted
from .common import make_data, make_module

X, Y = make_data(n_samples=80)
X_NEW = make_data(n_samples=12, seed=1)[0] * 1.5


def parts(rows):
    """Return logits and features of the common module, in double precision."""
    module = make_module()
    with torch.no_grad():
        features = module[:2](torch.tensor(rows))
        return module[2](features).double(), features.double()


def test_energy_and_largest_logit():
    logits, _ = parts(X_NEW)
    for temperature in (0.5, 1.0, 3.0):
        detector = ood.EnergyDetector(make_module(), temperature=temperature).fit(X, Y)
        expected = temperature * torch.logsumexp(logits / temperature, dim=1)
        np.testing.assert_allclose(detector.score_samples(X_NEW), expected, rtol=1e-5)
    found = ood.MaxLogitDetector(make_module()).fit(X, Y).score_samples(X_NEW)
    np.testing.assert_allclose(found, logits.max(dim=1).values, rtol=1e-5)


@pytest.mark.parametrize("norm", [1, 2.5, 10])
def test_normalised_logits_one_row_at_a_time(norm):
    logits, _ = parts(X_NEW)
    expected = []
    for row in logits.numpy():
        away = row - row.mean()
        expected.append(away.max() / (np.abs(away) ** norm).sum() ** (1 / norm))
    detector = ood.MaxLogitDetector(make_module(), normalize=norm).fit(X, Y)
    np.testing.assert_allclose(detector.score_samples(X_NEW), expected, rtol=1e-5)
    assert detector.norm_ == norm


def scaled_network(sizes):
    """A network whose logits are inputs, times a number that says nothing of its mistakes."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    logits = rng.normal(size=(400, 4)) + 2 * np.eye(4)[labels]
    linear = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(4))
    return linear, (logits * sizes(rng, 400)[:, None]).astype(np.float32), labels


@pytest.mark.parametrize("held_out", [False, True])
def test_norm_is_chosen_by_the_mistakes_of_held_out_rows(held_out):
    net, rows, labels = scaled_network(lambda rng, n: np.exp(2 * rng.normal(size=n)))
    options = {"X_val": rows[200:], "y_val": labels[200:]} if held_out else {}
    detector = ood.MaxLogitDetector(net, normalize="auto").fit(rows[:200], labels[:200], **options)
    judged = slice(200, None) if held_out else slice(200)
    right = rows[judged].argmax(axis=1) == labels[judged]
    every = {
        norm: roc_auc_score(
            right,
            ood.MaxLogitDetector(net, normalize=norm).fit(rows, labels).score_samples(rows[judged]),
        )
        for norm in range(2, 11)
    }
    assert every[detector.norm_] == max(every.values())
    proba = softmax(rows[judged], axis=1).max(axis=1)
    assert every[detector.norm_] > roc_auc_score(right, proba) + 0.05


def test_largest_probability_where_no_norm_is_better():
    net, rows, _ = scaled_network(lambda rng, n: np.ones(n))
    two = np.stack([-rows[:, 0], rows[:, 0]], axis=1)
    wrong_half = (rows[:, 0] > 0) ^ (np.arange(400) % 3 == 0)
    pair = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        pair.weight.copy_(torch.eye(2))
    cases = [(net, rows, rows.argmax(axis=1)), (pair, two, wrong_half.astype(int))]
    for module, X, y in cases:
        detector = ood.MaxLogitDetector(module, normalize="auto").fit(X, y)
        assert detector.norm_ is None
        proba = softmax(X.astype(float), axis=1).max(axis=1)
        np.testing.assert_allclose(
            detector.score_samples(X), np.log(proba / (1 - proba)), rtol=1e-3, atol=1e-5
        )
    assert ood.MaxLogitDetector(pair, normalize=2).fit(two, wrong_half.astype(int)).norm_ is None


def test_labels_of_held_out_rows_must_be_known():
    with pytest.raises(ValueError, match="is none of the labels"):
        ood.MaxLogitDetector(make_module()).fit(X, Y, X_val=X, y_val=Y + 7)


def test_two_classes_with_one_logit_are_symmetric():
    labels = (Y > 0).astype(int)
    net = fitted(MLPClassifier((8,), solver="lbfgs", max_iter=30, random_state=0), X, labels)
    turned = fitted(MLPClassifier((8,), solver="lbfgs", max_iter=30, random_state=0), X, labels)
    turned.coefs_[-1], turned.intercepts_[-1] = -turned.coefs_[-1], -turned.intercepts_[-1]
    for kind in (ood.EnergyDetector, ood.MaxLogitDetector, ood.ViMDetector, ood.PNMLDetector):
        scores = [kind(each).fit(X, labels).score_samples(X_NEW) for each in (net, turned)]
        np.testing.assert_allclose(*scores, rtol=1e-6)
    logit = np.log(net.predict_proba(X_NEW)[:, 1] / net.predict_proba(X_NEW)[:, 0])
    found = ood.MaxLogitDetector(net).fit(X, labels).score_samples(X_NEW)
    np.testing.assert_allclose(found, np.abs(logit) / 2, rtol=1e-4)


def test_gradient_norm_is_that_of_autograd():
    module = make_module()
    expected = []
    for row in torch.tensor(X_NEW):
        loss = -log_softmax(module(row[None]) / 2.0, dim=1).mean()
        (gradient,) = torch.autograd.grad(loss, module[2].weight)
        expected.append(float(gradient.abs().sum()))
    detector = ood.GradientNormDetector(make_module(), temperature=2.0).fit(X, Y)
    np.testing.assert_allclose(detector.score_samples(X_NEW), expected, rtol=1e-4)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_mahalanobis_one_row_at_a_time(relative, shrinkage, normalize):
    train, new = (parts(rows)[1].numpy() for rows in (X, X_NEW))
    if normalize:
        train, new = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (train, new))
    means = [train[column == Y].mean(axis=0) for column in range(3)]
    residuals = train - np.stack(means)[Y]
    within = residuals.T @ residuals / len(train)
    target = shrinkage * np.trace(within) / len(within) * np.eye(len(within))
    overall = np.cov(train.T, bias=True)
    inverse = np.linalg.inv((1 - shrinkage) * within + target)
    inverse_overall = np.linalg.inv((1 - shrinkage) * overall + target)
    expected = []
    for row in new:
        away = row - train.mean(axis=0)
        background = away @ inverse_overall @ away if relative else 0.0
        distances = [(row - mean) @ inverse @ (row - mean) for mean in means]
        expected.append(background - min(distances))
    detector = ood.MahalanobisDetector(
        make_module(), relative=relative, shrinkage=shrinkage, normalize=normalize
    )
    np.testing.assert_allclose(detector.fit(X, Y).score_samples(X_NEW), expected, rtol=1e-4)


def test_mahalanobis_of_scikit_learn():
    """Inputs as features: the covariance of LDA, distances of EmpiricalCovariance, OAS."""
    arguments = {"layer": "input", "shrinkage": 0.0}
    detector = ood.MahalanobisDetector(make_module(), **arguments).fit(X, Y)
    lda = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(X, Y)
    model = EmpiricalCovariance(assume_centered=True)
    residuals = X - np.stack([X[column == Y].mean(axis=0) for column in range(3)])[Y]
    model.fit(residuals)
    np.testing.assert_allclose(model.covariance_, lda.covariance_, rtol=1e-4)
    distances = [model.mahalanobis(X_NEW - mean) for mean in lda.means_]
    np.testing.assert_allclose(detector.score_samples(X_NEW), -np.min(distances, 0), rtol=1e-4)
    detector = ood.MahalanobisDetector(make_module(), layer="input").fit(X, Y)
    model = OAS(assume_centered=True).fit(residuals.astype(float))
    distances = [model.mahalanobis(X_NEW - mean) for mean in lda.means_]
    np.testing.assert_allclose(detector.score_samples(X_NEW), -np.min(distances, 0), rtol=1e-4)


def test_dead_features_count_when_they_awake():
    rows = X.copy()
    rows[:, 3] = 0
    for relative in (False, True):
        detector = ood.MahalanobisDetector(
            make_module(), layer="input", shrinkage=0.0, relative=relative
        ).fit(rows, Y)
        awake = rows[:5].copy()
        awake[:, 3] = 0.1
        if not relative:
            assert (detector.score_samples(awake) < 1e3 * detector.score_samples(rows).min()).all()
        assert (detector.score_samples(awake) <= detector.score_samples(rows[:5])).all()


@pytest.mark.parametrize("n_neighbors", [1, 4])
def test_neighbours_one_pair_at_a_time(n_neighbors):
    _, train = parts(X)
    _, new = parts(X_NEW)
    detector = ood.NearestNeighborDetector(make_module(), n_neighbors=n_neighbors)
    found = detector.set_params(contamination=0.5).fit(X, Y).score_samples(X_NEW)
    expected = [-sorted(cosine(a, b) for b in train)[n_neighbors - 1] for a in new]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-8)
    of_others = [
        -sorted(cosine(a, b) for j, b in enumerate(train) if i != j)[n_neighbors - 1]
        for i, a in enumerate(train)
    ]
    assert detector.offset_ == pytest.approx(np.median(of_others), rel=1e-4, abs=1e-8)


rows_of_whole_numbers = st.lists(
    st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=6, max_size=12
)


@settings(max_examples=30)
@given(train=rows_of_whole_numbers, new=rows_of_whole_numbers, power=st.integers(-200, 200))
def test_neighbours_of_directions_are_those_of_cosine_distances(train, new, power):
    """Rows of zeros, which have no direction, and of any length among them."""
    train, new = (np.array(rows) * 2.0**power for rows in (train, new))
    found = _Neighborhood(_points(train, "cosine"), 3, "cosine", None)
    peer = NearestNeighbors(n_neighbors=3, metric="cosine").fit(np.ldexp(train, -power))
    expected = -peer.kneighbors(np.ldexp(new, -power))[0][:, -1]
    np.testing.assert_allclose(found(Seen(new, new, new)), expected, atol=1e-7)
    expected = -peer.kneighbors()[0][:, -1]
    np.testing.assert_allclose(found.left_out(), expected, atol=1e-7)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_some_of_many_rows_set_the_threshold(metric, monkeypatch):
    points = np.random.default_rng(0).normal(size=(300, 8))
    found = _Neighborhood(_points(points, metric), 4, metric, None)
    of_all = found.left_out()
    monkeypatch.setattr("sklearn_quam.ood.features._FOR_THRESHOLD", 100)
    of_some = found.left_out()
    assert len(of_some) == 100
    assert np.abs(of_some[:, None] - of_all).min(axis=1).max() < 1e-7


@pytest.mark.parametrize("n_neighbors", [1, 4])
def test_guided_neighbours_one_pair_at_a_time(n_neighbors):
    (own, train), (logits, new) = (parts(rows) for rows in (X, X_NEW))
    sure = torch.logsumexp(own, dim=1).numpy()

    def score(row, energy, others):
        nearest = sorted(others, key=lambda i: cosine(row, train[i]))[:n_neighbors]
        return energy * np.mean([(1 - cosine(row, train[i])) * sure[i] for i in nearest])

    detector = ood.NearestNeighborDetector(
        make_module(), n_neighbors=n_neighbors, guided=True, contamination=0.5
    ).fit(X, Y)
    energies = torch.logsumexp(logits, dim=1).numpy()
    every = range(len(train))
    expected = [score(row, energy, every) for row, energy in zip(new, energies, strict=True)]
    np.testing.assert_allclose(detector.score_samples(X_NEW), expected, rtol=1e-4)
    of_others = [score(train[i], sure[i], {*every} - {i}) for i in every]
    assert detector.offset_ == pytest.approx(np.median(of_others), rel=1e-4)


def test_guided_neighbours_take_the_cosine_metric():
    with pytest.raises(ValueError, match="takes metric='cosine', got 'euclidean'"):
        ood.NearestNeighborDetector(make_module(), guided=True, metric="euclidean").fit(X, Y)


def test_more_neighbours_than_rows_warn():
    detector = ood.NearestNeighborDetector(make_module(), n_neighbors=100)
    with pytest.warns(UserWarning, match="n_neighbors=100"):
        detector.fit(X, Y)


def test_vim_step_by_step():
    logits, train = parts(X)
    logits_new, new = parts(X_NEW)
    module = make_module().double()
    origin = -torch.linalg.pinv(module[2].weight) @ module[2].bias
    _, _, directions = torch.linalg.svd(train - origin)
    principal = directions[:3]

    def residual(features):
        centred = features - origin
        return (centred - centred @ principal.T @ principal).norm(dim=1)

    alpha = logits.max(dim=1).values.mean() / residual(train).mean()
    expected = torch.logsumexp(logits_new, dim=1) - alpha * residual(new)
    found = ood.ViMDetector(make_module(), n_components=3).fit(X, Y).score_samples(X_NEW)
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="leaves nothing outside"):
        ood.ViMDetector(make_module(), n_components=8).fit(X, Y)


@pytest.mark.parametrize("normalize", [False, True])
def test_pnml_is_the_published_formula(normalize):
    _, train = parts(X)
    logits, new = parts(X_NEW)
    train, new = train.numpy(), new.numpy()
    if normalize:
        train = train / np.linalg.norm(train, axis=1, keepdims=True)
        new = new / np.linalg.norm(new, axis=1, keepdims=True)
    else:
        train, new = (np.column_stack([each, np.ones(len(each))]) for each in (train, new))
    inverse = np.linalg.inv(train.T @ train)
    expected = []
    for row, proba in zip(new, logits.softmax(dim=1).numpy(), strict=True):
        leverage = row @ inverse @ row
        exponent = leverage / (1 + leverage)
        expected.append(-np.log(sum(p / (p + p**exponent * (1 - p)) for p in proba)))
    detector = ood.PNMLDetector(make_module(), normalize=normalize).fit(X, Y)
    np.testing.assert_allclose(detector.score_samples(X_NEW), expected, rtol=1e-4, atol=1e-7)


@settings(max_examples=30)
@given(logits=st.lists(st.floats(-30, 30), min_size=2, max_size=4), leverage=st.floats(1e-6, 1e3))
def test_regrets_are_exact_however_small(logits, leverage):
    """Against long decimals: most images that a network is sure of have less than 1e-16."""
    regret = _Regret(None, np.array([[leverage**0.5]]), normalize=True)
    one = np.ones((1, 1))
    (found,) = regret(Seen(np.array([logits]), one, one))
    with decimal.localcontext(prec=80):
        powers = [decimal.Decimal(each).exp() for each in logits]
        exponent = decimal.Decimal(leverage) / (1 + decimal.Decimal(leverage))
        proba = [each / sum(powers) for each in powers]
        expected = -sum(p / (p + p**exponent * (1 - p)) for p in proba).ln()
    np.testing.assert_allclose(found, float(expected), rtol=1e-9, atol=1e-300)


def test_pnml_bounds():
    """No regret where the layer is determined, the most in a direction that was never seen."""
    rows = np.tile(X, (200, 1))
    detector = ood.PNMLDetector(make_module()).fit(rows, np.tile(Y, 200))
    np.testing.assert_allclose(detector.score_samples(X[:5]), 0, atol=0.01)
    torch.manual_seed(0)
    linear = nn.Linear(4, 3)
    flat = X.copy()
    flat[:, 3] = 0
    new = flat[:5].copy()
    new[:, 3] = 1
    with torch.no_grad():
        proba = linear(torch.tensor(new)).softmax(dim=1).double().numpy()
    found = ood.PNMLDetector(linear).fit(flat, Y).score_samples(new)
    np.testing.assert_allclose(found, -np.log((1 / (2 - proba)).sum(axis=1)), rtol=1e-4)


def test_pnml_warns_of_too_few_rows():
    with pytest.warns(UserWarning, match="8 training samples leave some of the 9 directions"):
        ood.PNMLDetector(make_module()).fit(X[:8], Y[:8])


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("n_largest", [1, 2, 100])
def test_generalised_entropy_one_row_at_a_time(gamma, n_largest):
    logits, _ = parts(X_NEW)
    expected = []
    for proba in logits.softmax(dim=1).numpy():
        largest = sorted(proba)[::-1][:n_largest]
        expected.append(-sum((p * (1 - p)) ** gamma for p in largest))
    detector = ood.GENDetector(make_module(), gamma=gamma, n_largest=n_largest).fit(X, Y)
    np.testing.assert_allclose(detector.score_samples(X_NEW), expected, rtol=1e-5)


@settings(max_examples=30)
@given(logits=st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=5))
def test_generalised_entropy_is_finite_and_never_positive(logits):
    score = _GeneralizedEntropy(0.1, 100)
    (found,) = score(Seen(np.array([logits]), np.ones((1, 1)), np.ones((1, 3))))
    assert -len(logits) * 0.25**0.1 <= found <= 0


def test_distance_from_boundaries_by_hand():
    """The distance from a boundary is the length of the smallest change that reaches it."""
    logits, new = (each.numpy() for each in parts(X_NEW))
    mean = parts(X)[1].numpy().mean(axis=0)
    layer = make_module()[2].double()
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    expected = []
    for row, scores in zip(new, logits, strict=True):
        top, lengths = scores.argmax(), []
        for other in {0, 1, 2} - {top}:
            normal = weight[top] - weight[other]
            on_it = row - normal * (normal @ row + bias[top] - bias[other]) / (normal @ normal)
            reached = weight @ on_it + bias
            assert reached[top] == pytest.approx(reached[other])
            lengths.append(np.linalg.norm(row - on_it))
        expected.append(np.mean(lengths) / np.linalg.norm(row - mean))
    found = ood.FDBDetector(make_module()).fit(X, Y).score_samples(X_NEW)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 2.0])
def test_nearness_to_weights_by_hand(alpha):
    logits, new = (each.numpy() for each in parts(X_NEW))
    train = parts(X)[1].numpy()
    weight = make_module()[2].weight.detach().double().numpy()
    unit = np.mean([np.linalg.norm(each) for each in weight])
    typical = np.mean([np.abs(row).sum() for row in train])
    expected = [
        weight[scores.argmax()]
        @ (row - train.mean(axis=0))
        / np.linalg.norm(row - train.mean(axis=0))
        / unit
        + alpha * np.abs(row).sum() / typical
        for row, scores in zip(new, logits, strict=True)
    ]
    found = ood.NCIDetector(make_module(), alpha=alpha).fit(X, Y).score_samples(X_NEW)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


# -- which features ---------------------------------------------------------------------------


def reader_of(module, layer, rows):
    from sklearn_quam import ReferenceClassifier

    est = ReferenceClassifier(module).fit(rows, LABELS)
    reference = est._fitted.reference
    inputs = est._check_rows(rows, reference)
    return make_reader(reference, layer, inputs[:3])(inputs)


def test_features_of_layers():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)
    ).eval()
    images = torch.tensor(IMAGES)
    with torch.no_grad():
        maps, pooled = module[:2](images), module[:4](images)
    penultimate = reader_of(module, "penultimate", IMAGES)
    np.testing.assert_allclose(penultimate.features, pooled, rtol=1e-5, atol=1e-6)
    averaged = reader_of(module, "1", IMAGES).features
    np.testing.assert_allclose(averaged, maps.mean(dim=(2, 3)), rtol=1e-5, atol=1e-6)
    both = reader_of(module, ["1", "input"], IMAGES).features
    np.testing.assert_allclose(both[:, :5], averaged)
    np.testing.assert_allclose(both[:, 5:], IMAGES.reshape(60, -1))


def test_features_of_tokens_and_sequences():
    attention, recurrent = Attention().eval(), Recurrent(batch_first=True).eval()
    with torch.no_grad():
        encoded = attention.encoder(torch.tensor(SEQUENCES))
        states = recurrent.recurrent(torch.tensor(SEQUENCES))[0]
    found = reader_of(attention, "encoder", SEQUENCES).features
    np.testing.assert_allclose(found, encoded.mean(dim=1), rtol=1e-4, atol=1e-5)
    found = reader_of(recurrent, "recurrent", SEQUENCES).features
    np.testing.assert_allclose(found, states.mean(dim=1), rtol=1e-4, atol=1e-5)
    found = reader_of(recurrent, "penultimate", SEQUENCES).features
    np.testing.assert_allclose(found, states[:, -1], rtol=1e-4, atol=1e-5)
    assert reader_of(Tokens(), "penultimate", TOKENS).features.shape == (60, 4)


def test_unknown_layers_are_refused_with_the_nearest_names():
    with pytest.raises(ValueError, match=r"nearest are \['encoder'"):
        ood.MahalanobisDetector(Attention(), layer="encodr").fit(SEQUENCES, LABELS)
    module = make_module()
    module.add_module("spare", nn.Identity())
    module = nn.Sequential(module, nn.Identity())
    module[0].forward = module[0][:3].forward
    with pytest.raises(ValueError, match="does not run"):
        ood.MahalanobisDetector(module, layer="0.spare").fit(X, Y)


def test_networks_without_logits_are_refused():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = make_module()

        def forward(self, x):
            return 0.9 * self.layers(x).softmax(dim=1) + 0.1 / 3

    with pytest.raises(ValueError, match="not the softmax of its last layer"):
        ood.EnergyDetector(Mixed(), link="probabilities").fit(X, Y)


def test_detectors_of_the_last_layer_need_a_linear_one():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for kind in (
        ood.PNMLDetector,
        ood.GradientNormDetector,
        ood.ViMDetector,
        ood.FDBDetector,
        ood.NCIDetector,
    ):
        with pytest.raises(ValueError, match="last layer is a Conv2d"):
            kind(module).fit(IMAGES, LABELS)
    ood.EnergyDetector(module).fit(IMAGES, LABELS)
    ood.MahalanobisDetector(module).fit(IMAGES, LABELS)
