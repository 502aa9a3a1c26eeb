"""What a benchmark of this folder consists of, and which methods and detectors it is put to."""

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sklearn_quam

from ..detectors import DETECTORS

# The words after a comma tell variants of a method apart.
METHODS = (
    "Reference",
    "MCDropout",
    "DeepEnsemble",
    "Laplace",
    "MixtureLaplace",
    "SWAG",
    "CyclicalSGHMC",
    "QUAM",
    "QUAM, linear search",
    "QUAM, penalty search",
)
ARGUMENTS = {
    "QUAM, linear search": {"search": "linear"},
    "QUAM, penalty search": {"search": "penalty"},
}
# Judged on the first rows of each set only; QUAM on the same rows stands beside it.
SLOW = "QUAM, penalty search"
FEW = ", few rows"


WITH_MEMBERS = ("DeepEnsemble", "MixtureLaplace")


class Members:
    """Further networks, trained when they are asked for first, and the seconds that this took."""

    def __init__(self, train):
        self._train = train

    @cached_property
    def _trained(self):
        start = time.perf_counter()
        return self._train(), time.perf_counter() - start

    @property
    def networks(self):
        return self._trained[0]

    @property
    def seconds(self):
        return self._trained[1]


@dataclass(frozen=True)
class Case:
    """A trained network, what is known of its training data, and rows to judge.

    Parameters
    ----------
    network : estimator or torch.nn.Module
        The given network.
    X, y : ndarray
        Training data, or what stands for them.
    X_test, y_test : ndarray
        Rows of the known kind that the network was not trained on.
    others : dict of str to ndarray
        Rows of other kinds.
    members : Members
        Further networks, for ensembles.
    arguments : dict of str to dict
        What methods need here beyond their defaults; by method, its variants included.
    disagreement : ndarray of shape (n_test,), default=None
        How much people disagree about the labels of the test rows.
    """

    network: Any
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    others: dict
    members: "Members"
    arguments: dict = field(default_factory=dict)
    disagreement: np.ndarray | None = None

    def make(self, name):
        """Return a method or detector, not fitted."""
        if name in DETECTORS:
            return DETECTORS[name](self.network, **self.arguments.get(name, {}))
        kind = name.partition(",")[0]
        variant = name.removesuffix(FEW)
        arguments = {**self.arguments.get(kind, {}), **ARGUMENTS.get(variant, {})}
        if variant != kind:
            arguments |= self.arguments.get(variant, {})
        if kind in WITH_MEMBERS:
            arguments["estimators"] = self.members.networks
        if kind not in ("Reference", "DeepEnsemble"):
            arguments["random_state"] = 0
        return getattr(sklearn_quam, f"{kind}Classifier")(self.network).set_params(**arguments)

    def few(self, n_rows):
        """Return the same with the first rows of each set."""
        others = {name: X[:n_rows] for name, X in self.others.items()}
        return replace(
            self,
            X_test=self.X_test[:n_rows],
            y_test=self.y_test[:n_rows],
            others=others,
            disagreement=None if self.disagreement is None else self.disagreement[:n_rows],
        )

    def with_arguments(self, method, arguments):
        """Return the same with further arguments of a method."""
        own = {**self.arguments.get(method, {}), **arguments}
        return replace(self, arguments={**self.arguments, method: own})


def shuffled(*arrays, n_rows=None, seed=0):
    """Return some rows in random order, the same in every run."""
    order = np.random.default_rng(seed).permutation(len(arrays[0]))[:n_rows]
    found = [array[order] for array in arrays]
    return found[0] if len(found) == 1 else found


def trained_heads(X, y, n_classes, n_heads, *, lr, weight_decay, n_epochs, batch_size):
    """Return last layers that were trained on features, from different initial values."""
    X, y = torch.tensor(X), torch.tensor(y)
    found = []
    for seed in range(n_heads):
        torch.manual_seed(seed)
        head = nn.Linear(X.shape[1], n_classes)
        optimizer = torch.optim.AdamW(head.parameters(), lr, weight_decay=weight_decay)
        for _ in range(n_epochs):
            for rows in torch.randperm(len(X)).split(batch_size):
                optimizer.zero_grad()
                cross_entropy(head(X[rows]), y[rows]).backward()
                optimizer.step()
        found.append(head.eval())
    return found
