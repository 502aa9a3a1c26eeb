"""Networks of unusual build, and other edges of Laplace's approximation."""

import resource

import numpy as np
import pytest
import torch
from torch import nn

from ..curvature.slow_curvature import close, seeded
from ..networks import (
    IMAGES,
    LABELS,
    TARGET,
    X64,
    X64_NEW,
    X,
    dense,
)
from .test_laplace import classifier, each_structure, regressor


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.MissingClassesWarning")
def test_the_diagonal_of_many_classes_takes_no_matrix_for_each_row():
    rows = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    classifier(nn.Linear(8, 1000), "diag", n_samples=2).fit(rows, np.arange(300) % 100)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000


class Idle(nn.Module):
    def __init__(self, *, runs):
        super().__init__()
        self.body, self.head, self.idle = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 2)
        self.runs = runs

    def forward(self, x):
        features = torch.tanh(self.body(x))
        return (self.head(features), self.idle(features)) if self.runs else self.head(features)


@each_structure
@pytest.mark.parametrize("runs", [False, True])
def test_parameters_that_change_nothing(structure, runs):
    module = seeded(lambda: Idle(runs=runs))
    used = ["body.*", "head.*"]
    all_, some = (
        classifier(module, structure, parameters=parameters).fit(X64, LABELS)
        for parameters in ("all", used)
    )
    close(all_.score_distribution(X64_NEW)[1], some.score_distribution(X64_NEW)[1])


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.tanh(x @ self.body.weight.T + self.body.bias))


def test_weights_of_a_layer_that_is_not_called_are_taken_by_their_diagonal():
    module = seeded(Functional)
    kron, diag = (
        classifier(module, s, parameters=["body.*"]).fit(X64, LABELS) for s in ("kron", "diag")
    )
    close(kron.score_distribution(X64_NEW)[1], diag.score_distribution(X64_NEW)[1])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight, self.head = self.first.weight, nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_tied_weights_count_wherever_they_are_used():
    module = seeded(Tied)
    kron, diag = (
        classifier(module, s, parameters=["first.weight"]).fit(X64, LABELS)
        for s in ("kron", "diag")
    )
    close(kron.score_distribution(X64_NEW)[1], diag.score_distribution(X64_NEW)[1])


class Squeezing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = dense(1)

    def forward(self, x):
        return self.layers(x).squeeze()


@pytest.mark.parametrize("n_rows", [1, 257])
def test_networks_that_squeeze_their_output(n_rows):
    rows = np.tile(X64, (5, 1))[:n_rows]
    module = seeded(Squeezing)
    est = regressor(module, parameters="all").fit(rows, rows[:, 0])
    plain = regressor(module.layers, parameters="all").fit(rows, rows[:, 0])
    close(est.score_distribution(X64_NEW)[1], plain.score_distribution(X64_NEW)[1])


@pytest.mark.slow
def test_equal_variances_give_the_same_draws_in_any_chunks():
    y = np.column_stack([TARGET, X[:, 3], X[:, 2]]).astype(float)
    est = regressor(seeded(nn.Linear, 4, 3), "full", setting="expected").fit(X64, y)
    together = est.predict_uncertainty(X64_NEW).epistemic
    alone = [est.predict_uncertainty(X64_NEW[i : i + 1]).epistemic[0] for i in range(25)]
    close(together, alone, 1e-7)


def test_n_samples_set_after_fit_is_refused_and_memory_changes_nothing():
    est = classifier(seeded(dense), n_samples=16).fit(X64, LABELS)
    before = est.predict_uncertainty(X64_NEW).epistemic
    est.set_params(n_samples=10_000, memory_limit=100_000)
    with pytest.raises(ValueError, match=r"n_samples .* changed after fit"):
        est.predict_uncertainty(X64_NEW)
    est.set_params(n_samples=16)
    close(est.predict_uncertainty(X64_NEW).epistemic, before, 1e-12)


class Standardised(nn.Conv2d):
    def forward(self, x):
        weight = self.weight / self.weight.flatten(1).std(dim=1)[:, None, None, None]
        return self._conv_forward(x, weight, self.bias)


def test_convolutions_that_change_their_weight_are_taken_by_their_diagonal():
    module = seeded(
        lambda: nn.Sequential(Standardised(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3))
    )
    images = IMAGES.astype(float)[:15]
    kron, diag = (
        classifier(module, s, parameters=["0.weight"]).fit(images, LABELS[:15])
        for s in ("kron", "diag")
    )
    close(kron.score_distribution(images)[1], diag.score_distribution(images)[1])
