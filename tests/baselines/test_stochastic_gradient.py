"""SG-HMC and SWAG, against loops by hand, closed forms and quadrature.

Where a tolerance is a number of standard errors it is five of them: a correct method fails such a
test with one seed in a million.
"""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from torch import nn

from sklearn_quam import (
    CyclicalSGHMCClassifier,
    CyclicalSGHMCRegressor,
    HMCRegressor,
    LoRA,
    SWAGClassifier,
    SWAGRegressor,
)
from sklearn_quam.baselines import cyclical_sghmc, swag
from sklearn_quam.baselines._gradient import init, mean_gradient, stable_step_size, update
from sklearn_quam.baselines.swag import WeightMoments

from ..networks import flat, with_ones
from .common import FIVE, LABELS, NOISE, PRIOR, X_NEW, X, Y, linear, logistic_posterior, normal


def cyclical(module=None, kind=CyclicalSGHMCRegressor, **params):
    given = {"prior_precision": PRIOR, "noise_variance": NOISE, "batch_size": len(X)}
    given |= {"n_chains": 3, "n_cycles": 2, "n_steps": 10, "exploration": 0.5}
    given |= {"measure": "variance", "setting": "expected", "random_state": 0}
    return kind(linear() if module is None else module, **{**given, **params})


class Recording(CyclicalSGHMCRegressor):
    """Keeps the loss of the training data."""

    def _draw(self, loss, seed, limits):
        self.loss = loss
        return super()._draw(loss, seed, limits)


def averaged(module=None, **params):
    given = {"noise_variance": NOISE, "measure": "variance", "setting": "expected"}
    given |= {"weight_decay": 0.0, "random_state": 0}
    return SWAGRegressor(linear() if module is None else module, **{**given, **params})


# -- steps ---------------------------------------------------------------------------------


def test_steps_agree_with_a_loop_by_hand():
    curvature = np.array([0.5, 2.0])
    start, noise = normal(3, 2), normal(20, 3, 2, seed=1)
    state = init(start)
    x, v = start.numpy().copy(), np.zeros((3, 2))
    for number, numbers in enumerate(noise):
        options = {"step_size": 0.1 / (1 + number), "friction": 0.2, "temperature": 0.4}
        state = update(state, state.position * torch.tensor(curvature), numbers, **options)
        kick = math.sqrt(2 * 0.2 * options["step_size"] * 0.4) * numbers.numpy()
        v = v - 0.2 * v - options["step_size"] * curvature * x + kick
        x = x + v
    np.testing.assert_allclose(state.position, x, rtol=1e-12)
    np.testing.assert_allclose(state.momentum, v, rtol=1e-12)


def stationary_variance(step, friction, temperature, curvature):
    """Return the variance of the position that the linear recursion of the steps settles at."""
    transition = np.array([[1 - step * curvature, 1 - friction], [-step * curvature, 1 - friction]])
    kick = 2 * friction * step * temperature * np.ones((2, 2))
    return solve_discrete_lyapunov(transition, kick)[0, 0]


@pytest.mark.parametrize(("friction", "temperature"), [(0.1, 1.0), (1.0, 2.0)])
def test_stationary_variance_is_temperature_over_curvature(friction, temperature):
    curvature, step, n_chains = 2.0, 0.02, 5000
    target = temperature / curvature
    state = init(math.sqrt(target) * normal(n_chains, 1))
    for seed in range(300):
        noise = normal(n_chains, 1, seed=seed + 1)
        options = {"step_size": step, "friction": friction, "temperature": temperature}
        state = update(state, curvature * state.position, noise, **options)
    variance = float(state.position.var())
    exact = stationary_variance(step, friction, temperature, curvature)
    assert variance == pytest.approx(exact, rel=FIVE * math.sqrt(2 / n_chains))
    # The bias is of first order in the step size.
    assert abs(exact / target - 1) < step * curvature


@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_of_a_mini_batch(weighted):
    weight = np.linspace(0.5, 2, len(X)) if weighted else None
    est = cyclical(kind=Recording).fit(X, Y, sample_weight=weight)
    position, index = normal(4, 3), torch.tensor([3, 7, 20])
    gradient = mean_gradient(est.loss, position, index, 0.25)
    rows = with_ones(X)[index]
    scale = 1.0 if weight is None else (weight / weight.mean())[index]
    residuals = position.numpy() @ rows.T - Y[index]
    expected = (scale * residuals) @ rows / NOISE / 3 + 0.25 * position.numpy()
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


