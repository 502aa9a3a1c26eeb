"""Natural search against a plain loop in double precision."""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import NaturalSearch, QUAMClassifier
from sklearn_quam._search.natural.chain import ChainSteps, HeadSteps
from sklearn_quam._search.natural.general import GeneralSteps

from ..networks import IMAGES, LABELS, X_NEW, X, train
from .slow_natural import SlowHead, SlowNatural


class Skipping(nn.Module):
    """Linear layers that are no chain."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.head(x + torch.relu(self.second(x)))


def two_layers():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def three_layers():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 3))


def convolutional():
    return nn.Sequential(nn.Conv2d(2, 2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))


# name -> network, its steps, the loop, arguments of the estimator, the searched layers
CASES = {
    "head": (lambda: nn.Linear(4, 3), HeadSteps, SlowHead, {}, None),
    "last layer": (
        two_layers,
        HeadSteps,
        SlowHead,
        {"parameters": "last_layer"},
        ("2",),
    ),
    "three layers": (three_layers, ChainSteps, SlowNatural, {}, None),
    "no chain": (Skipping, GeneralSteps, SlowNatural, {}, None),
    "convolutional": (convolutional, GeneralSteps, SlowNatural, {"parameters": "all"}, None),
}


def compared(name, n_rows, **options):
    """Return an estimator, the loop, and rows to ask about."""
    build, steps, loop, arguments, searched = CASES[name]
    rows = IMAGES if name == "convolutional" else X
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = train(build().double(), rows.astype(np.float64), LABELS, 40)
    search = NaturalSearch(n_steps=4, n_rows=n_rows, prior_precision=0.05)
    est = QUAMClassifier(module, search=search, random_state=0, **arguments, **options)
    est.fit(rows.astype(np.float64), LABELS)
    used = est._fitted.models.engine.steps
    assert type(used) is steps
    slow = loop(
        module,
        rows,
        n_steps=4,
        n_rows=n_rows,
        temperature=est.temperature_,
        precision=0.05,
        start=used.influence.start,
        searched=searched,
    )
    new = 1.5 * IMAGES[:3] if name == "convolutional" else X_NEW[:4]
    return est, slow, new.astype(np.float64)


@pytest.mark.parametrize(
    ("name", "n_rows"), [("head", 60), *((name, 12) for name in CASES if name != "head")]
)
def test_natural_search_is_the_plain_loop(name, n_rows):
    est, slow, rows = compared(name, n_rows)
    wanted = np.array([slow.uncertainty(row) for row in rows]).T
    for setting, epistemic in zip(("given", "expected"), wanted, strict=True):
        est.set_params(setting=setting)
        np.testing.assert_allclose(est.predict_uncertainty(rows).epistemic, epistemic, rtol=1e-6)
    assert (wanted > 1e-3).all()
    costs = est.rival_costs(rows, refine=False)
    np.testing.assert_allclose(costs, [slow.answer_costs(row) for row in rows], rtol=1e-6)
    assert (np.isfinite(costs) & (costs > 0)).sum() > len(rows)


@pytest.mark.parametrize("name", ["head", "three layers"])
def test_a_cold_search_that_ends_early_is_the_plain_loop(name):
    est, slow, rows = compared(name, 60, temperature=0.3)
    wanted = [slow.uncertainty(row)[0] for row in rows]
    np.testing.assert_allclose(est.predict_uncertainty(rows).epistemic, wanted, rtol=1e-6)
    _, diagnostics = est.predict_uncertainty(rows, return_diagnostics=True)
    assert (diagnostics.n_steps < 3 * 4).any()
