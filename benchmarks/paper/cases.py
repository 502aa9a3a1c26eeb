"""Classifiers that make mistakes: digits with few training rows, and LeNets on MNIST."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from torch import nn

import sklearn_quam

from .lenet import load_networks, load_training_data, scaled
from .runs import means, run

N_TRAIN, N_TEST = 300, 200  # digits
METHODS = (
    "Reference",
    "MCDropout",
    "DeepEnsemble",
    "Laplace",
    "MixtureLaplace",
    "SWAG",
    "CyclicalSGHMC",
    "QUAM",
    "QUAM, penalty search",
)
ARGUMENTS = {
    "QUAM, penalty search": {"search": "penalty", "parameters": "all"},
}
# What methods need around LeNets; the settings of the penalty search were chosen on tuning images.
AROUND_LENETS = {
    "MCDropout": {"n_samples": 2048},
    "SWAG": {"parameters": 3},
    "CyclicalSGHMC": {"parameters": 3},
    "QUAM, penalty search": {
        "search": "penalty",
        "parameters": 3,
        "search__batch_size": 256,
        "search__learning_rate": 1e-2,
        "temperature": 35.0,
    },
}


@dataclass
class Case:
    """A trained network with its data, and arguments that each method needs there."""

    network: Any
    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    arguments: dict

    def fit(self, method, **arguments):
        own = {**ARGUMENTS.get(method, {}), **self.arguments.get(method, {})}
        arguments = {**own, **arguments}
        kind = getattr(sklearn_quam, f"{method.partition(',')[0]}Classifier")
        est = kind(self.network, random_state=0).set_params(**arguments)
        return est.fit(self.X_train, self.y_train)


class DigitsNetwork(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(64, 10),
        )


def digits(seed):
    """Return a network that has seen a sixth of the digits, and 200 others."""
    X, y = load_digits(return_X_y=True)
    X, y = (X / 16).astype(np.float32), y.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(X))
    train, test = order[:N_TRAIN], order[N_TRAIN : N_TRAIN + N_TEST]
    torch.manual_seed(seed)
    network = NeuralNetClassifier(
        DigitsNetwork,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=3e-3,
        max_epochs=60,
        batch_size=64,
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
    ).fit(X[train], y[train])
    return Case(network, X[train], y[train], X[test], y[test], {})


def mnist_lenet(folder, seed, n_images):
    """Return a LeNet, and test images of which as many as possible, up to a third, are mistaken."""
    networks = load_networks(folder, seed)
    X, y, _, _ = load_training_data(folder, seed)
    with np.load(folder / "mnist.npz", allow_pickle=False) as data:
        X_test, y_test = scaled(data["x_test"]), data["y_test"].astype(np.int64)
    with torch.no_grad():
        is_wrong = networks[0](torch.tensor(X_test)).argmax(dim=1).numpy() != y_test
    rng = np.random.default_rng(0)
    wrong = rng.permutation(np.flatnonzero(is_wrong))[: n_images // 3]
    right = rng.permutation(np.flatnonzero(~is_wrong))[: n_images - len(wrong)]
    rows = np.concatenate([wrong, right])
    members = {name: {"estimators": networks} for name in ("DeepEnsemble", "MixtureLaplace")}
    arguments = {**AROUND_LENETS, **members}
    return Case(networks[0], X, y, X_test[rows], y_test[rows], arguments)


def run_on_all(chosen, path, settings, judge):
    """Judge every method on every network; return results by network and method."""
    kinds = {f"digits, seed {seed}": lambda seed=seed: digits(seed) for seed in chosen.seeds}
    if chosen.data:
        kinds["MNIST, seed 42"] = lambda: mnist_lenet(chosen.data, 42, chosen.images)
    loaded = {}

    def task(name, method):
        torch.set_num_threads(1)
        if name not in loaded:
            loaded.clear()
            loaded[name] = kinds[name]()
        return judge(loaded[name], method)

    tasks = {
        f"{name}, {method}": lambda name=name, method=method: task(name, method)
        for name in kinds
        for method in chosen.methods
    }
    return run(path, {**settings, "images": chosen.images}, tasks)


def summarise(results):
    """Return a row of means for each kind of network and method."""
    by_kind = {}
    for name, result in results.items():
        kind, _, method = name.split(", ", 2)
        by_kind.setdefault((kind, method), []).append(result)
    return [
        {"network": kind, "method": method, **means(each)}
        for (kind, method), each in by_kind.items()
    ]


def by_network(rows, values):
    """Return the panels of a figure: each value for each kind of network."""
    kinds = dict.fromkeys(row["network"] for row in rows)
    return [
        (kind, [row for row in rows if row["network"] == kind], value)
        for kind in kinds
        for value in values
    ]