@pytest.mark.parametrize("noise", [1e-6, 0.5])
def test_steps_are_at_most_the_inverse_of_the_largest_curvature(noise):
    rows = X * [1.0, 3.0]  # one curvature is by far the largest
    loss = cyclical(kind=Recording, noise_variance=noise, learning_rate=1e-6).fit(rows, Y).loss
    largest = np.linalg.eigvalsh(with_ones(rows).T @ with_ones(rows) / len(rows) / noise)[-1]
    bound = stable_step_size(loss, 1e9 / noise, seed=0)
    assert bound == pytest.approx(1 / largest, rel=0.02)
    # Learning rates are for half the squared error.
    assert stable_step_size(loss, bound / noise / 3, seed=0) == pytest.approx(bound / 3)


@pytest.mark.parametrize(
    ("module", "link"), [(nn.Linear(2, 2).double(), "mean_log_variance"), (nn.Linear(2, 2), None)]
)
def test_of_other_losses_the_learning_rate_is_the_step(module, link, monkeypatch):
    steps = []
    monkeypatch.setattr(swag, "update", lambda s, g, **o: steps.append(o) or update(s, g, **o))
    if link is None:
        SWAGClassifier(module, n_epochs=2, learning_rate=1e-4).fit(X, LABELS)
    else:
        SWAGRegressor(module, link=link, n_epochs=2, learning_rate=1e-4).fit(X, Y)
    assert {step["step_size"] for step in steps} == {1e-4}


