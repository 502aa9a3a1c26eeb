"""Rows far outside of the range of all training rows are infinitely uncertain."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

import sklearn_quam
from sklearn_quam import QUAMClassifier, QUAMRegressor, ReferenceClassifier, ReferenceRegressor
from sklearn_quam._network.inputs.rows import Inputs, StoredRows
from sklearn_quam._posterior.training_range import input_range
from sklearn_quam.exceptions import BeyondRangeWarning, PoorFitWarning

from .networks import LABELS, TARGET, X_NEW, Apply, X, dense, train
from .ood.common import NAMES as DETECTORS
from .ood.common import make_data as detector_data
from .ood.common import make_detector
from .test_contract import FEW, METHODS, few_methods, is_classifier, make_data, make_estimator

INFINITE = 1e300
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


def trained(method, activation, dtype):
    rows, y = make_data(method)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        width = 3 if is_classifier(method) else 1
        module = nn.Sequential(nn.Linear(4, 8), ACTIVATIONS[activation](), nn.Linear(8, width))
        return train(module, rows, y).to(dtype)


FITTED = {}


def fitted(method, activation, dtype):
    """Return a fitted estimator, the same for all cases that ask for it."""
    key = (method.name, activation, dtype)
    if key not in FITTED:
        rows, y = make_data(method)
        est = make_estimator(method, trained(method, activation, dtype))
        FITTED[key] = est.fit(rows.astype(np.float32 if dtype == torch.float32 else float), y)
    return FITTED[key]


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.BeyondRangeWarning")
@few_methods
@pytest.mark.parametrize(
    ("activation", "dtype"), [("relu", torch.float32), ("gelu", torch.float64)], ids=str
)
@pytest.mark.parametrize("rows", [(3, 1, 2.5), (5, 0, -1.0)])
def test_uncertainty_never_falls_to_zero_as_a_feature_grows(method, activation, dtype, rows):
    est = fitted(method, activation, dtype)
    number, feature, size = rows
    largest = 37 if dtype == torch.float32 else 300
    exponents = np.unique([*range(0, 20, 2), largest // 2, largest - 1, largest])
    X = np.repeat(make_data(method)[0][[number]].astype(float), len(exponents), axis=0)
    X[:, feature] = size * 10.0**exponents
    for setting in ("given", "expected"):
        u, diagnostics = est.set_params(setting=setting).predict_uncertainty(
            X, return_diagnostics=True
        )
        assert np.isfinite(u).all()
        lost = u.beyond_range
        # Who is beyond stays beyond.
        assert (np.diff(lost.astype(int)) >= 0).all()
        assert lost[exponents >= (9 if dtype == torch.float32 else 17)].all()
        assert (diagnostics.n_diverged[lost] > 0).all()
        assert (u.total[lost] == INFINITE).all()
        assert np.isfinite(est.predict(X)).all()
        if hasattr(est, "predict_set") and setting == "given":
            assert est.predict_set(X)[lost].all()
        if hasattr(est, "predict_interval") and setting == "given":
            lower, upper = est.predict_interval(X).T
            assert (lower < upper).all()
            assert np.isfinite([lower, upper]).all()
            assert (upper - lower)[lost].min() > 1e149
        if not method.name.startswith("Reference") and setting == "given":
            assert (u.epistemic > 0).all()
        if is_classifier(method) and setting == "expected":
            # Models may agree, but not where the network is surer than about all that it knows.
            log_odds = np.log(est.set_params(setting="given").predict_proba(X) + 1e-300)
            first, second = np.sort(log_odds, axis=1)[:, -1], np.sort(log_odds, axis=1)[:, -2]
            known = est._fitted.known.surest
            assert ((u.epistemic > 0) | (first - second <= max(36.1, 10 * known))).all()
        # Rows of a classifier that is as sure as numbers can be are beyond.
        assert (u.total != 0).all()


@few_methods
def test_one_absurd_row_is_counted_and_leaves_the_others_alone(method):
    est = fitted(method, "relu", torch.float32)
    rows = make_data(method, n_samples=7, seed=1)[0]
    est.set_params(setting="given")
    expected = est.predict_uncertainty(rows)
    filled = rows.copy()
    filled[4, 2] = 9.97e36
    with pytest.warns(BeyondRangeWarning, match=r"^1 of 7 rows \(.*row 4\) are beyond") as seen:
        u, diagnostics = est.predict_uncertainty(filled, return_diagnostics=True)
    seen = [warning for warning in seen if warning.category is BeyondRangeWarning]
    assert [warning.filename for warning in seen] == [__file__]
    np.testing.assert_array_equal(u.beyond_range, np.arange(7) == 4)
    assert u.epistemic[4] == u.total[4] == INFINITE
    assert est_score(est, filled)[4] == -INFINITE
    others = np.arange(7) != 4
    for part, wanted in zip(u, expected, strict=True):
        np.testing.assert_allclose(part[others], wanted[others], rtol=1e-5)
    assert diagnostics.n_diverged[4] > 0
    assert not diagnostics.n_diverged[others].any()
    with pytest.warns(BeyondRangeWarning):
        prediction = est.predict(filled)
    np.testing.assert_array_equal(prediction[others], est.predict(rows[others]))


def est_score(est, rows):
    with pytest.warns(BeyondRangeWarning):
        return est.score_samples(rows)


def test_infinite_uncertainty_is_a_number_for_metrics():
    est = QUAMClassifier(train(dense(), X, LABELS), random_state=0).fit(X, LABELS)
    absurd = X_NEW[:5].copy()
    absurd[:, 0] = 1e20
    with pytest.warns(BeyondRangeWarning):
        scores = est.predict_uncertainty(np.concatenate([X_NEW[5:], absurd])).epistemic
    assert roc_auc_score([0] * 20 + [1] * 5, scores) == 1
    assert np.isfinite(scores.mean())


def test_values_known_from_training_are_no_reason_to_be_lost():
    rows = X.copy()
    rows[0, 0] = 1e20
    module = nn.Sequential(nn.Tanh(), train(dense(), X, LABELS))
    est = QUAMClassifier(module, random_state=0).fit(rows, LABELS)
    assert not est.predict_uncertainty(rows[:2]).beyond_range.any()


@pytest.mark.parametrize(
    "kind", [QUAMClassifier, ReferenceClassifier, QUAMRegressor, ReferenceRegressor]
)
def test_a_row_without_a_prediction_gets_class_frequencies_or_the_mean(kind):
    of_classes = kind.__name__.endswith("Classifier")
    module = nn.Sequential(Apply(lambda x: x / (x[:, :1].abs() < 5)), dense(3 if of_classes else 1))
    est = kind(module, random_state=0).fit(X, LABELS if of_classes else TARGET)
    rows = X_NEW[:3].copy()
    rows[:, 0] = [0.1, 6, 0.2]
    ask = est.predict_proba if of_classes else est.predict
    with pytest.warns(BeyondRangeWarning):
        prediction, u = ask(rows, return_uncertainty=True)
    expected = np.bincount(LABELS) / len(LABELS) if of_classes else TARGET.mean()
    np.testing.assert_allclose(prediction[1], expected, rtol=1e-5)
    np.testing.assert_array_equal(u.beyond_range, [False, True, False])


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.UncertaintyWarning")
@pytest.mark.parametrize(
    ("method", "dtype"),
    [(method, dtype) for method in FEW for dtype in (torch.float32, torch.float64)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_weights_that_explode_never_look_safe(method, dtype):
    module = trained(method, "relu", dtype)
    with torch.no_grad():
        for p in module.parameters():
            p *= 1e6
    rows, y = make_data(method)
    est = make_estimator(method, module)
    u = est.fit(rows, y).predict_uncertainty(rows)
    assert np.isfinite(u).all()
    assert (u.epistemic > (0 if is_classifier(method) else 1e-6)).all()


def test_prices_and_models_of_absurd_rows():
    est = QUAMClassifier(train(dense(), X, LABELS), random_state=0).fit(X, LABELS)
    rows = X_NEW[:3].copy()
    rows[1, 1] = 1e30
    with pytest.warns(BeyondRangeWarning):
        costs = est.rival_costs(rows)
    np.testing.assert_array_equal(costs[1], 0)
    with pytest.warns(BeyondRangeWarning):
        np.testing.assert_array_equal(est.rival_costs(rows[[1]]), np.zeros((1, 3)))
    np.testing.assert_allclose(costs[[0, 2]], est.rival_costs(rows[[0, 2]]), rtol=1e-5)
    for ask in (est.adversarial_models, est.search_traces):
        with pytest.raises(ValueError, match="Row 1 is beyond the range"):
            ask(rows)
    laplace = sklearn_quam.LaplaceClassifier(dense(), random_state=0).fit(X, LABELS)
    with pytest.raises(ValueError, match="Row 1 is beyond the range"):
        laplace.score_distribution(rows)


@pytest.mark.parametrize("measure", ["entropy", "variance"])
def test_constant_targets_are_not_absurd(measure):
    network = nn.Linear(4, 1).double()
    with torch.no_grad():
        network.weight *= 1e-3
        network.bias[:] = 2.0
    for value in (0.0, 2.0):
        est = QUAMRegressor(network, measure=measure, noise_variance=1.0, random_state=0)
        est.fit(X.astype(float), np.full(len(X), value))
        assert not est.predict_uncertainty(X_NEW.astype(float)).beyond_range.any()


def test_all_models_that_agree_as_surely_as_about_training_rows_have_no_doubt():
    """With a margin of 40 nats everywhere, the mutual information is below what a sum can hold."""
    members = [nn.Linear(4, 3).double() for _ in range(3)]
    for number, member in enumerate(members):
        with torch.no_grad():
            member.weight *= 1e-3
            member.bias[:] = torch.tensor([40.0 + number, 0.0, 0.0])
    est = sklearn_quam.DeepEnsembleClassifier(estimators=members, setting="expected")
    y = np.r_[0, 1, 2, np.zeros(len(X) - 3, dtype=int)]
    with pytest.warns(PoorFitWarning):
        est.fit(X.astype(float), y)
    u = est.predict_uncertainty(X.astype(float))
    assert not u.beyond_range.any()
    assert (u.epistemic == 0).all()
    # In more digits: the mean over members of q log(q / mean of q), for either other class.
    q = np.exp(-40.0 - np.arange(3))
    assert 0 < 2 * np.mean(q * np.log(q / q.mean())) < 1e-15


# -- far outside of the range of all training rows -------------------------------------------


@each_method
def test_rows_many_times_too_large_are_beyond_whatever_the_method(method):
    est = fitted(method, "relu", torch.float32).set_params(setting="given")
    rows = make_data(method, n_samples=7, seed=1)[0]
    assert not est.predict_uncertainty(rows).beyond_range.any()
    for factor in (1e3, 1e6):
        with pytest.warns(BeyondRangeWarning, match="^7 of 7 rows"):
            u = est.predict_uncertainty(factor * rows)
        assert u.beyond_range.all()
        with pytest.warns(BeyondRangeWarning):
            assert np.isfinite(est.predict(factor * rows)).all()


def test_the_prediction_of_a_row_beyond_is_that_of_the_network():
    net = train(dense(), X, LABELS)
    est = QUAMClassifier(net, random_state=0).fit(X, LABELS)
    with pytest.warns(BeyondRangeWarning):
        proba, u = est.predict_proba(1e3 * X_NEW, return_uncertainty=True)
    with torch.no_grad():
        own = net(torch.tensor(1e3 * X_NEW)).softmax(dim=1).numpy()
    np.testing.assert_allclose(proba, own, atol=1e-6)
    assert u.beyond_range.all()


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_give_them_minus_infinity(name):
    rows, y = detector_data()
    detector = make_detector(name).fit(rows, y)
    assert np.isfinite(detector.score_samples(rows)).all()
    for factor in (1e3, 1e6):
        with pytest.warns(BeyondRangeWarning, match="^7 of 7 rows.*score is minus inf") as seen:
            scores = detector.score_samples(factor * rows[:7])
        assert [warning.filename for warning in seen] == [__file__]
        assert np.isneginf(scores).all()


def beyond(training, rows, **factors):
    known = input_range(Inputs((torch.tensor(training),)))
    return known.beyond(Inputs((torch.tensor(rows),)), **factors).numpy()


def test_a_value_or_a_whole_row_may_be_beyond():
    training = np.array([[0.0, 0, 0, 0], [1, 1, 1, 1]])
    rows = np.array([[0.5, 15, 0.5, 0.5], [12, 12, 12, 12], [0.5, 200, 0.5, 0.5], [np.nan] * 4])
    np.testing.assert_array_equal(beyond(training, rows), [False, True, True, True])
    np.testing.assert_array_equal(beyond(training, -rows), [False, True, True, True])
    assert not beyond(training, rows[:3], of_value=1e3, of_row=1e3).any()


def test_features_that_are_constant_in_training_may_be_rare():
    pixels = np.zeros((20, 4))
    pixels[:, 1:3] = np.arange(20)[:, None] % 17
    rows = np.zeros((3, 4))
    rows[:, 0] = [1, 16, -9999]
    np.testing.assert_array_equal(beyond(pixels, rows), [False, False, True])
    rare = pixels.copy()
    rare[3, 0] = 1e-3
    np.testing.assert_array_equal(beyond(rare, rows), [False, False, True])


def test_rows_that_are_all_alike_have_only_a_size():
    np.testing.assert_array_equal(
        beyond(np.full((3, 2), 5.0), [[5.0, 5], [40, 5], [9e3, 5]]), [False, False, True]
    )
    assert beyond(np.zeros((3, 2)), [[0.0, 1], [0, 1e3]]).tolist() == [False, True]


def test_images_have_one_range_and_whole_numbers_none():
    images = np.zeros((5, 1, 3, 3), dtype=np.float32)
    images[:, 0, 1, 1] = 1
    rows = np.zeros((3, 1, 3, 3), dtype=np.float32)
    rows[1] = 1  # all white: within the range, odd as it is
    rows[2] = 255
    np.testing.assert_array_equal(beyond(images, rows), [False, False, True])
    assert not beyond(np.arange(6).reshape(3, 2), np.full((2, 2), 10**6)).any()


def test_the_range_of_many_rows_is_that_of_all_batches():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 3)).astype(np.float32)
    found = input_range(Inputs((torch.tensor(rows),)))
    np.testing.assert_allclose(found.centre[0], (rows.max(0) + rows.min(0)) / 2, rtol=1e-6)
    widths = np.ptp(rows, axis=0)
    np.testing.assert_allclose(found.width[0], np.maximum(widths, np.median(widths)), rtol=1e-6)


class WholeNumbers:
    """Many rows of token numbers, which notes how many are read."""

    names, n_read = None, 0

    def __len__(self):
        return 100_000

    def read(self, index):
        self.n_read += len(range(len(self))[index])
        return (np.zeros((len(range(len(self))[index]), 3), np.int64),)


def test_whole_numbers_have_no_range_so_that_they_are_not_all_read():
    source = WholeNumbers()
    (centre,) = input_range(StoredRows(source, (torch.int64,), torch.device("cpu"))).centre
    assert len(centre) == 0
    assert 0 < source.n_read < len(source)
