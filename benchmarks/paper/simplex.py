"""Simplex: which predictions at one point the training data allows, and who finds them.

Three Gaussian classes of 21 points each, a network with ten hidden units, and a test point far from
all of them. The background says, for every prediction on the probability simplex, how well a
network that makes this prediction at the test point can explain the training data: the likelihood
reached by training under that constraint, the median of 20 restarts. On top are the predictions of
the models that each method considers plausible. Reported is how they spread: the largest
probability of each class among them, and the share of the plausible part of the simplex that they
come close to.

    python -m benchmarks.paper.simplex --out DIR
"""

import warnings
from unittest import mock

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetClassifier
from torch import nn

import sklearn_quam
from sklearn_quam._posterior.accumulate import CategoricalPosterior

from .runs import means, options, report, run, save_figure

CENTRES = np.array([(-4.0, -2.0), (4.0, -2.0), (0.0, 2 * np.sqrt(2))])
VARIANCE, N_POINTS = 1.5, 21
TEST_POINT = np.array([[-6.0, 2.0]], dtype=np.float32)
METHODS = {
    "HMC": {"n_chains": 4, "n_warmup": 200, "n_samples": 250, "n_leapfrog": 100},
    "QUAM": {},
    "DeepEnsemble": {"n_estimators": 50},
    "MCDropout": {"n_samples": 1000},
}
RESTARTS, GRID_STEPS = 20, 12
# A prediction is plausible if the likelihood of each training row falls by no more than this.
PLAUSIBLE = 0.05


class Network(nn.Sequential):
    def __init__(self, dropout=0.0):
        super().__init__(nn.Linear(2, 10), nn.ReLU(), nn.Dropout(dropout), nn.Linear(10, 3))


def data(seed):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(3), N_POINTS)
    X = CENTRES[y] + np.sqrt(VARIANCE) * rng.normal(size=(len(y), 2))
    return X.astype(np.float32), y


def trained(X, y, seed, dropout=0.0):
    torch.manual_seed(seed)
    return NeuralNetClassifier(
        Network,
        module__dropout=dropout,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        optimizer__weight_decay=1e-4,
        lr=1e-2,
        max_epochs=300,
        batch_size=-1,
        train_split=None,
        verbose=0,
    ).fit(X, y)


def sampled(est):
    """Return what the models that a method samples for the test point predict there."""
    parts, update = [], CategoricalPosterior.update

    def noted(posterior, prediction, log_weights=None):
        parts.append(prediction.expected()[:, 0])
        update(posterior, prediction, log_weights)

    # The models of all methods pass here, whatever they are.
    with mock.patch.object(CategoricalPosterior, "update", noted):
        est.predict_uncertainty(TEST_POINT)
    return torch.cat(parts).numpy()


def predictions(method, seed):
    """Return what each plausible model predicts at the test point, and its weight."""
    X, y = data(seed)
    net = trained(X, y, seed, dropout=0.2 if method == "MCDropout" else 0.0)
    est = getattr(sklearn_quam, f"{method}Classifier")(net, random_state=seed, **METHODS[method])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        est.fit(X, y)
        if method == "QUAM":
            (traces,) = est.search_traces(TEST_POINT)
            proba = np.concatenate([trace["prediction"] for trace in traces])
            increase = np.concatenate([trace["loss_increase"] for trace in traces])
            cost = np.clip(increase, 0, None) * est.n_training_rows_
            weights = np.exp(-cost / est.temperature_)
        else:
            proba = sampled(est)
            weights = np.ones(len(proba))
    return {"proba": proba.round(4), "weights": (weights / weights.max()).round(4)}


def grid():
    """Return evenly spread points of the simplex."""
    steps = GRID_STEPS
    corners = [(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)]
    return np.array(corners) / steps