@pytest.mark.parametrize("method", [SWAGRegressor, CyclicalSGHMCRegressor])
def test_neither_large_learning_rates_nor_sorted_rows_make_anything_diverge(method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    short = {"n_epochs": 5} if method is SWAGRegressor else {"n_steps": 50}
    est = method(net, learning_rate=10.0, random_state=0, **short).fit(3 * X, Y)
    assert np.isfinite(est.predict_uncertainty(X).total).all()
    rows = np.linspace(0, 100, 2000)[:, None]
    y = 0.1 * rows[:, 0] + np.random.default_rng(0).normal(size=2000)
    est = method(Ridge().fit(rows, y), random_state=0, **short).fit(rows, y)
    assert np.isfinite(est.predict_uncertainty(rows[:5]).total).all()


# -- cycles --------------------------------------------------------------------------------


def test_step_sizes_noise_and_samples_of_the_cycles(monkeypatch):
    steps = []

    def spy(state, gradient, noise=None, **options):
        new = update(state, gradient, noise, **options)
        steps.append({**options, "noisy": noise is not None, "position": new.position})
        return new

    monkeypatch.setattr(cyclical_sghmc, "update", spy)
    est = cyclical(n_steps=20, exploration=0.6, samples_per_cycle=3, learning_rate=0.04)
    est.set_params(temperature=0.5, friction=0.3).fit(X, Y)
    assert len(steps) == 40
    phase = np.tile(np.arange(20) / 20, 2)
    sizes = [step["step_size"] for step in steps]
    np.testing.assert_allclose(sizes, NOISE * 0.04 * np.cos(np.pi * phase / 2) ** 2, rtol=1e-6)
    assert [step["noisy"] for step in steps] == [number % 20 >= 12 for number in range(40)]
    assert {step["friction"] for step in steps} == {0.3}
    assert {step["temperature"] for step in steps} == {0.5 / len(X)}
    # Eight noisy steps: the last, and two more at equal distances (8 / 3, rounded).
    kept = [cycle + step for cycle in (0, 20) for step in (14, 16, 19)]
    expected = torch.cat([steps[number]["position"] for number in kept]).numpy()
    np.testing.assert_array_equal(flat(est), expected)


@pytest.mark.parametrize("exploration", [0.0, 0.3, 0.55, 0.8])
@pytest.mark.parametrize("n_steps", [7, 33])
def test_samples_are_distinct_noisy_steps_and_the_last_is_one(n_steps, exploration):
    noisy = n_steps - math.ceil(Fraction(str(exploration)) * n_steps)
    for samples in range(1, noisy + 1):
        est = cyclical(n_steps=n_steps, exploration=exploration, samples_per_cycle=samples)
        kept = est._kept_steps()
        assert len(kept) == samples
        assert max(kept) == n_steps - 1
        assert min(kept) >= n_steps - noisy
        gaps = np.diff(sorted(kept))
        assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1
    with pytest.raises(ValueError, match=f"n_steps={n_steps} .* only {noisy} steps"):
        est.set_params(samples_per_cycle=noisy + 1).fit(X, Y)


# Step sizes fall to zero in a cycle, and so does their bias. Friction is large enough for the
# momentum to follow them: it would be too warm otherwise, by 15 % with a friction of 0.1.
LONG = {"n_chains": 500, "n_cycles": 2, "n_steps": 250, "samples_per_cycle": 2}
LONG |= {"exploration": 0.05, "learning_rate": 0.1, "friction": 0.5}


@pytest.mark.parametrize("batch_size", [10, len(X)])
def test_linear_regression_agrees_with_the_closed_form(batch_size):
    small = {"learning_rate": 0.02, "n_steps": 800, "n_cycles": 1} if batch_size < len(X) else {}
    est = cyclical(**{**LONG, **small, "batch_size": batch_size}).fit(X, Y)
    rows, new = with_ones(X), with_ones(X_NEW)
    covariance = np.linalg.inv(rows.T @ rows / NOISE + PRIOR * np.eye(3))
    mean = new @ covariance @ rows.T @ Y / NOISE
    variance = np.einsum("ri,ij,rj->r", new, covariance, new)
    # Draws of the same chain are correlated: those of different chains alone count, 500. All
    # chains see the same mini-batches, and share a noise of a quarter of the deviation at first.
    allowed = 0.5 if small else FIVE / math.sqrt(500)
    assert (np.abs(est.predict(X_NEW) - mean) < allowed * np.sqrt(variance)).all()
    # 2000 draws, the variance of which is known to 3 to 6 %.
    np.testing.assert_allclose(est.predict_uncertainty(X_NEW).epistemic, variance, rtol=0.2)


# What the network starts with may be taken for probabilities.
@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.LinkWarning")
def test_logistic_regression_agrees_with_quadrature():
    rows, mean, error, epistemic = logistic_posterior(0.4)
    options = {**LONG, "learning_rate": 0.5, "batch_size": len(X), "prior_precision": 0.4}
    est = CyclicalSGHMCClassifier(linear(1), link="binary_logit", random_state=0, **options)
    est.set_params(setting="expected").fit(X[:, :1], LABELS)
    assert (np.abs(est.predict_proba(rows)[:, 1] - mean) < FIVE * error / math.sqrt(500)).all()
    np.testing.assert_allclose(est.predict_uncertainty(rows).epistemic, epistemic, rtol=0.15)


def test_temperature_scales_the_deviations():
    cold, half, warm = (
        flat(cyclical(temperature=temperature).fit(X, Y)) for temperature in (0.0, 0.25, 1.0)
    )
    assert np.abs(warm - cold).max() > 0.01
    # Linear regression: paths are linear in the noise, which has the same seed.
    np.testing.assert_allclose(half - cold, 0.5 * (warm - cold), rtol=1e-6, atol=1e-12)


def test_diverged_chains_are_left_out(monkeypatch):
    calls = []

    def spoil(state, *args, **options):
        calls.append(None)
        state = update(state, *args, **options)
        if len(calls) > 10:  # from the second cycle on
            state.position[1] = math.inf
        return state

    whole = flat(cyclical(samples_per_cycle=2).fit(X, Y))
    monkeypatch.setattr(cyclical_sghmc, "update", spoil)
    with pytest.warns(ConvergenceWarning, match="1 of 3 chains diverged and were left out"):
        est = cyclical(samples_per_cycle=2).fit(X, Y)
    # Nor do samples count that were taken on the way.
    kept = [number for number in range(12) if number % 3 != 1]
    np.testing.assert_allclose(flat(est), whole[kept], rtol=1e-9)
    assert np.isfinite(est.predict_uncertainty(X_NEW).total).all()


def test_what_diverges_is_an_error(monkeypatch):
    for module in (cyclical_sghmc, swag):
        monkeypatch.setattr(module, "stable_step_size", lambda _, wanted, __: wanted)
    for dtype in (torch.float32, torch.float64):  # in double precision the weights stay finite
        est = cyclical(linear().to(dtype), learning_rate=1e10, n_cycles=1, n_steps=20)
        with pytest.raises(ValueError, match=r"All chains diverged. Lower learning_rate, or scale"):
            est.fit(X, Y)
    # With the smaller step size the weights stay finite, but not their squares.
    for learning_rate, momentum in ((1e10, 0.9), (20.0, 0.0)):
        est = averaged(linear().float(), learning_rate=learning_rate, momentum=momentum)
        with pytest.raises(ValueError, match=r"diverged. Lower learning_rate, or scale"):
            est.fit(X, Y)


# -- SWAG ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [2, 5, 50])
def test_draws_have_the_moments_of_the_weights(rank):
    weights = 100 + normal(12, 4) @ normal(4, 4, seed=1)
    moments = WeightMoments(rank)
    for row in weights:
        moments.add(row)
    mean = weights.mean(dim=0)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-12)
    deviations = (weights[-rank:] - mean).numpy()
    expected = np.diag(weights.numpy().var(axis=0, ddof=1)) / 2
    expected += deviations.T @ deviations / (len(deviations) - 1) / 2
    n_draws = 20000
    draws = moments.draw(n_draws, torch.Generator().manual_seed(0)).numpy()
    variance = np.diag(expected)
    assert (np.abs(draws.mean(axis=0) - mean.numpy()) < FIVE * np.sqrt(variance / n_draws)).all()
    error = np.sqrt((expected**2 + np.outer(variance, variance)) / n_draws)
    assert (np.abs(np.cov(draws.T) - expected) < FIVE * error).all()


