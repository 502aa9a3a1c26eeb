"""The part of a network before the cut runs once for each row, however the rows are asked about."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import (
    LaplaceClassifier,
    LinearSearch,
    MCDropoutClassifier,
    NaturalSearch,
    PenaltySearch,
    QUAMClassifier,
    QUAMRegressor,
    SWAGClassifier,
)
from sklearn_quam.exceptions import BeyondRangeWarning

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
    "exact": {"search": NaturalSearch(n_steps=4, n_corrections=1)},
    "linear": {"search": LinearSearch()},
    "penalty": {"search": PenaltySearch(n_steps=4)},
}
CASES = {
    **{f"QUAM {name}": (QUAMClassifier, options) for name, options in SEARCHES.items()},
    "QUAM regressor": (QUAMRegressor, {"parameters": "last_layer", "search": "linear"}),
    "Laplace": (LaplaceClassifier, {}),
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


@pytest.mark.parametrize(
    ("name", "n_searches"),
    [("QUAM natural", 1), ("QUAM linear", 1), ("QUAM penalty", None)],
)
def test_it_does_so_however_many_searches_run_together(methods, name, n_searches):
    """One search is fewer than a row has targets: these are searched in groups."""
    est = methods[name].set_params(setting="given", memory_limit=None)
    rows = ASKED
    if n_searches is not None:
        est.set_params(memory_limit=est._fitted.models.needs.of(1, n_searches))
        rows = ASKED[:2]
    for ask in (est.predict_uncertainty, est.predict_proba_bounds):
        assert runs(rows, lambda ask=ask: ask(rows)) == [1] * len(rows)
    est.set_params(memory_limit=None)


def test_rows_beyond_the_range_run_once(methods):
    rows = ASKED.copy()
    rows[[0, 4]] = 1e6
    for name in ("QUAM natural", "Laplace"):
        with pytest.warns(BeyondRangeWarning):
            # Two of them are the same.
            assert runs(rows[1:], lambda n=name: methods[n].predict_uncertainty(rows)) == [1] * 10
    with pytest.warns(BeyondRangeWarning, match="2 of 11 rows .the first is row 0."):
        costs = methods["QUAM natural"].rival_costs(rows)
    assert (costs[[0, 4]] == 0).all()
    np.testing.assert_allclose(
        costs[[1, 2, 3]], methods["QUAM natural"].rival_costs(ASKED[1:4]), rtol=1e-4
    )


@pytest.mark.parametrize(
    ("name", "passes"),
    [(name, 2 if name == "QUAM exact" else 1) for name in CASES],
)
def test_passes_of_fit_over_the_training_rows(name, passes):
    """One for predictions and values at the cut together, and one more in double precision.

    Most rows: a few are tried first.
    """
    kind, options = CASES[name]
    rows = IMAGES[:N_TRAINING]
    # Far enough apart that nobody takes these logits for probabilities.
    counts = runs(rows, lambda: fitted(kind, 10.0, **options))
    assert sorted(counts)[len(counts) // 2] == passes
