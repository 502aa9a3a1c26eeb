"""Monte Carlo dropout: which layers are thinned, how, and that nothing else changes."""

import itertools
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from torch import nn
from torch.nn import functional

from sklearn_quam import MCDropoutClassifier, MCDropoutRegressor
from sklearn_quam._network import limits
from sklearn_quam.baselines import mc_dropout

from ..networks import (
    IMAGES,
    LABELS,
    SEQUENCES,
    TARGET,
    TWO_TARGETS,
    X64,
    X64_NEW,
    X_NEW,
    Apply,
    Attention,
    MeanAndVariance,
    Recurrent,
    X,
    dense,
    evaluate,
    module_state,
)

RATE = 0.3


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def classifier(module, rows=X, *, random_state=0, **options):
    return MCDropoutClassifier(module, random_state=random_state, **options).fit(rows, LABELS)


def sampled(est, X):
    """Return what each of the thinned networks predicts."""
    parts, inputs = [], est._check_inputs(X)[:]
    posterior = SimpleNamespace(update=parts.append)
    question, (rows, original) = est._question(inputs), est._fitted.given(inputs)
    est._fitted.models.sample(rows, original, posterior, question)
    prediction = parts[0].cat(parts)
    return getattr(prediction, "log_proba", prediction)


def thinned_values(layers, row, n_samples):
    """Return the outputs of thinned networks for one row; whatever they return is a mean."""
    rows = np.stack([row] * 3)
    module = nn.Sequential(layers, nn.Flatten()).eval()
    target = np.zeros(module(torch.tensor(rows)).shape)
    est = MCDropoutRegressor(module, n_samples=n_samples, noise_variance=1.0, random_state=0)
    return sampled(est.fit(rows, target), row[None]).mean[:, 0].double().numpy()


def with_dropout(rate=RATE, n_out=3):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(rate), nn.Linear(8, n_out))


class Functional(nn.Module):
    """Calls a dropout function, the way it is usually done."""

    def __init__(self, function, rate=RATE):
        super().__init__()
        self.function, self.rate = function, rate

    def forward(self, x):
        if self.function is functional.dropout:
            return self.function(input=x, p=self.rate, training=self.training)
        return self.function(x, self.rate, self.training)


# -- every kind of dropout -----------------------------------------------------------------

