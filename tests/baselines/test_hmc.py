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
from torch import nn

from sklearn_quam import HMCClassifier, HMCRegressor
from sklearn_quam._posterior.estimate import chain_effective_sample_size, split_r_hat
from sklearn_quam.baselines import hmc
from sklearn_quam.baselines._hamiltonian import StepSize, draw, first_step_size, init, update

from ..networks import flat, with_ones

FIVE = 5.0
PRIOR, NOISE = 0.7, 0.3

_rng = np.random.default_rng(0)
X = _rng.normal(size=(30, 2))
Y = X @ [1.0, -0.5] + 0.3 + math.sqrt(NOISE) * _rng.normal(size=30)
X_NEW = np.array([[0.0, 0.0], [1.0, -1.0], [4.0, 2.0]])
LABELS = (2 * X[:, 0] + _rng.logistic(size=30) > 0.5).astype(int)


def linear(n_in=2, seed=0, **options):
    torch.manual_seed(seed)
    return nn.Linear(n_in, 1, **options).double()


def regressor(module=None, **params):
    given = {"prior_precision": PRIOR, "noise_variance": NOISE, "measure": "variance"}
    return HMCRegressor(
        linear() if module is None else module,
        **{**given, "setting": "expected", "random_state": 0, **params},
    )


def short(module=None, **params):
    """Return a regressor that is fitted in no time."""
    return regressor(module, **{"n_samples": 8, "n_warmup": 10, "n_leapfrog": 3, **params})


def linear_posterior(X, y, weight=1.0):
    """Return mean and covariance of the weights and the bias of linear regression."""
    rows = with_ones(X)
    weighted = rows * np.broadcast_to(weight, len(rows))[:, None]
    covariance = np.linalg.inv(rows.T @ weighted / NOISE + PRIOR * np.eye(rows.shape[1]))
    return covariance @ weighted.T @ y / NOISE, covariance


def quartic(position):
    """Return a potential that is no quadratic, and its gradient, in every direction alike."""
    potential = (0.5 * position**2 + 0.1 * position**4).sum(dim=1)
    return potential, position + 0.4 * position**3


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


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


def test_a_rejected_chain_stays():
    start = init(normal(6, 2), quartic)
    never = torch.ones(6).double()
    state, acceptance = update(
        start, quartic, normal(6, 2, seed=1), never, step_size=0.3, n_leapfrog=4
    )
    assert (acceptance > 0).all()
    assert all(torch.equal(new, old) for new, old in zip(state, start, strict=True))


@pytest.mark.parametrize("slope", [1.0, math.nan])
@pytest.mark.parametrize("value", [math.inf, math.nan, 1e6, -math.inf])
def test_a_chain_with_an_impossible_potential_stays_and_disturbs_no_other(value, slope):
    start = init(normal(5, 2), quartic)

    def broken(position):
        potential, gradient = quartic(position)
        potential, gradient = potential.clone(), gradient.clone()
        potential[2], gradient[2] = value, slope
        return potential, gradient

    numbers = (normal(5, 2, seed=1), uniform(5))
    expected, rates = update(start, quartic, *numbers, step_size=0.2, n_leapfrog=3)
    state, acceptance = update(start, broken, *numbers, step_size=0.2, n_leapfrog=3)
    others = [0, 1, 3, 4]
    assert torch.equal(acceptance[others], rates[others])
    assert all(torch.equal(a[others], b[others]) for a, b in zip(state, expected, strict=True))
    assert acceptance[2] == 0
    assert all(torch.equal(a[2], b[2]) for a, b in zip(state, start, strict=True))


def test_chains_in_a_batch_are_chains_on_their_own():
    momentum, numbers = normal(7, 3, seed=1), uniform(7)
    options = {"step_size": 0.6, "n_leapfrog": 5}
    start = init(normal(7, 3), quartic)
    together, rates = update(start, quartic, momentum, numbers, **options)
    for chain in range(7):
        one = slice(chain, chain + 1)
        alone = init(start.position[one], quartic)
        alone, rate = update(alone, quartic, momentum[one], numbers[one], **options)
        torch.testing.assert_close(together.position[one], alone.position, rtol=1e-13, atol=0)
        torch.testing.assert_close(rates[one], rate, rtol=1e-12, atol=0)


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
        state, acceptance = update(
            state,
            potential,
            normal(n_chains, 2, seed=2 * seed),
            uniform(n_chains, 2 * seed + 1),
            step_size=0.55,
            n_leapfrog=3 + seed % 3,
        )
    assert 0.4 < acceptance.mean() < 0.9
    # The last draws of all chains are independent.
    draws = state.position.numpy()
    error = np.sqrt(np.diag(covariance) / n_chains)
    assert (np.abs(draws.mean(axis=0) - mean.numpy()) < FIVE * error).all()
    squared = covariance.numpy() ** 2 + np.outer(np.diag(covariance), np.diag(covariance))
    assert (np.abs(np.cov(draws.T) - covariance.numpy()) < FIVE * np.sqrt(squared / n_chains)).all()


