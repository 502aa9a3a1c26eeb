"""Intervals of regressors: quantiles of what plausible models predict, and split conformal."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_matrix
from scipy.stats import binom, norm
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler
from torch import nn

from sklearn_quam import LaplaceRegressor, QUAMRegressor, ReferenceRegressor, load
from sklearn_quam._network.predictions import Gaussian
from sklearn_quam.base._conformal import conformal_threshold, noise_and_calibration_rows
from sklearn_quam.exceptions import BeyondRangeWarning
from sklearn_quam.metrics import interval_coverage

from .networks import TARGET, TWO_TARGETS, X_NEW, X

ABSURD = np.array([[1e20, 0, 0, 0]], dtype=np.float32)


def line(n_rows, seed, noise=1.0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, 2))
    return rows, rows @ [1.0, -2.0] + noise * rng.normal(size=n_rows)


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.999])
def test_interval_of_one_gaussian_is_the_textbook_one(coverage):
    est = ReferenceRegressor(LinearRegression().fit(X, TARGET), noise_variance=4.0).fit(X, TARGET)
    lower, upper = est.predict_interval(X_NEW, coverage).T
    expected = norm.interval(coverage, loc=est.predict(X_NEW), scale=2.0)
    np.testing.assert_allclose([lower, upper], expected, rtol=1e-6)


def test_standard_deviation_is_that_of_the_posterior_predictive():
    rows, y = line(50, seed=0)
    net = LinearRegression().fit(rows, y)
    est = QUAMRegressor(net, search="natural", noise_variance=1.0, setting="expected")
    est.set_params(search__prior_precision=1e-6, search__n_steps=40)
    mean, std = est.fit(rows, y).predict(rows[:5], return_std=True)
    np.testing.assert_allclose(mean, net.predict(rows[:5]), atol=0.02)
    design = np.c_[rows, np.ones(50)]
    spread = 1 + np.diag(design @ np.linalg.inv(design.T @ design) @ design.T)[:5]
    np.testing.assert_allclose(std, np.sqrt(spread), rtol=0.01)
    lower, upper = est.predict_interval(rows[:5], 0.9).T
    np.testing.assert_allclose(upper - lower, 2 * norm.ppf(0.95) * np.sqrt(spread), rtol=0.01)


def test_return_std_is_the_root_of_the_total_variance():
    est = LaplaceRegressor(MLPRegressor(max_iter=5), measure="variance", random_state=0)
    with pytest.warns(ConvergenceWarning):
        est.fit(X, TARGET)
    for setting in ("given", "expected"):
        mean, std = est.set_params(setting=setting).predict(X_NEW, return_std=True)
        same_mean, u = est.predict(X_NEW, return_uncertainty=True)
        np.testing.assert_array_equal(mean, same_mean)
        np.testing.assert_allclose(std, np.sqrt(u.total), rtol=1e-9)
    with pytest.raises(ValueError, match="not both"):
        est.predict(X_NEW, return_std=True, return_uncertainty=True)


@settings(deadline=None, max_examples=30)
@given(n_rows=st.integers(1, 200), coverage=st.floats(0.01, 0.99))
def test_the_threshold_is_the_smallest_that_keeps_the_promise(n_rows, coverage):
    scores = np.arange(1.0, n_rows + 1)
    if n_rows < coverage / (1 - coverage) - 1e-6:
        with pytest.raises(ValueError, match="takes at least"):
            conformal_threshold(scores, coverage)
        return
    rank = conformal_threshold(scores, coverage)
    # The rank of one more score is uniform on 1, ..., n + 1.
    assert rank / (n_rows + 1) >= coverage - 1e-9
    assert (rank - 1) / (n_rows + 1) < coverage


def test_too_few_rows_say_how_many_it_takes():
    net = LinearRegression().fit(X, TARGET)
    est = ReferenceRegressor(net, noise_variance=1.0)
    est.fit(X, TARGET, X_val=X[:20], y_val=TARGET[:20])
    est.predict_interval(X_NEW, 0.95)
    for coverage in (0, 1, 90, "much", np.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            est.predict_interval(X_NEW, coverage)
    with pytest.raises(ValueError, match=r"coverage=0.99 .* 20 row\(s\) .* takes at least 99"):
        est.predict_interval(X_NEW, 0.99)
    # Half of them measure the noise if it is not given.
    est = ReferenceRegressor(net).fit(X, TARGET, X_val=X[:20], y_val=TARGET[:20])
    est.predict_interval(X_NEW, 0.9)
    with pytest.raises(ValueError, match=r"10 row\(s\) .* do not measure the noise: .* least 19"):
        est.predict_interval(X_NEW, 0.95)
    with pytest.raises(ValueError, match="at least 2 are needed: half of them measure the noise"):
        est.fit(X, TARGET, X_val=X[:1], y_val=TARGET[:1])
    assert not est.__sklearn_is_fitted__()


@pytest.mark.parametrize(
    ("kind", "arguments"), [(ReferenceRegressor, {}), (LaplaceRegressor, {"n_samples": 8})]
)
def test_calibrated_intervals_cover_what_they_promise(kind, arguments):
    """Of a network whose noise is taken for far too small, with few rows to calibrate on."""
    n_runs, n_val, n_new, coverage = 20, 19, 100, 0.8
    covered = []
    for seed in range(n_runs):
        rows, y = line(20 + n_val + n_new, seed)
        train, val, new = slice(0, 20), slice(20, 20 + n_val), slice(20 + n_val, None)
        net = LinearRegression().fit(rows[train], y[train])
        est = kind(net, noise_variance=0.01, random_state=0, **arguments)
        est.fit(rows[train], y[train], X_val=rows[val], y_val=y[val])
        covered.append(interval_coverage(y[new], *est.predict_interval(rows[new], coverage).T))
    # Coverage of a run varies like a beta variable; of the mean, four standard errors.
    error = 4 * np.sqrt(coverage * (1 - coverage) * (1 / n_val + 1 / n_new) / n_runs)
    assert coverage - error < np.mean(covered) < coverage + 1 / (n_val + 1) + error
    plain = est.fit(rows[train], y[train]).predict_interval(rows[new], coverage)
    assert interval_coverage(y[new], *plain.T) < 0.3


@dataclass(frozen=True)
class _Rivals:
    """Rivals far away, for rows with a second feature of 1 only; dear unless the noise is large."""

    noise: float

    def rows_at_once(self, inputs, limits):
        return len(inputs)

    def sample(self, inputs, original, posterior, question):
        posterior.update(original[None])
        odd = inputs.parts[0][:, 1] == 1
        weight = torch.where(odd, torch.tensor(20 - 1000 / self.noise), torch.tensor(-1000.0))
        for side in (-1e4, 1e4):
            rival = Gaussian(original.mean + side, original.variance)
            posterior.update(rival[None], weight[None])
        return {}


class _RivalRegressor(ReferenceRegressor):
    def _fit_models(self, fit):
        return _Rivals(float(fit.reference.likelihood.noise_variance))


@pytest.mark.slow
def test_rows_that_measure_the_noise_do_not_calibrate():
    """Over 500 draws of few held-out rows, intervals cover what they promise.

    A row in ten has a large residual, and a rival that only a large noise makes plausible. If such
    a row measured the noise that it is then scored with, it would look harmless, and others like it
    would not be covered: 75 % instead of 80 %.
    """
    n_draws, n_val, n_new, coverage = 500, 9, 40, 0.8
    train, target = np.eye(2, dtype=np.float32), np.array([1.0, 0.0])
    est = _RivalRegressor(LinearRegression(fit_intercept=False).fit(train, target))
    covered = []
    for seed in range(n_draws):
        rng = np.random.default_rng(seed)
        odd = rng.random(n_val + n_new) < 0.1
        rows = np.c_[rng.normal(size=len(odd)), odd].astype(np.float32)
        residual = np.where(odd, 100.0, 1.0) * rng.uniform(0.9, 1.1, len(odd))
        y = rows[:, 0] + rng.choice([-1, 1], len(odd)) * residual
        est.fit(train, target, X_val=rows[:n_val], y_val=y[:n_val])
        lower, upper = est.predict_interval(rows[n_val:], coverage).T
        covered.append(interval_coverage(y[n_val:], lower, upper))
    # Draws are independent, whatever their coverage: three standard errors of the mean.
    error = 3 * np.std(covered) / np.sqrt(n_draws)
    assert error < 0.03
    assert np.mean(covered) > coverage - error


def test_held_out_rows_are_halved_whatever_holds_them():
    """The noise is that of one half, scores are of the other, in the order of neither."""
    net = LinearRegression().fit(X, TARGET)
    noise_rows, others = noise_and_calibration_rows(len(X))
    assert sorted([*noise_rows, *others]) == list(range(len(X)))
    residual = net.predict(X) - TARGET
    noise = np.mean(residual[noise_rows] ** 2)
    scores = np.sort(np.abs(residual[others])) / np.sqrt(noise)
    for rows in (X, X.tolist(), torch.tensor(X), coo_matrix(X), pd.DataFrame(X)):
        est = ReferenceRegressor(net)
        est.fit(X, TARGET, X_val=rows, y_val=TARGET)
        np.testing.assert_allclose(est.noise_variance_, noise, rtol=1e-4)
        np.testing.assert_allclose(est.conformal_scores_[:, 0], scores, rtol=1e-3)


def test_calibrated_intervals_stay_adaptive():
    """A network that knows where the noise is has wide intervals there, calibrated or not."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(1, 2, (600, 1)).astype(np.float32)
    y = (rows[:, 0] - 1.0) * rng.normal(size=600)
    net = nn.Linear(1, 2)
    with torch.no_grad():
        # The mean is right, the standard deviation a third of the true one.
        net.weight.copy_(torch.tensor([[0.0], [1.0]]))
        net.bias.copy_(torch.tensor([0.0, -1.0]))
    network = nn.Sequential(net, _SquaredVariance())
    est = ReferenceRegressor(network, link="mean_variance")
    est.fit(rows[:200], y[:200], X_val=rows[200:400], y_val=y[200:400])
    interval = est.predict_interval(rows[400:], 0.9)
    width = np.diff(interval)[:, 0]
    ratio = width / (rows[400:, 0] - 1)
    np.testing.assert_allclose(ratio, ratio[0], rtol=0.01)
    covered = interval_coverage(y[400:], *interval.T)
    assert binom.cdf(int(covered * 200), 200, 0.9) > 1e-3
    # What split conformal takes for three standard deviations is the quantile of a Gaussian.
    assert 0.8 < ratio[0] / (2 * norm.ppf(0.95)) < 1.25