VECTOR, CHANNELS, PICTURE = (6,), (3, 4), (3, 2, 2)
KINDS = {
    "Dropout": (nn.Dropout(RATE), VECTOR),
    "Dropout of images": (nn.Dropout(RATE), PICTURE),
    "Dropout in place": (nn.Dropout(RATE, inplace=True), VECTOR),
    "Dropout of everything": (nn.Dropout(1.0), VECTOR),
    "Dropout1d": (nn.Dropout1d(RATE), CHANNELS),
    "Dropout2d": (nn.Dropout2d(RATE), PICTURE),
    "Dropout3d": (nn.Dropout3d(RATE), (3, 2, 1, 2)),
    "AlphaDropout": (nn.AlphaDropout(RATE), VECTOR),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout(RATE), CHANNELS),
    "F.dropout": (Functional(functional.dropout), VECTOR),
    "F.alpha_dropout": (Functional(functional.alpha_dropout), VECTOR),
    "F.feature_alpha_dropout": (Functional(functional.feature_alpha_dropout), PICTURE),
    "torch.dropout": (Functional(torch.dropout), VECTOR),
    "torch.feature_dropout": (Functional(torch.feature_dropout), PICTURE),
    "torch.alpha_dropout": (Functional(torch.alpha_dropout), VECTOR),
    "torch.feature_alpha_dropout": (Functional(torch.feature_alpha_dropout), CHANNELS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_torch_in_training(kind):
    layer, shape = KINDS[kind]
    row = torch.linspace(0.5, 2.0, int(np.prod(shape))).reshape(shape)
    n_samples = 2000
    got = thinned_values(layer, row.numpy(), n_samples)
    expected = layer.train()(torch.stack([row] * n_samples)).flatten(1).double().numpy()
    layer.eval()
    for own, other in zip(got.T, expected.T, strict=True):
        np.testing.assert_allclose(np.unique(own), np.unique(other), rtol=1e-5, atol=1e-6)
    error = np.sqrt((got.var(axis=0) + expected.var(axis=0)) / n_samples)
    assert (np.abs(got.mean(axis=0) - expected.mean(axis=0)) <= 5 * error + 1e-6).all()
    # Covariances tell whether channels are dropped as a whole and units one by one.
    spread = np.abs(np.cov(got.T) - np.cov(expected.T)).max()
    assert spread <= 0.15 * np.cov(expected.T).max() + 1e-9


def test_encoder_layers_are_thinned_but_for_their_attention():
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=RATE, batch_first=True)
    n_samples = 4000
    got = thinned_values(layer, SEQUENCES[0, :2], n_samples)
    layer.train().self_attn.dropout = 0.0
    rows = torch.tensor(SEQUENCES[0, :2]).expand(n_samples, -1, -1)
    with torch.no_grad():
        expected = layer(rows).flatten(1).double().numpy()
    error = np.sqrt((got.var(axis=0) + expected.var(axis=0)) / n_samples)
    assert (np.abs(got.mean(axis=0) - expected.mean(axis=0)) < 5 * error).all()
    np.testing.assert_allclose(got.var(axis=0), expected.var(axis=0), rtol=0.2)
    layers = nn.TransformerEncoder(Attention().encoder, 2, enable_nested_tensor=False)
    stack = nn.Sequential(layers, nn.Flatten(), nn.Linear(20, 3))
    epistemic = classifier(stack, SEQUENCES, n_samples=8).predict_uncertainty(SEQUENCES).epistemic
    assert (epistemic > 0).all()


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return torch.cat([self.drop(x), self.drop(x)], dim=1)


def test_repeated_calls_of_a_layer_have_masks_of_their_own():
    masks = thinned_values(Twice(), np.ones(5, np.float32), 3000) > 0
    correlation = np.corrcoef(masks.T) - np.eye(10)
    assert np.abs(correlation).max() < 5 / np.sqrt(3000)


# -- closed forms --------------------------------------------------------------------------


@pytest.mark.parametrize("make", [dense, with_dropout])
def test_rate_of_zero_is_the_plain_network(make):
    module = make().double()
    est = classifier(module, X64, p=0.0, n_samples=20)
    proba = torch.softmax(evaluate(module, X64_NEW), dim=1).numpy()
    for setting in ("given", "expected"):
        est.set_params(setting=setting)
        np.testing.assert_allclose(est.predict_proba(X64_NEW), proba, rtol=1e-12)
        u = est.predict_uncertainty(X64_NEW)
        np.testing.assert_allclose(u.epistemic, 0, atol=1e-14)
        np.testing.assert_allclose(u.aleatoric, entropy(proba, axis=1), rtol=1e-12)


@pytest.mark.parametrize("own", [True, False], ids=["own layer", "added before the last layer"])
def test_all_masks_of_a_small_head(own):
    norm = nn.BatchNorm1d(4)
    norm.running_mean.copy_(torch.tensor([1.0, -1.0, 0.5, 2.0]))
    norm.running_var.copy_(torch.tensor([4.0, 1.0, 0.5, 2.0]))
    head, middle = nn.Linear(4, 3), [nn.Dropout(RATE)] if own else []
    module = nn.Sequential(nn.Linear(4, 4), norm, *middle, head).double().train()
    est = classifier(module, X64, p=None if own else RATE, n_samples=4000)
    features = evaluate(module[:2], X64_NEW)
    masks = np.array(list(itertools.product([0, 1], repeat=4)))
    weights = (RATE ** (1 - masks) * (1 - RATE) ** masks).prod(axis=1)
    with torch.no_grad():
        rows = features[None] * torch.tensor(masks / (1 - RATE))[:, None]
        proba, given = (torch.softmax(head(x), dim=-1).numpy() for x in (rows, features))
    mean, aleatoric = np.einsum("m,mrc->rc", weights, proba), weights @ entropy(proba, axis=2)
    expected = {
        "given": (given, entropy(given, axis=1), weights @ entropy(given[None], proba, axis=2)),
        "expected": (mean, aleatoric, entropy(mean, axis=1) - aleatoric),
    }
    for setting, (predicted, of_data, of_models) in expected.items():
        est.set_params(setting=setting)
        u, diagnostics = est.predict_uncertainty(X64_NEW, return_diagnostics=True)
        assert (np.abs(u.epistemic - of_models) < 5 * diagnostics.standard_error).all()
        np.testing.assert_allclose(u.aleatoric, of_data, atol=0.03)
        np.testing.assert_allclose(est.predict_proba(X64_NEW), predicted, atol=0.03)