def mover(frequencies):
    """Return the start of chains in a Gaussian, and a function that moves them."""
    generator = torch.Generator().manual_seed(0)

    def potential(position):
        gradient = position * frequencies**2
        return 0.5 * (position * gradient).sum(dim=1), gradient

    start = torch.randn(32, len(frequencies), generator=generator) / frequencies
    return init(start, potential), potential, generator


@pytest.mark.slow
@pytest.mark.parametrize("target", [0.6, 0.8, 0.95])
def test_dual_averaging_reaches_the_target(target):
    state, potential, generator = mover(torch.linspace(5, 15, 10))
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


def test_without_warm_up_the_first_step_size_stays():
    step = StepSize(0.25, 0.8)
    step.settle()
    assert step.value == 0.25


@pytest.mark.parametrize("frequency", [30.0, 1e4])
def test_first_step_size_is_stable_but_not_tiny(frequency):
    # Leapfrog is unstable above 2 / frequency.
    assert 0.4 < first_step_size(*mover(torch.tensor([frequency]))) * frequency < 2


# -- posteriors ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def linear_fit():
    return regressor(n_samples=500, n_warmup=100, n_leapfrog=6).fit(X, Y)


@pytest.mark.slow
def test_weights_of_linear_regression_have_the_closed_form_moments(linear_fit):
    mean, covariance = linear_posterior(X, Y)
    draws = flat(linear_fit)
    sizes = [
        chain_effective_sample_size(torch.tensor(column).unflatten(0, (4, -1)))
        for column in (draws - mean).T
    ]
    size = float(min(sizes))
    assert size > 500
    scale = np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(axis=0) - mean) < FIVE * scale / math.sqrt(size)).all()
    # Squares may be more correlated along a chain than the values: twice the error.
    error = np.outer(scale, scale) * math.sqrt(2 / size)
    assert (np.abs(np.cov(draws.T) - covariance) < 2 * FIVE * error).all()


@pytest.mark.slow
def test_predictions_of_linear_regression_have_the_closed_form_moments(linear_fit):
    mean, covariance = linear_posterior(X, Y)
    rows = with_ones(X_NEW)
    variance = np.einsum("ri,ij,rj->r", rows, covariance, rows)
    u, diagnostics = linear_fit.predict_uncertainty(X_NEW, return_diagnostics=True)
    error = np.sqrt(variance / diagnostics.effective_sample_size)
    assert (np.abs(linear_fit.predict(X_NEW) - rows @ mean) < FIVE * error).all()
    np.testing.assert_allclose(u.aleatoric, NOISE, rtol=1e-6)
    assert (np.abs(u.epistemic - variance) < FIVE * diagnostics.standard_error).all()
    # The standard error is of the size that the draws of a Gaussian have.
    expected = variance * np.sqrt(2 / diagnostics.effective_sample_size)
    np.testing.assert_allclose(diagnostics.standard_error, expected, rtol=0.25)


@pytest.mark.slow
def test_sample_weights_are_exponents_of_the_likelihood():
    weight = np.where(np.arange(len(X)) < 10, 4.0, 0.5)
    est = regressor(n_samples=250, n_warmup=80, n_leapfrog=6).fit(X, Y, sample_weight=weight)
    mean, covariance = linear_posterior(X, Y, weight / weight.mean())
    rows = with_ones(X_NEW)
    variance = np.einsum("ri,ij,rj->r", rows, covariance, rows)
    u, diagnostics = est.predict_uncertainty(X_NEW, return_diagnostics=True)
    error = np.sqrt(variance / diagnostics.effective_sample_size)
    assert (np.abs(est.predict(X_NEW) - rows @ mean) < FIVE * error).all()
    assert (np.abs(u.epistemic - variance) < FIVE * diagnostics.standard_error).all()
    # The test tells weights from no weights.
    unweighted = rows @ linear_posterior(X, Y)[0]
    assert (np.abs(est.predict(X_NEW) - unweighted) > FIVE * error).any()


