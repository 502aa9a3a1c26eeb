"""Hamiltonian Monte Carlo, against closed forms, quadrature and chains of known correlation.

Where a tolerance is a number of standard errors it is five of them: a correct sampler fails such a
test with one seed in a million.
"""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from sklearn_quam import HMCClassifier, HMCRegressor
from sklearn_quam._posterior.estimate import chain_effective_sample_size, split_r_hat
from sklearn_quam.baselines import hmc
from sklearn_quam.baselines._hamiltonian import StepSize, draw, first_step_size, init, update

from ..networks import flat, with_ones
from .common import FIVE, LABELS, NOISE, PRIOR, X_NEW, X, Y, linear, logistic_posterior, normal


def regressor(module=None, **params):
    given = {"prior_precision": PRIOR, "noise_variance": NOISE, "measure": "variance"}
    return HMCRegressor(
        linear() if module is None else module,
        **{**given, "setting": "expected", "random_state": 0, **params},
    )


def short(module=None, **params):
    """Return a regressor that is fitted in no time."""
    return regressor(module, **{"n_samples": 8, "n_warmup": 10, "n_leapfrog": 3, **params})


def quartic(position):
    """Return a potential that is no quadratic, and its gradient, in every direction alike."""
    potential = (0.5 * position**2 + 0.1 * position**4).sum(dim=1)
    return potential, position + 0.4 * position**3


def uniform(n, seed=1):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)).double()


# -- dynamics ------------------------------------------------------------------------------


def trajectory(position, momentum, step_size, n_leapfrog):
    """Return where accepted trajectories end, and their last momenta."""
    always = torch.zeros(len(position)).double()
    start = init(position, quartic)
    ends = [
        update(start, quartic, momentum, always, step_size=step_size, n_leapfrog=n)[0]
        for n in (n_leapfrog - 1, n_leapfrog)
    ]
    between = (ends[1].position - ends[0].position) / step_size
    return ends[1].position, between - 0.5 * step_size * ends[1].gradient


def test_leapfrog_is_reversible():
    position, momentum = normal(20, 3), normal(20, 3, seed=1)
    end, last = trajectory(position, momentum, 0.1, 15)
    assert (end - position).abs().max() > 0.5
    back, reversed_momentum = trajectory(end, -last, 0.1, 15)
    torch.testing.assert_close(back, position, rtol=0, atol=1e-11)
    torch.testing.assert_close(-reversed_momentum, momentum, rtol=0, atol=1e-11)


def test_halving_the_step_size_quarters_the_energy_error():
    start, momentum = init(normal(500, 3), quartic), normal(500, 3, seed=1)
    acceptance = [
        update(start, quartic, momentum, uniform(500), step_size=1 / n, n_leapfrog=n)[1]
        for n in (20, 40, 80)
    ]
    errors = -torch.stack(acceptance).log()
    # Falling energies are accepted for sure and show no error. Nor do errors of size zero to
    # second order, which the next order decides.
    visible = (errors > 1e-5).all(dim=0)
    assert visible.sum() > 100
    ratios = (errors[:-1] / errors[1:])[:, visible]
    np.testing.assert_allclose(ratios.median(dim=1).values, 4, rtol=0.02)


def test_acceptance_is_metropolis():
    start, momentum = init(normal(50, 3), quartic), normal(50, 3, seed=1)
    end, last = trajectory(start.position, momentum, 0.4, 7)
    before = start.potential + 0.5 * (momentum**2).sum(dim=1)
    after = quartic(end)[0] + 0.5 * (last**2).sum(dim=1)
    expected = (before - after).exp().clamp(max=1)
    state, acceptance = update(start, quartic, momentum, uniform(50), step_size=0.4, n_leapfrog=7)
    torch.testing.assert_close(acceptance, expected, rtol=1e-9, atol=0)
    accepted = uniform(50) < expected
    assert 0 < accepted.sum() < 50
    assert torch.equal(state.position, torch.where(accepted[:, None], end, start.position))
    for part, expected in zip(state[1:], quartic(state.position), strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e6, -math.inf])