def test_linear_network_with_dropout_of_its_inputs():
    rate, head = 0.6, nn.Linear(4, 1)
    module = nn.Sequential(nn.Dropout(rate), head).double()
    est = MCDropoutRegressor(
        module, n_samples=3000, noise_variance=0.5, measure="variance", random_state=0
    ).fit(X64, TARGET)
    weight = head.weight.detach().numpy()[0]
    mean = evaluate(module, X64_NEW)[:, 0].numpy()
    variance = rate / (1 - rate) * (X64_NEW**2 @ weight**2)
    given = est.predict_uncertainty(X64_NEW)
    average, expected = est.set_params(setting="expected").predict(X64_NEW, return_uncertainty=True)
    for u in (given, expected):
        np.testing.assert_allclose(u.epistemic, variance, rtol=0.15)
        np.testing.assert_allclose(u.aleatoric, 0.5, rtol=1e-9)
    assert (np.abs(average - mean) < 5 * np.sqrt(variance / est.n_samples)).all()
    est.set_params(setting="given", measure="entropy")
    divergence = est.predict_uncertainty(X64_NEW).epistemic
    np.testing.assert_allclose(divergence, given.epistemic / (2 * 0.5), rtol=1e-6)


# -- the rate, and networks without dropout ------------------------------------------------


class ByName(nn.Module):
    def __init__(self, plain):
        super().__init__()
        self.first, self.head = plain[0], plain[2]

    def forward(self, x):
        return self.head(input=torch.tanh(self.first(x)))


def test_added_dropout_is_a_layer_before_the_last_one():
    plain, layer = dense(), nn.Linear(4, 3)
    explicit = nn.Sequential(plain[0], plain[1], nn.Dropout(RATE), plain[2])
    pairs = {
        plain: explicit,
        ByName(plain): explicit,
        layer: nn.Sequential(nn.Dropout(RATE), layer),
    }
    for net, other in pairs.items():
        added, own = classifier(net, p=RATE, n_samples=16), classifier(other, n_samples=16)
        assert (added.p_, own.p_) == (RATE, None)
        np.testing.assert_allclose(sampled(added, X_NEW), sampled(own, X_NEW), 1e-5, 1e-6)
    assert not plain[2]._forward_pre_hooks


def test_rate_replaces_that_of_all_layers():
    def epistemic(*rates, p=None):
        torch.manual_seed(0)
        first, second = (nn.Dropout(rate) for rate in rates)
        layers = [first, nn.Linear(4, 8), nn.AlphaDropout(0.2), second, nn.Linear(8, 3)]
        est = classifier(nn.Sequential(*layers), p=p, n_samples=16)
        return est.predict_uncertainty(X_NEW).epistemic

    np.testing.assert_allclose(epistemic(0.5, 0.7, p=0.2), epistemic(0.2, 0.2), rtol=1e-5)
    assert np.abs(epistemic(0.5, 0.7) - epistemic(0.2, 0.2)).max() > 1e-3