class _SquaredVariance(nn.Module):
    def forward(self, output):
        return torch.stack([output[:, 0], (output[:, 1] / 3) ** 2], dim=1)


def test_units_of_a_transformed_target():
    target = 1000 * TARGET + 5000
    plain = MLPRegressor(hidden_layer_sizes=(8,), solver="lbfgs", max_iter=50, random_state=0)
    net = TransformedTargetRegressor(plain, transformer=StandardScaler()).fit(X, target)
    same = TransformedTargetRegressor(plain, transformer=StandardScaler()).fit(X, TARGET)
    for more in (lambda _: {}, lambda y: {"X_val": X[:30], "y_val": y[:30]}):
        arguments = {"parameters": "last_layer", "random_state": 0}
        scaled = LaplaceRegressor(net, **arguments).fit(X, target, **more(target))
        alone = LaplaceRegressor(same, **arguments).fit(X, TARGET, **more(TARGET))
        np.testing.assert_allclose(
            scaled.predict_interval(X_NEW), 1000 * alone.predict_interval(X_NEW) + 5000, rtol=0.05
        )
        _, std = scaled.predict(X_NEW, return_std=True)
        np.testing.assert_allclose(std, 1000 * alone.predict(X_NEW, return_std=True)[1], rtol=0.05)