def background(seed):
    """Return the training loss of networks that predict each point of the grid, the median."""
    X, y = data(seed)
    wanted = torch.tensor(grid(), dtype=torch.float32).clamp(0.005, 0.99)
    wanted = (wanted / wanted.sum(dim=1, keepdim=True)).repeat_interleave(RESTARTS, dim=0)
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w1": (10, 2), "b1": (10, 1), "w2": (3, 10), "b2": (3, 1)}
    weights = {
        name: (torch.randn(len(wanted), *shape, generator=generator) * 0.5).requires_grad_()
        for name, shape in shapes.items()
    }
    rows = torch.tensor(np.concatenate([X, TEST_POINT])).T
    target = torch.tensor(y)
    optimizer = torch.optim.Adam(weights.values(), 0.03)
    for step in range(1500):
        hidden = torch.relu(weights["w1"] @ rows + weights["b1"])
        log_proba = torch.log_softmax(weights["w2"] @ hidden + weights["b2"], dim=1)
        losses = -log_proba[:, target, torch.arange(len(y))].mean(dim=1)
        divergence = (wanted * (wanted.log() - log_proba[:, :, -1])).sum(dim=1)
        decay = sum(value.flatten(1).square().sum(dim=1) for value in weights.values())
        # The constraint holds the harder, the longer it takes.
        strength = 0.1 * 1.004**step
        optimizer.zero_grad()
        (losses + strength * divergence + 1e-4 * decay).sum().backward()
        optimizer.step()
    return {"loss": losses.detach().unflatten(0, (-1, RESTARTS)).median(dim=1).values.numpy()}


def spread(result, losses):
    """Return how far the plausible models of a method reach."""
    proba, weights = np.array(result["proba"]), np.array(result["weights"])
    proba = proba[weights > np.exp(-1)]
    plausible = grid()[losses < losses.min() + PLAUSIBLE]
    distance = np.linalg.norm(plausible[:, None] - proba, axis=2).min(axis=1)
    return {
        "models": len(proba),
        **{f"largest p{c}": float(proba[:, c].max()) for c in range(3)},
        "share reached": float((distance < 1.0 / GRID_STEPS).mean()),
    }


def plot(results, seed, methods, path):
    import matplotlib.pyplot as plt

    corners = np.array([(0.0, 0.0), (1.0, 0.0), (0.5, np.sqrt(0.75))])
    figure, axes = plt.subplots(
        1, len(methods), figsize=(3.2 * len(methods), 3.2), layout="constrained"
    )
    losses = np.array(results[f"background {seed}"]["loss"])
    for ax, method in zip(axes, methods, strict=True):
        likelihood = np.exp(-3 * N_POINTS * losses)
        surface = ax.tricontourf(*(grid() @ corners).T, likelihood, levels=12, cmap="Greys")
        result = results[f"{method} {seed}"]
        weights = np.array(result["weights"])
        points = np.array(result["proba"]) @ corners
        ax.scatter(*points.T, s=14, c="#D55E00", alpha=0.15 + 0.85 * weights, edgecolors="none")
        ax.plot(*corners[[0, 1, 2, 0]].T, color="black", lw=0.8)
        for number, (x, y) in enumerate(corners):
            ax.annotate(
                f"class {number}",
                (x, y),
                (0, 6 if y else -12),
                textcoords="offset points",
                ha="center",
            )
        ax.set(title=method, xlim=(-0.12, 1.12), ylim=(-0.12, 1.0), aspect="equal")
        ax.axis("off")
    figure.colorbar(
        surface, ax=axes, shrink=0.6, label="achievable likelihood of the training data"
    )
    save_figure(figure, path)


def summarise(results, seeds, methods):
    rows = []
    for method in methods:
        each = [
            spread(results[f"{method} {s}"], np.array(results[f"background {s}"]["loss"]))
            for s in seeds
        ]
        rows.append({"method": method, **means(each)})
    return rows


def main():
    chosen = options(__doc__, seeds=[10, 11, 12], methods=list(METHODS))
    tasks = {}
    for seed in chosen.seeds:
        tasks[f"background {seed}"] = lambda seed=seed: background(seed)
        for method in chosen.methods:
            tasks[f"{method} {seed}"] = lambda m=method, seed=seed: predictions(m, seed)
    settings = {"methods": METHODS, "restarts": RESTARTS, "grid": GRID_STEPS}
    torch.set_num_threads(1)
    path = chosen.out / "simplex.json"
    results = run(path, settings, tasks)
    report(path, summarise(results, chosen.seeds, chosen.methods))
    plot(results, chosen.seeds[0], chosen.methods, chosen.out / "simplex.png")


if __name__ == "__main__":
    main()
