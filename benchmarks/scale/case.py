"""What a family of benchmarks consists of, and which methods and detectors it is put to."""

import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sklearn_quam

from ..detectors import DETECTORS, ON_INPUTS, WITHOUT_NETWORK
from ..digests import digest

# The words after a comma tell variants of a method apart. In this order they are measured.
FIRST = (
    "Reference",
    "QUAM",
    "PNML",
    "Mahalanobis",
    "NearestNeighbor",
    "ViM",
    "Energy",
    "QUAM, linear search",
)
METHODS = (
    *FIRST,
    *(name for name in DETECTORS if name not in FIRST),
    "Laplace",
    "MCDropout",
    "DeepEnsemble",
    "SWAG",
    "CyclicalSGHMC",
    "MixtureLaplace",
)
ARGUMENTS = {
    "QUAM, linear search": {"search": "linear"},
    "QUAM, penalty search": {"search": "penalty"},
    "Laplace, all layers": {"parameters": "all"},
}
VAL, TEST = "held out", "test"
WITH_MEMBERS = ("DeepEnsemble", "MixtureLaplace")
# In these the network alone predicts, and is asked once.
SETTINGS = ("given", "expected", "pairwise")
IN_PAIRS = ("QUAM", "QUAM, linear search", "DeepEnsemble")


class Members:
    """Further networks, trained when they are asked for first, and the seconds that this took."""

    def __init__(self, train):
        self._train = train

    @cached_property
    def _trained(self):
        start = time.process_time()
        return self._train(), time.process_time() - start

    @property
    def networks(self):
        return self._trained[0]

    @property
    def seconds(self):
        return self._trained[1]


@dataclass(frozen=True)
class Case:
    """A trained network, what is known of its training data, and samples to judge.

    ``X_test`` are samples of the known kind that the network was not trained on, of which `split`
    makes ``X_val`` and ``X_test``; `others` has those of other kinds by name, and `disagreement`
    says how much people disagree about labels of the test.
    """

    network: Any
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    others: dict
    members: Members
    disagreement: np.ndarray | None = None
    X_val: np.ndarray | None = None
    y_val: np.ndarray | None = None

    def split(self, n_val, n_test, n_others):
        """Return the same with some samples of each set, the first known ones held out."""
        X, y, test = self.X_test, self.y_test, slice(n_val, n_val + n_test)
        return replace(
            self,
            X_val=X[:n_val],
            y_val=y[:n_val],
            X_test=X[test],
            y_test=y[test],
            others={name: part[:n_others] for name, part in self.others.items()},
            disagreement=None if self.disagreement is None else self.disagreement[test],
        )

    @property
    def sets(self):
        """All samples that are judged."""
        return {VAL: self.X_val, TEST: self.X_test, **self.others}

    @cached_property
    def proba(self):
        """What the network alone predicts for them."""
        est = sklearn_quam.ReferenceClassifier(self.network).fit(self.X, self.y)
        return {part: est.predict_proba(X) for part, X in self.sets.items()}


@dataclass(frozen=True)
class Family:
    """Cases of one kind: how to load them, and everything that their results depend on.

    Parameters
    ----------
    name : str
        Of the file of results.
    title : str
        In tables.
    load : callable
        ``load(folder, case)`` returns a `Case`, not split yet.
    cases : sequence of str
        Their names.
    near, far : sequence of str
        Other kinds of samples that are near to what the network knows, and far from it.
    rows : tuple of int
        How many known samples are held out and judged, and how many of each other kind.
    settings : dict
        How networks are trained.
    arguments : dict of str to dict, default={}
        What methods need here beyond their defaults; by method, its variants included.
    methods : sequence of str
        Which are judged.
    """

    name: str
    title: str
    load: Any
    cases: tuple
    near: tuple
    far: tuple
    rows: tuple
    settings: dict
    arguments: dict
    methods: tuple = METHODS

    def arguments_of(self, method):
        kind = method.partition(",")[0]
        return {
            **self.arguments.get(kind, {}),
            **ARGUMENTS.get(method, {}),
            **self.arguments.get(method, {}),
        }

    def digest(self, case, method):
        """Return the digest that the present result of a method has."""
        own = [self.settings, self.rows, case, self.arguments_of(method), self.near, self.far]
        return digest([method], own)

    def digests(self):
        """Return the digests of all results by name."""
        return {
            f"{case}: {method}": self.digest(case, method)
            for method in self.methods
            for case in self.cases
        }

    def path(self, folder: Path):
        return folder / f"{self.name}.json"

    def make(self, case, method):
        """Return a method or detector, not fitted."""
        if method in WITHOUT_NETWORK:
            return WITHOUT_NETWORK[method]()
        arguments = self.arguments_of(method)
        detectors = {**DETECTORS, **ON_INPUTS}
        if method in detectors:
            return detectors[method](case.network, **arguments)
        kind = method.partition(",")[0]
        if kind in WITH_MEMBERS:
            arguments["estimators"] = case.members.networks
        if kind not in ("Reference", "DeepEnsemble"):
            arguments["random_state"] = 0
        return getattr(sklearn_quam, f"{kind}Classifier")(case.network).set_params(**arguments)


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
