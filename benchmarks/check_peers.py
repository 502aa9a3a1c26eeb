"""The package's Laplace approximation, HMC and detectors against independent implementations.

- Laplace approximation of the last layer: laplace-torch computes the same numbers, so covariances
  of the outputs, probit probabilities and log marginal likelihoods must agree up to rounding.
  laplace-torch keeps weight and bias of a layer apart in its Kronecker factors, the package takes
  them together: there, laplace-torch gets the bias as the weight of a constant feature.
- HMC: numpyro's NUTS draws from the same posterior of the same small network, so predictive means
  and spreads on a grid must agree up to Monte-Carlo error. The errors of NUTS come from effective
  sample sizes, those of HMC from the spread of independent fits; both together give the "noise",
  the mean difference that they alone would make.
- Detectors: pytorch-ood computes the same scores, which must agree up to rounding in single
  precision.
- laplace-torch and numpyro themselves against the closed form of Bayesian linear regression.

Run with ``make check-peers``, or, where ``benchmarks/peers-requirements.txt`` is installed,
``python -m benchmarks.check_peers``; writes ``benchmarks/results/peers.json``. The exit status is 1
if anything disagrees, or is too noisy to tell.
"""

import argparse
import copy
import json
import sys
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import torch
from laplace import Laplace
from laplace.curvature import CurvlinopsGGN
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from scipy.special import rel_entr, softmax
from scipy.stats import multivariate_normal
from sklearn.datasets import load_diabetes, load_digits, make_moons
from sklearn.preprocessing import scale
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

import sklearn_quam

from . import peer_detectors
from .digests import COMPARED, stamp

STRUCTURES = ("full", "kron", "diag")
PRIOR_PRECISIONS = (0.01, 1.0, 100.0)
NOISE_VARIANCE = 0.25
# Of the largest magnitude: both sides compute the same in float64.
EXACT = 1e-4
# Mean absolute differences over a grid: of means and standard deviations in posterior standard
# deviations, of probabilities, and of mutual information in nats.
SAMPLED = 0.1
SAMPLED_PROBA = 0.015
SAMPLED_NATS = 0.015
# How far R-hat of the predictions may be from 1: chains that disagree prove nothing.
R_HAT = 0.05
PACKAGES = (
    "sklearn_quam",
    "torch",
    "numpy",
    "scikit-learn",
    "laplace-torch",
    "curvlinops-for-pytorch",
    "numpyro",
    "jax",
    "pytorch-ood",
)


class Row(NamedTuple):
    """A comparison; ``noise`` is the difference expected from Monte-Carlo error alone."""

    check: str
    case: str
    quantity: str
    difference: float
    noise: float
    tolerance: float

    @property
    def ok(self):
        # More noise than half the tolerance would decide nothing; NaN must fail, too.
        return self.difference <= self.tolerance and self.noise <= self.tolerance / 2

    def __str__(self):
        noise = f"{self.noise:10.2g}" if self.noise else " " * 10
        verdict = "ok" if self.ok else "DISAGREES" if self.noise <= self.tolerance / 2 else "NOISY"
        return (
            f"{self.check:<30} {self.case:<28} {self.quantity:<24} {self.difference:10.2g}{noise}"
            f"{self.tolerance:10.2g}  {verdict}"
        )


def trained(net, X, y, loss, n_steps, weight_decay=0.0):
    X, y = torch.as_tensor(X), torch.as_tensor(y)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(n_steps):
        optimizer.zero_grad()
        penalty = sum((p**2).sum() for p in net.parameters())
        (loss(net(X), y) + weight_decay * penalty).backward()
        optimizer.step()
    return net.eval()