@pytest.mark.slow
@pytest.mark.parametrize("duration", [2.0, 4.0])
def test_shuffled_epochs_find_their_closed_form(duration):
    """Mini-batches without replacement balance each other: only long epochs find the posterior."""
    # A single weight and inputs of +1 and -1: the curvature of every mini-batch is one.
    n_rows, batch, n_epochs, rng = 120, 6, 250, np.random.default_rng(0)
    signs = np.where(np.arange(n_rows) % 2, 1.0, -1.0)[:, None]
    noise = rng.normal(size=n_rows)
    y = signs[:, 0] * 0.8 + math.sqrt(NOISE) * (noise - noise.mean()) / noise.std()
    steps = n_rows // batch
    learning_rate = duration / steps
    # What is left at the end of an epoch of the noise of each step.
    decay = learning_rate * (1 - learning_rate) ** np.arange(steps)
    batch_variance = n_rows / batch * (n_rows - batch) / (n_rows - 1)
    covariance = (np.eye(steps) * steps - 1) / (steps - 1) * batch_variance
    expected = decay @ covariance @ decay / (1 - (1 - learning_rate) ** (2 * steps))
    module = linear(1, bias=False)
    with torch.no_grad():
        module.weight.fill_(float(np.mean(signs[:, 0] * y)))
    options = {"n_epochs": n_epochs, "rank": n_epochs, "n_samples": 5000, "batch_size": batch}
    est = averaged(module, learning_rate=learning_rate, momentum=0.0, **options).fit(signs, y)
    variance = est.predict_uncertainty([[1.0]]).epistemic[0]
    error = math.sqrt(variance * (1 / 5000 + 2 / n_epochs))
    assert abs(est.predict([[1.0]])[0] - module.weight.item()) < FIVE * error
    # 250 epochs: three standard errors.
    assert variance / (NOISE / n_rows) == pytest.approx(expected, rel=0.3)


def test_weights_that_do_not_move_are_the_given_network():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    est = SWAGClassifier(module, learning_rate=1e-9, n_epochs=3, setting="expected")
    est.fit(X, LABELS)
    proba = module(torch.tensor(X_NEW)).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(est.predict_proba(X_NEW), proba, rtol=1e-6)
    assert est.predict_uncertainty(X_NEW).epistemic.max() < 1e-9

    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return torch.zeros(len(x), 2) + 0 * self.unused

    est = SWAGClassifier(Constant(), weight_decay=0.0, random_state=0).fit(X, LABELS)
    assert (est.predict_uncertainty(X).epistemic == 0).all()


