"""The part of a network before the cut runs once for each row, however the rows are asked about."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import (
    LaplaceClassifier,
    LaplaceRegressor,
    LinearSearch,
    MCDropoutClassifier,
    NaturalSearch,
    PenaltySearch,
    QUAMClassifier,
    QUAMRegressor,
    SWAGClassifier,
)

N_TRAINING, N_ASKED = 60, 11
IMAGES = np.random.default_rng(0).normal(size=(2 * N_TRAINING, 1, 6, 6)).astype(np.float32)
LABELS = np.arange(2 * N_TRAINING) % 3
TARGETS = IMAGES.mean(axis=(1, 2, 3)) + 0.1 * IMAGES[:, 0, 0, 0]
ASKED = np.random.default_rng(1).normal(size=(N_ASKED, 1, 6, 6)).astype(np.float32)

# How often the backbone was run for each row.
RUNS = Counter()


def count(_, inputs, __):
    """Note which rows a layer is run for; a single one is run twice, side by side."""
    RUNS.update({row.astype(np.float32).tobytes() for row in inputs[0].detach().numpy()})


def image_network(n_outputs, scale=1.0):
    """Return a convolution, which counts, and a linear layer; with confident answers if scaled."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
        head = nn.Linear(64, n_outputs)
    with torch.no_grad():
        head.weight.mul_(scale)
    backbone[0].register_forward_hook(count)
    return nn.Sequential(backbone, nn.Dropout(0.1), head).eval()


def runs(rows, ask):
    """Return how often the backbone runs for each of some rows meanwhile."""
    RUNS.clear()
    ask()
    return [RUNS[row.tobytes()] for row in rows]


def fitted(kind, scale=1.0, **arguments):
    n_outputs, y = (3, LABELS) if kind.__name__.endswith("Classifier") else (1, TARGETS)
    est = kind(image_network(n_outputs, scale), random_state=0, **arguments)
    return est.fit(IMAGES[:N_TRAINING], y[:N_TRAINING])


SEARCHES = {
    "natural": {"search": NaturalSearch(n_steps=4)},
    "screened": {"search": NaturalSearch(n_steps=4, screen=0.5)},
    "exact": {"search": NaturalSearch(n_steps=4, n_corrections=1)},
    "linear": {"search": LinearSearch()},
    "penalty": {"search": PenaltySearch(n_steps=4)},
}
CASES = {
    **{f"QUAM {name}": (QUAMClassifier, options) for name, options in SEARCHES.items()},
    "QUAM regressor": (QUAMRegressor, {"parameters": "last_layer", "search": "linear"}),
    "Laplace": (LaplaceClassifier, {}),
    "Laplace regressor": (LaplaceRegressor, {}),
    "SWAG": (SWAGClassifier, {"parameters": "last_layer", "n_samples": 3}),
    "MC dropout": (MCDropoutClassifier, {"n_samples": 3}),
}


@pytest.fixture(scope="module")
def methods():
    """Return what is fitted, once for each case."""
    return {name: fitted(kind, **options) for name, (kind, options) in CASES.items()}


@pytest.mark.parametrize("setting", ["given", "expected"])
@pytest.mark.parametrize("name", CASES)
def test_an_asked_row_runs_once(methods, name, setting):
    est = methods[name].set_params(setting=setting)
    assert runs(ASKED, lambda: est.predict_uncertainty(ASKED)) == [1] * N_ASKED