@pytest.mark.slow
def test_logistic_regression_agrees_with_quadrature():
    x, prior = X[:, :1], 0.4
    grid = np.linspace(-8, 8, 321)
    slope, bias = (axis.ravel() for axis in np.meshgrid(grid, grid))
    signs = 2 * LABELS - 1
    scores = slope[:, None] * x[:, 0] + bias[:, None]
    log_posterior = -np.logaddexp(0, -signs * scores).sum(axis=1)
    log_posterior -= 0.5 * prior * (slope**2 + bias**2)
    weight = np.exp(log_posterior - log_posterior.max())
    weight /= weight.sum()
    rows = np.array([[-3.0], [0.0], [1.0]])
    proba = 1 / (1 + np.exp(-(slope[:, None] * rows[:, 0] + bias[:, None])))
    mean = weight @ proba

    def entropy(p):
        return -p * np.log(p) - (1 - p) * np.log1p(-p)

    epistemic = entropy(mean) - weight @ entropy(proba)
    est = HMCClassifier(
        linear(1),
        link="binary_logit",
        setting="expected",
        prior_precision=prior,
        n_samples=400,
        n_warmup=80,
        n_leapfrog=6,
        random_state=0,
    ).fit(x, LABELS)
    u, diagnostics = est.predict_uncertainty(rows, return_diagnostics=True)
    error = np.sqrt((weight @ proba**2 - mean**2) / diagnostics.effective_sample_size)
    assert (diagnostics.effective_sample_size > 300).all()
    assert (np.abs(est.predict_proba(rows)[:, 1] - mean) < FIVE * error).all()
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


def test_effective_sample_size_predicts_the_error_of_means():
    draws = autoregressive(0.7, 4, 400, 500)
    size = chain_effective_sample_size(draws)
    z = draws.mean(dim=(0, 1)) * size.sqrt()
    # 500 standard normal numbers: their mean square is one, give or take sqrt(2 / 500).
    assert float(z.square().mean()) == pytest.approx(1, abs=FIVE * math.sqrt(2 / 500))


def test_effective_sample_size_of_chains_that_disagree_is_their_number_at_most():
    draws = normal(4, 500) * 1e-3 + torch.arange(4.0)[:, None]
    assert 1 <= chain_effective_sample_size(draws) <= 4


def test_quantities_that_do_not_vary():
    draws = torch.cat([torch.full((3, 10, 1), 0.1), torch.zeros(3, 10, 1)], dim=2).double()
    assert split_r_hat(draws).tolist() == [1, 1]
    assert chain_effective_sample_size(draws).tolist() == [30, 30]
    rounding = draws * (1 + 1e-12 * normal(3, 10, 2))
    assert split_r_hat(rounding).tolist() == [1, 1]


def test_r_hat_of_converged_chains_is_close_to_one():
    r_hat = split_r_hat(normal(4, 500, 100))
    assert (r_hat > 0.99).all()
    assert (r_hat < 1.03).all()


@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0])
def test_r_hat_of_shifted_chains(shift):
    draws = normal(2, 4000) + torch.tensor([[-shift], [shift]])
    # The means of four half chains, two at each end, have variance 4 / 3 shift^2.
    assert float(split_r_hat(draws)) == pytest.approx(math.sqrt(1 + 4 / 3 * shift**2), rel=0.03)


@pytest.mark.parametrize("n_chains", [1, 4])
def test_r_hat_sees_a_drift_that_all_chains_share(n_chains):
    draws = normal(n_chains, 400) + torch.linspace(-2, 2, 400)
    assert split_r_hat(draws) > 1.3


def test_r_hat_of_frozen_chains_is_infinite():
    assert torch.isinf(split_r_hat(torch.arange(3.0)[:, None].expand(3, 8)))


# The effective sample size is the smaller one of predictions and of their squared deviations. In an
# AR(1) chain with positive correlation it is that of predictions: squared distances from the middle
# of the chains are less correlated, and their error is overestimated.
@pytest.mark.slow
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
    assert est.acceptance_rate_ == pytest.approx(0.8, abs=0.15)


def test_a_loss_that_is_not_finite_near_the_network_is_an_error():
    est = HMCRegressor(linear().float(), noise_variance=1e-6, random_state=0)
    with pytest.raises(ValueError, match="scaled"):
        est.fit(1e18 * X.astype(np.float32), Y)


# -- memory --------------------------------------------------------------------------------


def chunks(est):
    inputs = est._check_inputs(X)
    return est._fitted.chunks(inputs, est._question(inputs).limits)


@pytest.mark.slow
def test_chunks_of_rows_and_groups_of_models_change_nothing(monkeypatch):
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
            np.testing.assert_allclose(
                getattr(columns, name), getattr(diagnostics, name), rtol=1e-6
            )
        assert est.r_hat_ == pytest.approx(whole.r_hat_, rel=1e-6)