def test_a_descent_in_full_batches_is_that_of_torch():
    module = linear()
    est = averaged(module, learning_rate=0.1, momentum=0.8, weight_decay=0.01, n_epochs=6)
    est.set_params(n_samples=4000, batch_size=len(X)).fit(X, Y)
    twin = copy.deepcopy(module)
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.1 * NOISE, momentum=0.8, weight_decay=0.01)
    path = []
    for _ in range(6):
        optimiser.zero_grad()
        residuals = twin(torch.tensor(X))[:, 0] - torch.tensor(Y)
        (residuals.square().mean() / 2 / NOISE).backward()
        optimiser.step()
        path.append(np.r_[twin.weight.detach()[0], twin.bias.detach()])
    error = np.std(path, axis=0, ddof=1) / math.sqrt(4000)
    assert (np.abs(flat(est).mean(axis=0) - np.mean(path, axis=0)) < FIVE * error).all()
    np.testing.assert_allclose(flat(est).std(axis=0), error * math.sqrt(4000), rtol=0.06)


# -- all methods that sample weights once --------------------------------------------------

SAMPLERS = {
    HMCRegressor: {"n_samples": 8, "n_warmup": 10, "n_leapfrog": 3},
    CyclicalSGHMCRegressor: {"n_steps": 10, "samples_per_cycle": 2},
    SWAGRegressor: {"n_samples": 32, "n_epochs": 4, "batch_size": 5},
}


def sampler(method, module, **params):
    given = {"noise_variance": NOISE, "measure": "variance", "setting": "expected"}
    return method(module, **{**SAMPLERS[method], **given, "random_state": 0, **params})


@pytest.fixture(params=SAMPLERS, ids=lambda method: method.__name__)
def method(request):
    return request.param


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ("all", {"0.weight", "0.bias", "2.weight", "2.bias"}),
        ("last_layer", {"2.weight", "2.bias"}),
        (LoRA(rank=1, alpha=2.0, layers="0"), {"0.weight.A", "0.weight.B"}),
    ],
    ids=["all", "last_layer", "lora"],
)
def test_only_the_chosen_parameters_change(method, parameters, names):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    est = sampler(method, module, parameters=parameters).fit(X, Y)
    assert set(est._fitted.models.weights) == names
    assert all(value.std(dim=0).min() > 0 for value in est._fitted.models.weights.values())
    predictions = []
    for number in range(len(flat(est))):
        weights = {name: value[number] for name, value in est._fitted.models.weights.items()}
        if isinstance(parameters, LoRA):
            change = 2.0 * weights["0.weight.B"] @ weights["0.weight.A"]
            weights = {"0.weight": module[0].weight + change}
        output = torch.func.functional_call(module, weights, (torch.tensor(X_NEW),))
        predictions.append(output.detach().numpy()[:, 0])
    np.testing.assert_allclose(est.predict(X_NEW), np.mean(predictions, axis=0), rtol=1e-6)
    epistemic = est.predict_uncertainty(X_NEW).epistemic
    np.testing.assert_allclose(epistemic, np.var(predictions, axis=0), rtol=1e-6)
    # The other setting uses the same models.
    given = module(torch.tensor(X_NEW)).detach().numpy()[:, 0]
    epistemic = est.set_params(setting="given").predict_uncertainty(X_NEW).epistemic
    np.testing.assert_allclose(epistemic, ((predictions - given) ** 2).mean(axis=0), rtol=1e-6)


def test_a_memory_limit_changes_nothing(method):
    est = sampler(method, linear()).fit(X, Y)
    limited = sampler(method, linear(), memory_limit=1).fit(X, Y)
    inputs = limited._check_inputs(X)
    rows, _ = limited._fitted.models.given(inputs[:])
    groups = limited._fitted.models.predictions(rows.parts, limited._question(inputs).limits)
    assert len(list(groups)) == len(flat(limited))
    # Hamiltonian Monte Carlo adds up the loss in smaller groups of rows.
    np.testing.assert_allclose(flat(limited), flat(est), rtol=1e-9)
    for a, b in zip(limited.predict_uncertainty(X), est.predict_uncertainty(X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