@pytest.mark.parametrize("rows", [X, SEQUENCES], ids=["dense", "recurrent"])
def test_network_without_dropout_is_an_error_with_advice(rows):
    recurrent = Recurrent(batch_first=True, num_layers=2, dropout=0.5)
    module = dense() if rows is X else recurrent
    with pytest.raises(ValueError, match=r"no dropout layers.*Pass p="):
        classifier(module, rows)
    est = classifier(module, rows, p=0.5, n_samples=8)
    assert (est.predict_uncertainty(rows).epistemic > 0).all()


def test_network_that_is_trained_by_default_gets_a_rate():
    est = classifier(None, n_samples=4)
    assert est.p_ == 0.1
    assert est.set_params(p=0.4).fit(X, LABELS).p_ == 0.4
    with pytest.raises(ValueError, match="'p' parameter"):
        est.set_params(p=1.0).fit(X, LABELS)


def test_dropout_of_something_without_rows_is_an_error():
    bias = torch.randn(3)
    module = Apply(lambda x: x[:, :3] + functional.dropout(bias, training=False))
    with pytest.raises(ValueError, match=r"shape \(3,\), none of whose axes"):
        classifier(module)


# -- a thinned network is one model --------------------------------------------------------


class Inside(nn.Module):
    """Rows are on some axis where units are dropped, or share one with the steps of a sequence."""

    def __init__(self, where, layers):
        super().__init__()
        self.where, self.layers = where, layers

    def forward(self, x):
        drop, head = self.layers
        if self.where == "second axis":
            return head(drop(x.transpose(0, 1)).mean(dim=0))
        value = x.flatten(0, 1) if self.where == "shared axis" else x
        return head(drop(value).reshape(x.shape).mean(dim=1))


@pytest.mark.parametrize("where", ["second axis", "shared axis"])
def test_rows_need_not_be_on_the_first_axis(where):
    layers = nn.ModuleList([nn.Dropout(0.5), nn.Linear(4, 3)])
    inside, plain = (
        classifier(Inside(axis, layers), SEQUENCES, n_samples=9) for axis in (where, "first axis")
    )
    whole = sampled(plain, SEQUENCES)
    for n_rows in (1, 2, 5, 60):  # 5 rows of one model, or a sequence of 5 steps
        got = sampled(inside, SEQUENCES[:n_rows])
        np.testing.assert_allclose(got, whole[:, :n_rows], 1e-5, 1e-6)


@pytest.mark.parametrize("last", [nn.Flatten(0), Apply(torch.squeeze)], ids=["flatten", "squeeze"])
def test_output_without_a_column(last):
    column = with_dropout(n_out=1)
    own, other = (
        MCDropoutRegressor(module, n_samples=9, random_state=0).fit(X, TARGET)
        for module in (nn.Sequential(column, last), column)
    )
    for rows in (X_NEW, X_NEW[:1]):
        got, expected = sampled(own, rows), sampled(other, rows)
        np.testing.assert_allclose(got.mean, expected.mean, 1e-5, 1e-6)
        assert got.mean.shape == (9, len(rows), 1)


def test_masks_are_the_same_for_all_rows_and_more_models_come_behind():
    module = with_dropout()
    est = classifier(module, n_samples=12)
    same = sampled(est, np.repeat(X_NEW[:1], 6, axis=0))
    np.testing.assert_allclose(same, same[:, :1].expand(-1, 6, -1), 1e-5, 1e-6)
    assert same[:, 0].std(dim=0).min() > 1e-3
    few = classifier(module, n_samples=5)
    np.testing.assert_allclose(sampled(est, X_NEW)[:5], sampled(few, X_NEW), 1e-5)


