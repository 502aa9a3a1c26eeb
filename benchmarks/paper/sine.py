"""Sine regression: bands of epistemic uncertainty, against Hamiltonian Monte Carlo.

40 points x uniform in [-pi, pi], y = sin x + noise with a standard deviation of 0.1; a network with
two hidden layers of 50 units and a known noise. HMC with a standard normal prior is the ground
truth. Compared is the standard deviation of the predicted mean under each method's plausible
models: near the data (closer than 0.1 to a point), between the data (elsewhere in their range) and
outside of it, up to twice as far.

    python -m benchmarks.paper.sine --out DIR
"""

import warnings

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetRegressor
from torch import nn

import sklearn_quam

from .runs import means, run_against_hmc, save_figure

NOISE = 0.1
N_ROWS = 40
METHODS = {
    "HMC": {"n_chains": 4, "n_warmup": 150, "n_samples": 250, "n_leapfrog": 150},
    "QUAM": {},
    "QUAM, natural search": {"search": "natural"},
    "QUAM, penalty search": {"search": "penalty", "parameters": "all"},
    "DeepEnsemble": {"n_estimators": 10},
    "MCDropout": {"n_samples": 1000},
    "Laplace": {},
    "Laplace, all layers": {"parameters": "all"},
    "MixtureLaplace": {"n_estimators": 10},
    "SWAG": {},
    "CyclicalSGHMC": {},
}
WHERE = ("near", "between", "outside")


class Network(nn.Sequential):
    def __init__(self, dropout=0.0):
        super().__init__(
            nn.Linear(1, 50),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(50, 50),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(50, 1),
        )


def data(seed):
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-np.pi, np.pi, (N_ROWS, 1)), axis=0)
    y = np.sin(X[:, 0]) + rng.normal(scale=NOISE, size=N_ROWS)
    return X.astype(np.float32), y.astype(np.float32)


def trained(X, y, seed, dropout=0.0):
    torch.manual_seed(seed)
    return NeuralNetRegressor(
        Network,
        module__dropout=dropout,
        optimizer=torch.optim.Adam,
        optimizer__weight_decay=1e-4,
        lr=5e-3,
        max_epochs=1000,
        batch_size=-1,
        train_split=None,
        verbose=0,
    ).fit(X, y[:, None])


def grid():
    return np.linspace(-2 * np.pi, 2 * np.pi, 200, dtype=np.float32)[:, None]


def regions(seed):
    """Return which points of the grid are near, between and outside the data."""
    X, _ = data(seed)
    distance = np.abs(grid() - X.T).min(axis=1)
    inside = (grid()[:, 0] > X.min()) & (grid()[:, 0] < X.max())
    near = inside & (distance < 0.1)
    return dict(zip(WHERE, (near, inside & ~near, ~inside), strict=True))


def band(method, seed):
    """Return mean and standard deviation of the prediction over the grid."""
    torch.set_num_threads(1)
    X, y = data(seed)
    name, arguments = method.partition(",")[0], METHODS[method]
    net = trained(X, y, seed, dropout=0.1 if name == "MCDropout" else 0.0)
    est = getattr(sklearn_quam, f"{name}Regressor")(
        net,
        setting="expected",
        measure="variance",
        noise_variance=NOISE**2,
        random_state=seed,
        **arguments,
    )
    with warnings.catch_warnings():
        # R-hat is part of the result.
        warnings.simplefilter("ignore", ConvergenceWarning)
        est.fit(X, y)
        u, diagnostics = est.predict_uncertainty(grid(), return_diagnostics=True)
        mean = est.predict(grid())
    result = {"mean": mean.round(5), "sd": np.sqrt(u.epistemic).round(5)}
    if name == "HMC":
        result["r_hat"] = float(diagnostics.r_hat.max())
    return result


def compare(result, truth, seed):
    """Return how a method's band resembles that of HMC, in each region and overall."""
    ours, theirs = np.array(result["sd"]), np.array(truth["sd"])
    numbers = {
        "spearman": spearmanr(ours, theirs).statistic,
        "pearson": pearsonr(ours, theirs).statistic,
    }
    for where, rows in regions(seed).items():
        numbers[f"{where} error"] = np.abs(ours - theirs)[rows].mean()
        numbers[f"{where} ratio"] = ours[rows].mean() / theirs[rows].mean()
    return numbers


def summarise(results, seeds, methods):
    rows = []
    for method in methods:
        if method != "HMC":
            each = [compare(results[f"{method} {s}"], results[f"HMC {s}"], s) for s in seeds]
            rows.append({"method": method, **means(each)})
    return rows


def plot(results, seed, methods, path):
    import matplotlib.pyplot as plt

    from sklearn_quam.display import RegressionUncertaintyDisplay

    X, y = data(seed)
    n_columns = -(-len(methods) // 3)
    figure, axes = plt.subplots(
        3, n_columns, figsize=(3.4 * n_columns, 7), layout="constrained", sharex=True, sharey=True
    )
    for ax, method in zip(axes.flat, methods, strict=False):
        result = results[f"{method} {seed}"]
        mean, sd = np.array(result["mean"]), np.array(result["sd"])
        RegressionUncertaintyDisplay.from_predictions(
            grid()[:, 0], mean, sd, np.sqrt(sd**2 + NOISE**2), x_train=X[:, 0], y_train=y, ax=ax
        )
        ax.get_legend().remove()
        ax.set(title=method, ylim=(-4, 4), xlabel="", ylabel="")
    for ax in axes.flat[len(methods) :]:
        ax.set_axis_off()
    save_figure(figure, path)


if __name__ == "__main__":
    run_against_hmc(
        __doc__,
        "sine",
        METHODS,
        {"noise": NOISE, "rows": N_ROWS},
        judge=band,
        summarise=summarise,
        plot=plot,
    )