def test_a_chain_with_an_impossible_potential_stays_and_disturbs_no_other(value):
    start = init(normal(5, 2), quartic)

    def broken(position):
        potential, gradient = (part.clone() for part in quartic(position))
        potential[2], gradient[2] = value, math.nan
        return potential, gradient

    numbers = (normal(5, 2, seed=1), uniform(5))
    expected, rates = update(start, quartic, *numbers, step_size=0.2, n_leapfrog=3)
    state, acceptance = update(start, broken, *numbers, step_size=0.2, n_leapfrog=3)
    others = [0, 1, 3, 4]
    assert torch.equal(acceptance[others], rates[others])
    assert all(torch.equal(a[others], b[others]) for a, b in zip(state, expected, strict=True))
    assert acceptance[2] == 0
    assert all(torch.equal(a[2], b[2]) for a, b in zip(state, start, strict=True))


def test_a_gaussian_is_sampled():
    mean = torch.tensor([1.0, -2.0]).double()
    covariance = torch.tensor([[1.0, 0.6], [0.6, 0.5]]).double()
    precision = covariance.inverse()

    def potential(position):
        gradient = (position - mean) @ precision
        return 0.5 * (gradient * (position - mean)).sum(dim=1), gradient

    n_chains = 4000
    state = init(torch.zeros(n_chains, 2).double(), potential)
    for seed in range(30):
        # Step sizes at which about a third is rejected: without that the variance is wrong.
        numbers = normal(n_chains, 2, seed=2 * seed), uniform(n_chains, 2 * seed + 1)
        options = {"step_size": 0.55, "n_leapfrog": 3 + seed % 3}
        state, acceptance = update(state, potential, *numbers, **options)
    assert 0.4 < acceptance.mean() < 0.9
    # The last draws of all chains are independent.
    draws = state.position.numpy()
    error = np.sqrt(np.diag(covariance) / n_chains)
    assert (np.abs(draws.mean(axis=0) - mean.numpy()) < FIVE * error).all()
    squared = covariance.numpy() ** 2 + np.outer(np.diag(covariance), np.diag(covariance))
    assert (np.abs(np.cov(draws.T) - covariance.numpy()) < FIVE * np.sqrt(squared / n_chains)).all()


def gaussian(frequencies):
    """Return chains in a Gaussian, its potential and a generator."""
    generator = torch.Generator().manual_seed(0)

    def potential(position):
        gradient = position * frequencies**2
        return 0.5 * (position * gradient).sum(dim=1), gradient

    start = torch.randn(32, len(frequencies), generator=generator) / frequencies
    return init(start, potential), potential, generator


@pytest.mark.parametrize("target", [0.6, 0.9])
def test_dual_averaging_reaches_the_target(target):
    state, potential, generator = gaussian(torch.linspace(5, 15, 10))
    step, rates = StepSize(first_step_size(state, potential, generator), target), []
    for number in range(600):
        if number == 400:
            step.settle()
        options = {"step_size": step.value, "n_leapfrog": 5}
        state, acceptance = update(state, potential, *draw(state, generator), **options)
        if number < 400:
            step.adapt(float(acceptance.mean()))
        else:
            rates.append(float(acceptance.mean()))
    # The average step size lags behind: 0.04 is what is left of it after 400 trajectories.
    assert np.mean(rates) == pytest.approx(target, abs=0.04)


@pytest.mark.parametrize("frequency", [30.0, 1e4])
def test_first_step_size_is_stable_but_not_tiny(frequency):
    # Leapfrog is unstable above 2 / frequency.
    size = first_step_size(*gaussian(torch.tensor([frequency])))
    assert 0.4 < size * frequency < 2
    # Without a warm-up it stays.
    step = StepSize(size, 0.8)
    step.settle()
    assert step.value == size