@pytest.mark.parametrize("at_once", [1, 5, 10**6])
def test_chunks_change_nothing(at_once, monkeypatch):
    est = classifier(nn.Sequential(nn.Dropout(0.2), with_dropout()).double(), X64, n_samples=11)
    models, u = sampled(est, X64_NEW), est.predict_uncertainty(X64_NEW)
    for where in (mc_dropout, limits):
        monkeypatch.setattr(where, "rows_at_once", lambda _: at_once)
    np.testing.assert_allclose(sampled(est, X64_NEW), models, rtol=1e-9)
    np.testing.assert_allclose(est.predict_uncertainty(X64_NEW), u, rtol=1e-9)


# -- what is run, and what stays as it is --------------------------------------------------


class Untraceable(nn.Module):
    """Looks at its values, and may be interrupted while units are dropped."""

    error = None

    def forward(self, x):
        if bool((x == 0).any()) and self.error is not None:
            raise self.error
        return x


def untraceable_network():
    layers = with_dropout()
    return nn.Sequential(*layers[:3], Untraceable(), layers[3])


@pytest.mark.parametrize("p", [None, 0.2])
def test_part_before_the_first_dropout_is_run_once(p):
    conv = nn.Conv2d(2, 3, 3)
    layers = [conv, nn.ReLU(), nn.Flatten()]
    module = nn.Sequential(*layers, *([nn.Dropout(0.2)] if p is None else []), nn.Linear(48, 3))
    rows = []
    conv.register_forward_hook(lambda *args: rows.append(len(args[2])))
    est = classifier(module, IMAGES, p=p, n_samples=100)
    rows.clear()
    est.predict_uncertainty(IMAGES)
    assert est._fitted.models.cut.split.place == "inside"
    assert sum(rows) == len(IMAGES)  # for the given network and all thinned ones together


@torch.fx.wrap
def drop(x):
    return functional.dropout(x, RATE, training=False)


def test_networks_that_cannot_be_traced():
    module = untraceable_network()
    plain = nn.Sequential(*module[:3], module[4])
    unseen = nn.Sequential(*module[:2], Apply(drop), module[4])
    expected = sampled(classifier(plain, n_samples=9), X_NEW)
    for net in (module, unseen):
        own = classifier(net, n_samples=9)
        np.testing.assert_allclose(sampled(own, X_NEW), expected, 1e-5, 1e-6)
        assert torch.equal(sampled(pickle.loads(pickle.dumps(own)), X_NEW), sampled(own, X_NEW))


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_interruption_leaves_everything_as_it_was(error, monkeypatch):
    module = untraceable_network().train()
    est = classifier(module, n_samples=9)
    before, state, own = sampled(est, X_NEW), module_state(module), est._fitted.reference.module
    own_state = module_state(own)
    monkeypatch.setattr(Untraceable, "error", error())
    # What a network raises for every row is told by another error.
    with pytest.raises((error, ValueError)):
        est.predict_uncertainty(X_NEW)
    monkeypatch.undo()
    values = torch.ones(4000)
    assert torch.equal(functional.dropout(values, training=False), values)
    assert functional.dropout(values, 0.25).count_nonzero() == pytest.approx(3000, abs=150)
    assert (module_state(module), module_state(own)) == (state, own_state)
    assert torch.equal(sampled(est, X_NEW), before)


@pytest.mark.parametrize("link", ["mean_variance", "mean_log_variance"])
def test_variances_are_thinned_like_the_means(link):
    module = MeanAndVariance(2) if link == "mean_variance" else dense(4)
    est = MCDropoutRegressor(module, p=0.3, n_samples=50, link=link, measure="variance")
    models = sampled(est.fit(X, TWO_TARGETS), X_NEW).to(torch.float64)
    assert models.variance.std(dim=0).min() > 1e-3
    u = est.set_params(setting="expected").predict_uncertainty(X_NEW)
    np.testing.assert_allclose(u.aleatoric, models.variance.mean(dim=0).sum(dim=1), rtol=1e-5)
    means = models.mean.var(dim=0, correction=0).sum(dim=1)
    np.testing.assert_allclose(u.epistemic, means, rtol=1e-4)
    np.testing.assert_allclose(est.predict(X_NEW), models.mean.mean(dim=0), 1e-4, 1e-5)