def mlp(*sizes):
    layers = []
    for n_in, n_out in pairwise(sizes):
        layers += [nn.Linear(n_in, n_out, dtype=torch.float64), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


# -- Laplace approximation -----------------------------------------------------------------------


class AppendOne(nn.Module):
    def forward(self, features):
        return torch.cat([features, torch.ones_like(features[:, :1])], dim=1)


def without_bias(net):
    """Return the same network with the last bias as the weight of a constant feature."""
    *body, last = copy.deepcopy(net)
    head = nn.Linear(last.in_features + 1, last.out_features, bias=False, dtype=torch.float64)
    head.weight.data = torch.cat([last.weight.data, last.bias.data[:, None]], dim=1)
    return nn.Sequential(*body, AppendOne(), head).eval()


@contextmanager
def double_precision():
    """Make float64 the default: laplace-torch multiplies curvatures with a default-typed matrix."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@double_precision()
def laplace_of_peer(task, net, X, y, X_new, structure, prior_precision):
    """Return mean and covariance of the outputs and log marginal likelihood by laplace-torch."""
    net = without_bias(net) if structure == "kron" else copy.deepcopy(net)
    X, y, X_new = map(torch.as_tensor, (X, y, X_new))
    noise = {"sigma_noise": NOISE_VARIANCE**0.5} if task == "regression" else {}
    approximation = Laplace(
        net,
        task,
        subset_of_weights="last_layer",
        hessian_structure=structure,
        prior_precision=prior_precision,
        backend=CurvlinopsGGN,
        **noise,
    )
    data = TensorDataset(X, y[:, None] if task == "regression" else y)
    approximation.fit(DataLoader(data, batch_size=len(data)))
    jacobians, mean = approximation.backend.last_layer_jacobians(X_new)
    covariance = approximation.functional_variance(jacobians)
    evidence = approximation.log_marginal_likelihood()
    result = [mean.numpy(), covariance.detach().numpy(), evidence.item()]
    if task == "classification":
        result.append(approximation(X_new, pred_type="glm", link_approx="probit").numpy())
    return result


def laplace_of_package(task, net, X, y, X_new, structure, prior_precision):
    options = {"structure": structure, "prior_precision": prior_precision}
    if task == "regression":
        est = sklearn_quam.LaplaceRegressor(net, noise_variance=NOISE_VARIANCE, **options)
    else:
        est = sklearn_quam.LaplaceClassifier(net, **options)
    est.set_params(parameters="last_layer").fit(X, y)
    mean, covariance = est.score_distribution(X_new)
    result = [mean, covariance, est.log_marginal_likelihood_]
    if task == "classification":
        variance = np.diagonal(covariance, axis1=1, axis2=2)
        result.append(softmax(mean / np.sqrt(1 + np.pi / 8 * variance), axis=1))
    return result


def relative_difference(ours, theirs):
    """Return the largest difference relative to the largest magnitude; infinity for shapes."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return np.inf
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def networks_for_laplace():
    """Return (name, task, network, X, y, X_new) of classification and regression."""
    torch.manual_seed(0)
    X, y = load_digits(return_X_y=True)
    X = X / 16
    net = trained(mlp(64, 32, 24, 10), X[:500], y[:500], cross_entropy, 150)
    yield "digits", "classification", net, X[:500], y[:500], X[-100:]
    X, y = load_diabetes(return_X_y=True)
    X, y = scale(X), scale(y)
    net = trained(mlp(10, 20, 20, 1), X[:300], y[:300, None], mse_loss, 150)
    yield "diabetes", "regression", net, X[:300], y[:300], X[300:]


def check_laplace():
    quantities = ("mean", "covariance", "log marginal likelihood", "probit probability")
    for name, task, *data in networks_for_laplace():
        for structure in STRUCTURES:
            for prior_precision in PRIOR_PRECISIONS:
                case = f"{name}, {structure}, {prior_precision:g}"
                theirs = laplace_of_peer(task, *data, structure, prior_precision)
                ours = laplace_of_package(task, *data, structure, prior_precision)
                for quantity, a, b in zip(quantities, ours, theirs, strict=False):
                    difference = relative_difference(a, b)
                    yield Row("Laplace, laplace-torch", case, quantity, difference, 0.0, EXACT)


def check_peer_laplace():
    """Compare laplace-torch with Bayesian linear regression on the features of the last layer."""
    *_, (_, task, net, X, y, X_new) = networks_for_laplace()
    with torch.no_grad():
        features, features_new = (
            np.c_[net[:-1](torch.as_tensor(rows)).numpy(), np.ones(len(rows))]
            for rows in (X, X_new)
        )
    for prior_precision in PRIOR_PRECISIONS:
        mean, covariance, evidence = linear_regression(features, y, features_new, prior_precision)
        # Only at the maximum of the posterior is the marginal likelihood the exact one.
        weights = np.linalg.solve(
            features.T @ features + NOISE_VARIANCE * prior_precision * np.eye(features.shape[1]),
            features.T @ y,
        )
        net[-1].weight.data[:] = torch.as_tensor(weights[:-1])
        net[-1].bias.data[:] = float(weights[-1])
        theirs = laplace_of_peer(task, net, X, y, X_new, "full", prior_precision)
        expected = (mean[:, None], np.diagonal(covariance)[:, None, None], evidence)
        quantities = ("mean", "covariance", "log marginal likelihood")
        for quantity, a, b in zip(quantities, theirs, expected, strict=True):
            case = f"diabetes, full, {prior_precision:g}"
            difference = relative_difference(a, b)
            yield Row("laplace-torch, closed form", case, quantity, difference, 0.0, EXACT)


def linear_regression(features, y, features_new, prior_precision):
    """Return mean and covariance at new rows and the log marginal likelihood, as a GP would."""
    kernel = features @ features.T / prior_precision + NOISE_VARIANCE * np.eye(len(features))
    cross = features_new @ features.T / prior_precision
    mean = cross @ np.linalg.solve(kernel, y)
    prior = features_new @ features_new.T / prior_precision
    covariance = prior - cross @ np.linalg.solve(kernel, cross.T)
    return mean, covariance, multivariate_normal(cov=kernel).logpdf(y)


# -- HMC -----------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """A network's layer sizes, data, grid, and noise variance (None for classification)."""

    name: str
    sizes: tuple
    X: np.ndarray
    y: np.ndarray
    grid: np.ndarray
    noise_variance: float | None


class Estimate(NamedTuple):
    """A quantity on the grid with Monte-Carlo standard errors."""

    value: np.ndarray
    error: np.ndarray


def sine():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (30, 1))
    y = np.sin(4 * x[:, 0]) + 0.2 * rng.normal(size=30)
    return Problem(
        "sine, 1-20-20-1", (1, 20, 20, 1), x, y, np.linspace(-1.5, 1.5, 31)[:, None], 0.04
    )