# -- posteriors ----------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [None, np.where(np.arange(len(X)) < 10, 4.0, 0.5)])
def test_linear_regression_has_the_closed_form_moments(weight):
    est = regressor(n_samples=250, n_warmup=80, n_leapfrog=6).fit(X, Y, sample_weight=weight)
    rows, new = with_ones(X), with_ones(X_NEW)
    weighted = rows if weight is None else rows * (weight / weight.mean())[:, None]
    covariance = np.linalg.inv(rows.T @ weighted / NOISE + PRIOR * np.eye(3))
    mean = covariance @ weighted.T @ Y / NOISE
    variance = np.einsum("ri,ij,rj->r", new, covariance, new)
    u, diagnostics = est.predict_uncertainty(X_NEW, return_diagnostics=True)
    size = diagnostics.effective_sample_size
    assert (np.abs(est.predict(X_NEW) - new @ mean) < FIVE * np.sqrt(variance / size)).all()
    np.testing.assert_allclose(u.aleatoric, NOISE, rtol=1e-6)
    assert (np.abs(u.epistemic - variance) < FIVE * diagnostics.standard_error).all()
    # The standard error is of the size that the draws of a Gaussian have.
    expected = variance * np.sqrt(2 / size)
    np.testing.assert_allclose(diagnostics.standard_error, expected, rtol=0.3)
    # The draws themselves; squares may be more correlated along a chain: twice the error.
    draws, scale = flat(est), np.sqrt(np.diag(covariance))
    error = np.outer(scale, scale) * math.sqrt(2 / size.min())
    assert (np.abs(np.cov(draws.T) - covariance) < 2 * FIVE * error).all()
    assert est.acceptance_rate_ == pytest.approx(0.8, abs=0.15)


# What the network starts with may be taken for probabilities.
@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.LinkWarning")
def test_logistic_regression_agrees_with_quadrature():
    rows, mean, error, epistemic = logistic_posterior(0.4)
    est = HMCClassifier(linear(1), link="binary_logit", setting="expected", prior_precision=0.4)
    est.set_params(n_samples=400, n_warmup=80, n_leapfrog=6, random_state=0).fit(X[:, :1], LABELS)
    u, diagnostics = est.predict_uncertainty(rows, return_diagnostics=True)
    size = diagnostics.effective_sample_size
    assert (size > 300).all()
    assert (np.abs(est.predict_proba(rows)[:, 1] - mean) < FIVE * error / np.sqrt(size)).all()
    assert (np.abs(u.epistemic - epistemic) < FIVE * diagnostics.standard_error).all()
    assert (diagnostics.standard_error < 0.1 * epistemic + 1e-3).all()


# -- diagnostics ---------------------------------------------------------------------------


def autoregressive(correlation, n_chains, n_draws, *rest, seed=0):
    """Return stationary AR(1) chains of variance one."""
    noise = normal(n_chains, n_draws, *rest, seed=seed)
    draws = noise.clone()
    scale = math.sqrt(1 - correlation**2)
    for step in range(1, n_draws):
        draws[:, step] = correlation * draws[:, step - 1] + scale * noise[:, step]
    return draws


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_effective_sample_size_of_correlated_draws(correlation):
    draws = autoregressive(correlation, 4, 2000, 40)
    size = chain_effective_sample_size(draws)
    expected = 8000 * (1 - correlation) / (1 + correlation)
    assert float(size.mean()) == pytest.approx(expected, rel=0.1)
    np.testing.assert_allclose(size, expected, rtol=0.5)
    assert (size <= 8000).all()


def test_quantities_that_do_not_vary():
    draws = torch.cat([torch.full((3, 10, 1), 0.1), torch.zeros(3, 10, 1)], dim=2).double()
    for rounding in (0.0, 1e-12):
        values = draws * (1 + rounding * normal(3, 10, 2))
        assert split_r_hat(values).tolist() == [1, 1]
    assert chain_effective_sample_size(draws).tolist() == [30, 30]


@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
def test_r_hat_of_shifted_chains(shift):
    draws = normal(2, 4000) + torch.tensor([[-shift], [shift]])
    # The means of four half chains, two at each end, have variance 4 / 3 shift^2.
    assert float(split_r_hat(draws)) == pytest.approx(math.sqrt(1 + 4 / 3 * shift**2), rel=0.03)