@pytest.mark.parametrize("held_out", [{}, {"X_val": X[:30], "y_val": TARGET[:30]}])
def test_rows_beyond_the_range_have_huge_intervals(held_out):
    est = ReferenceRegressor(LinearRegression().fit(X, TARGET)).fit(X, TARGET, **held_out)
    with pytest.warns(BeyondRangeWarning):
        interval = est.predict_interval(np.r_[X_NEW[:2], ABSURD])
    assert np.isfinite(interval).all()
    assert (np.abs(interval[2]) > 1e149).all()
    assert interval[2, 0] < interval[2, 1]
    np.testing.assert_allclose(interval[:2], est.predict_interval(X_NEW[:2]))
    with pytest.warns(BeyondRangeWarning):
        assert est.predict(ABSURD, return_std=True)[1] == 1e150


def test_absurd_held_out_rows_do_not_break_the_others():
    est = ReferenceRegressor(LinearRegression().fit(X, TARGET), noise_variance=1.0)
    with pytest.warns(BeyondRangeWarning):
        est.fit(X, TARGET, X_val=np.r_[X[:30], ABSURD], y_val=np.r_[TARGET[:30], 0.0])
    assert np.isfinite(est.predict_interval(X_NEW)).all()
    est.fit(X, TARGET, X_val=X[:30], y_val=np.full(30, 1e300))
    assert not np.isnan(est.predict_interval(X_NEW)).any()


def test_held_out_targets_are_checked_for_networks_with_variances_too():
    est = ReferenceRegressor(nn.Linear(4, 2), link="mean_log_variance")
    with pytest.raises(ValueError, match=r"y_val has 2 value\(s\) a row, but y has 1"):
        est.fit(X, TARGET, X_val=X, y_val=TWO_TARGETS)


def test_what_was_calibrated_is_saved_and_forgotten(tmp_path):
    net = LinearRegression().fit(X, TARGET)
    est = ReferenceRegressor(net).fit(X, TARGET, X_val=X[:30], y_val=2 * TARGET[:30])
    est.save(tmp_path / "est")
    expected = est.predict_interval(X_NEW)
    again = load(tmp_path / "est", net)
    np.testing.assert_array_equal(again.predict_interval(X_NEW), expected)
    est.fit(X, TARGET)
    assert not hasattr(est, "conformal_scores_")
    assert np.diff(est.predict_interval(X_NEW)).mean() < np.diff(expected).mean()
    with pytest.raises(ValueError, match="features"):
        est.fit(X, TARGET, X_val=X[:, :2], y_val=TARGET)
    assert not est.__sklearn_is_fitted__()