def moons():
    X, y = make_moons(60, noise=0.2, random_state=0)
    axis = np.linspace(-1.5, 2.5, 9), np.linspace(-1.5, 2, 8)
    grid = np.stack(np.meshgrid(*axis), axis=-1).reshape(-1, 2)
    return Problem("two moons, 2-20-20-2", (2, 20, 20, 2), X, y, grid, None)


def linear():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 3))
    y = X @ [1.0, -0.5, 0.0] + 0.5 * rng.normal(size=20)
    return Problem("linear, 3-1", (3, 1), X, y, 2 * rng.normal(size=(20, 3)), NOISE_VARIANCE)


def outputs(weights, sizes, X):
    """Return what the tanh network with these weights and biases, one vector, says."""
    start = 0
    for layer, (n_in, n_out) in enumerate(pairwise(sizes)):
        matrix = weights[start : start + n_in * n_out].reshape(n_in, n_out)
        start += n_in * n_out
        X = (jnp.tanh(X) if layer else X) @ matrix + weights[start : start + n_out]
        start += n_out
    return X


def nuts_samples(problem, n_warmup, n_samples, n_chains=4):
    """Return sampled means or probabilities of class 1, (n_chains, n_samples, n_grid)."""
    sizes = problem.sizes
    n_weights = sum((n_in + 1) * n_out for n_in, n_out in pairwise(sizes))

    def model():
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([n_weights]).to_event(1))
        out = outputs(weights, sizes, problem.X)
        if problem.noise_variance is None:
            numpyro.sample("y", dist.Categorical(logits=out), obs=problem.y)
        else:
            numpyro.sample("y", dist.Normal(out[:, 0], problem.noise_variance**0.5), obs=problem.y)

    sampler = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model),
        num_warmup=n_warmup,
        num_samples=n_samples,
        num_chains=n_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    sampler.run(jax.random.PRNGKey(0))
    weights = sampler.get_samples(group_by_chain=True)["weights"]
    drawn = jax.vmap(jax.vmap(lambda w: outputs(w, sizes, problem.grid)))(weights)
    if problem.noise_variance is None:
        drawn = jax.nn.softmax(drawn, axis=-1)[..., 1]
    else:
        drawn = drawn[..., 0]
    return np.asarray(drawn)


def mean_of(draws):
    """Estimate the mean of draws (n_chains, n_samples, n_grid)."""
    return Estimate(
        draws.mean(axis=(0, 1)), draws.std(axis=(0, 1)) / np.sqrt(effective_sample_size(draws))
    )


def deviation_of(draws):
    """Estimate the standard deviation, by the delta method from the variance."""
    variance = mean_of((draws - draws.mean(axis=(0, 1))) ** 2)
    deviation = np.sqrt(variance.value)
    return Estimate(deviation, variance.error / (2 * deviation))


def mutual_information_of(draws):
    """Estimate the mutual information of label and network, from probabilities of class 1."""
    mean = draws.mean(axis=(0, 1))
    divergence = rel_entr(draws, mean) + rel_entr(1 - draws, 1 - mean)
    return mean_of(divergence)


def repeated(values):
    """Estimate from independent fits (n_fits, n_grid)."""
    # So few fits tell the error of a single point badly, but only its mean over the grid is used.
    return Estimate(np.mean(values, axis=0), np.std(values, axis=0, ddof=1) / len(values) ** 0.5)


def network_for_hmc(problem):
    """Return a network at a mode of the posterior, where the package's chains start."""
    torch.manual_seed(0)
    net, n_rows = mlp(*problem.sizes), len(problem.y)
    if problem.noise_variance is None:
        return trained(net, problem.X, problem.y, cross_entropy, 500, 0.5 / n_rows)
    weight_decay = problem.noise_variance / n_rows
    return trained(net, problem.X, problem.y[:, None], mse_loss, 500, weight_decay)