# The effective sample size is the smaller one of predictions and of their squared deviations. In an
# AR(1) chain with positive correlation it is that of predictions: squared distances from the middle
# of the chains are less correlated, and their error is overestimated.
@pytest.mark.parametrize(
    ("setting", "correlation", "size", "overestimated"),
    [
        ("given", 0.6, 0.4 / 1.6, 1.0),
        ("expected", 0.6, 0.4 / 1.6, 1.6 / math.sqrt(1.36)),
        ("expected", -0.8, 0.36 / 1.64, 1.0),
    ],
)
def test_standard_errors_are_those_of_repeated_runs(
    setting, correlation, size, overestimated, monkeypatch
):
    """Chains of known correlation take the place of the sampler, again and again."""
    epistemic, errors, sizes = [], [], []
    est = short(linear(1, bias=False), n_chains=4, n_samples=200, setting=setting)
    with torch.no_grad():
        est.estimator.weight.fill_(3.0)
    for seed in range(60):
        draws = autoregressive(correlation, 4, 200, 1, seed=seed).flatten(0, 1)
        monkeypatch.setattr(HMCRegressor, "_draw", lambda *_, w=draws: w)
        est.fit(X[:, :1], Y)
        u, diagnostics = est.predict_uncertainty([[1.0]], return_diagnostics=True)
        epistemic.append(u.epistemic[0])
        errors.append(diagnostics.standard_error[0])
        sizes.append(diagnostics.effective_sample_size[0])
    assert np.mean(sizes) == pytest.approx(800 * size, rel=0.15)
    # The spread of 60 runs is known to a tenth: three standard errors.
    assert np.mean(errors) / np.std(epistemic) == pytest.approx(overestimated, rel=0.3)


def test_stuck_chains_warn():
    est = short(n_samples=10, n_warmup=0, n_leapfrog=1)
    with pytest.warns(ConvergenceWarning, match="not converged: R-hat .* training data"):
        est.fit(100 * X, Y)
    assert est.r_hat_ > 1.1
    with pytest.warns(ConvergenceWarning, match="R-hat .* predicted rows"):
        _, diagnostics = est.predict_uncertainty(X_NEW, return_diagnostics=True)
    assert (diagnostics.r_hat > 1.1).any()


def test_converged_chains_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        est = regressor(n_samples=100, n_warmup=60, n_leapfrog=6).fit(X, Y)
        _, diagnostics = est.predict_uncertainty(X_NEW, return_diagnostics=True)
    assert est.r_hat_ < 1.1
    assert (diagnostics.r_hat < 1.1).all()
    # A drift that all chains share is seen, too; frozen chains are worth their number at most.
    assert split_r_hat(normal(4, 400) + torch.linspace(-2, 2, 400)) > 1.3
    frozen = torch.arange(3.0)[:, None].expand(3, 8)
    assert torch.isinf(split_r_hat(frozen))
    assert 1 <= chain_effective_sample_size(1e-3 * normal(3, 8) + frozen) <= 3


def test_a_loss_that_is_not_finite_near_the_network_is_an_error():
    est = HMCRegressor(linear().float(), noise_variance=1e-6, random_state=0)
    with pytest.raises(ValueError, match="scaled"):
        est.fit(1e18 * X.astype(np.float32), Y)


def test_chunks_of_rows_and_groups_of_models_change_nothing(monkeypatch):
    def chunks(est):
        inputs = est._check_inputs(X)
        return est._fitted.chunks(inputs, est._question(inputs).limits)

    whole = short(n_samples=20).fit(X, Y)
    expected, diagnostics = whole.predict_uncertainty(X, return_diagnostics=True)
    assert len(chunks(whole)) == 1
    limited = short(n_samples=20, memory_limit=1).fit(X, Y)
    # Seven rows of 4 x 20 draws of a double.
    monkeypatch.setattr(hmc, "_BYTES_OF_DRAWS", 7 * 4 * 20 * 8)
    chunked = short(n_samples=20).fit(X, Y)
    assert len(chunks(chunked)) == 5
    for est in (limited, chunked):
        np.testing.assert_allclose(flat(est), flat(whole), rtol=1e-6, atol=1e-9)
        u, columns = est.predict_uncertainty(X, return_diagnostics=True)
        np.testing.assert_allclose(u.epistemic, expected.epistemic, rtol=1e-6)
        for name in ("r_hat", "effective_sample_size", "standard_error"):
            np.testing.assert_allclose(getattr(columns, name), getattr(diagnostics, name), 1e-6)
        assert est.r_hat_ == pytest.approx(whole.r_hat_, rel=1e-6)


def test_draws_keep_their_shape_when_parameters_change():
    est = short().fit(X, Y)
    before = est.predict_uncertainty(X, return_diagnostics=True)[1]
    est.set_params(n_samples=500, n_chains=2)
    with pytest.raises(ValueError, match=r"n_chains, n_samples .* changed after fit"):
        est.predict_uncertainty(X)
    after = est.set_params(n_samples=8, n_chains=4).predict_uncertainty(X, return_diagnostics=True)
    np.testing.assert_array_equal(after[1].standard_error, before.standard_error)