def hmc_estimates(problem, n_fits):
    """Return the package's estimates of the mean and of the spread, and the largest R-hat."""
    net = network_for_hmc(problem)
    options = {"n_chains": 4, "n_samples": 300, "n_warmup": 150, "prior_precision": 1.0}
    means, spreads, r_hats = [], [], []
    for seed in range(n_fits):
        if problem.noise_variance is None:
            est = sklearn_quam.HMCClassifier(net, **options)
        else:
            noise = {"noise_variance": problem.noise_variance, "measure": "variance"}
            est = sklearn_quam.HMCRegressor(net, **noise, **options)
        est.set_params(setting="expected", random_state=seed).fit(problem.X, problem.y)
        uncertainty, diagnostics = est.predict_uncertainty(problem.grid, return_diagnostics=True)
        if problem.noise_variance is None:
            means.append(est.predict_proba(problem.grid)[:, 1])
            spreads.append(uncertainty.epistemic)
        else:
            means.append(est.predict(problem.grid))
            spreads.append(np.sqrt(uncertainty.epistemic))
        r_hats.append(diagnostics.r_hat)
    return repeated(means), repeated(spreads), np.max(r_hats)


def sampled_row(check, problem, quantity, ours, theirs, tolerance, unit=1.0):
    """Compare two estimates, one of them perhaps exact, in a unit for each point of the grid."""
    difference = np.abs(ours.value - theirs.value) / unit
    error = np.hypot(ours.error, theirs.error) / unit
    # The mean absolute value of a Gaussian.
    noise = np.sqrt(2 / np.pi) * error
    return Row(
        check, problem.name, quantity, float(difference.mean()), float(noise.mean()), tolerance
    )


def r_hat_row(check, problem, r_hat):
    return Row(check, problem.name, "largest R-hat - 1", float(r_hat) - 1, 0.0, R_HAT)


def check_hmc(n_fits, n_warmup, n_samples):
    check = "HMC, NUTS"
    for problem in (sine(), moons()):
        draws = nuts_samples(problem, n_warmup, n_samples)
        yield r_hat_row("NUTS", problem, split_gelman_rubin(draws).max())
        mean, spread, r_hat = hmc_estimates(problem, n_fits)
        yield r_hat_row("HMC", problem, r_hat)
        if problem.noise_variance is None:
            information = mutual_information_of(draws)
            yield sampled_row(check, problem, "probability", mean, mean_of(draws), SAMPLED_PROBA)
            yield sampled_row(
                check, problem, "mutual information", spread, information, SAMPLED_NATS
            )
        else:
            yield from sampled_rows(check, problem, (mean, spread), draws)


def sampled_rows(check, problem, expected, draws):
    """Compare means and standard deviations with those of draws."""
    deviation = deviation_of(draws)
    found = mean_of(draws), deviation
    for quantity, a, b in zip(("mean", "standard deviation"), expected, found, strict=True):
        yield sampled_row(check, problem, quantity, a, b, SAMPLED, unit=deviation.value)


def check_peer_nuts():
    """Compare NUTS with Bayesian linear regression."""
    problem = linear()
    features, features_new = (np.c_[rows, np.ones(len(rows))] for rows in (problem.X, problem.grid))
    mean, covariance, _ = linear_regression(features, problem.y, features_new, 1.0)
    exact = Estimate(mean, 0.0), Estimate(np.sqrt(np.diagonal(covariance)), 0.0)
    draws = nuts_samples(problem, n_warmup=500, n_samples=1000)
    yield from sampled_rows("NUTS, closed form", problem, exact, draws)


def check_detectors():
    for name, difference in peer_detectors.differences():
        yield Row("detectors, pytorch-ood", "digits", name, difference, 0.0, EXACT)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", type=int, default=3, help="of HMC for each problem, at least 2")
    parser.add_argument("--warmup", type=int, default=300, help="steps of NUTS")
    parser.add_argument("--samples", type=int, default=500, help="of NUTS from each of 4 chains")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/peers.json")
    options = parser.parse_args()
    numpyro.enable_x64()
    print(
        f"{'check':<30} {'case':<28} {'quantity':<24} "
        f"{'difference':>10}{'noise':>10}{'tolerance':>10}"
    )
    rows = []
    for rows_of_check in (
        check_peer_laplace(),
        check_laplace(),
        check_detectors(),
        check_peer_nuts(),
        check_hmc(options.fits, options.warmup, options.samples),
    ):
        for row in rows_of_check:
            print(row, flush=True)
            rows.append(row)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    versions = {package: version(package) for package in PACKAGES}
    results = [{**row._asdict(), "ok": row.ok} for row in rows]
    options.out.write_text(json.dumps({"versions": versions, "results": results}, indent=1))
    stamp(options.out, COMPARED["peers"])
    n_failed = sum(not row.ok for row in rows)
    print(f"{len(rows) - n_failed} of {len(rows)} comparisons agree")
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
