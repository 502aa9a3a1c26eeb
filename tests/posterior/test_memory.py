"""Memory limits that bind, and what is measured to keep them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import PenaltySearch, QUAMClassifier, QUAMRegressor
from sklearn_quam._curvature.influence import make_influence
from sklearn_quam._network.limits import Limits, in_units, peak_bytes, rows_within, short_passes
from sklearn_quam._search.needs import Needs

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def test_the_largest_memory_of_tensors_is_counted():
    there = torch.zeros(1000, 1000)

    def run():
        first = there + 1
        second = first * 2
        del first
        third = second[:10] + 1  # a view takes nothing, its sum 40 kB
        return second, third

    assert peak_bytes(run) == 2 * 4_000_000
    assert peak_bytes(lambda: there[:10].reshape(-1)) == 0
    assert peak_bytes(lambda: torch.stack([there[0], there[1]])) == 8000


def test_memory_of_gradients_and_of_vmap_is_counted():
    net = nn.Sequential(nn.Linear(100, 500, bias=False), nn.Tanh(), nn.Linear(500, 1, bias=False))
    x = torch.zeros(1000, 100)
    with torch.no_grad():
        alone = peak_bytes(lambda: net(x))
    assert alone == 2 * 1000 * 500 * 4
    # What tanh returns is kept, and its gradient exists beside that of what it takes.
    assert peak_bytes(lambda: net(x).sum().backward()) > alone
    each = torch.vmap(lambda row: row.outer(row))
    assert peak_bytes(lambda: each(x)) == 1000 * 100 * 100 * 4


def test_what_fits():
    needs = Needs(fixed=100, row=10, search=5)
    assert needs.of(2, 3) == 100 + 2 * (10 + 15)
    assert needs.rows_that_fit(Limits(100 + 4 * 25, CPU), 3, 1000) == 4
    assert needs.rows_that_fit(Limits(100 + 4 * 25, CPU), 3, 9) == 3
    assert needs.rows_that_fit(Limits(1, CPU), 3, 1000) == 1
    assert needs.targets_that_fit(Limits(100 + 10 + 2 * 5, CPU), 1, 3, 1000) == 2
    assert needs.rows_that_fit(Limits(2 * (100 + 25), CPU, n_workers=2), 3, 1000) == 1
    needs.refuse_too_little(Limits(115, CPU))
    with pytest.raises(ValueError, match="allows 114 bytes, but a single search needs 115 bytes"):
        needs.refuse_too_little(Limits(114, CPU))
    with pytest.raises(ValueError, match="for each of 2 workers"):
        needs.refuse_too_little(Limits(229, CPU, n_workers=2))


def test_units_are_never_too_small():
    assert [in_units(n) for n in (999, 1001, 2_000_000, 10**9 + 1)] == [
        "999 bytes",
        "1.1 kB",
        "2.0 MB",
        "1.1 GB",
    ]


def test_passes_are_short_where_memory_is():
    usual = rows_within(1000)
    with short_passes("800KB"):
        assert rows_within(1000) == 100
    with short_passes(None), short_passes("100GB"):
        assert rows_within(1000) == usual


@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_known_about_training_rows_stays_within_a_pass(n_layers, dtype):
    generator = torch.Generator().manual_seed(0)
    features = tuple(torch.randn(5000, 4, generator=generator).to(dtype) for _ in range(n_layers))
    inverses = (torch.eye(5, dtype=dtype),) * n_layers
    influence = make_influence(features, inverses, None, 0.5)
    asked = [part[:100] for part in features]
    expected = influence.rows_for(asked, 16)
    with short_passes("8MB"):
        needed = peak_bytes(lambda: influence.rows_for(asked, 16))
        found = influence.rows_for(asked, 16)
    # A pass may take an eighth; what is found takes little.
    assert needed < 1_000_000 + 100 * 16 * 3 * 8
    for first, second in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(first, second)


@pytest.fixture(scope="module")
def images():
    torch.manual_seed(0)
    X = torch.randn(40, 1, 16, 16, dtype=torch.float64)
    layers = [nn.Conv2d(1, 6, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(24, 3)).double()
    y = (X[:, 0, :8].mean((1, 2)) > 0).long() + (X[:, 0, 8:].mean((1, 2)) > 0).long()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X), y).backward()
        optimizer.step()
    return net, X.numpy(), y.numpy()


@pytest.mark.parametrize(
    "search", ["natural", PenaltySearch(n_steps=5)], ids=["natural", "penalty"]
)
def test_searches_in_pieces_are_the_same(images, search):
    net, X, y = images
    est = QUAMClassifier(net, search=search, parameters="all", random_state=0).fit(X, y)
    expected = est.predict_uncertainty(X[:3])
    needed = est._fitted.models.needs.of(1, 1)
    small = est.set_params(memory_limit=needed // 2).fit(X, y)
    problem = small._fitted.models.problem
    assert problem.rows_at_once <= 20
    assert small._fitted.models.needs.of(1, 1) <= needed // 2
    for a, b in zip(small.predict_uncertainty(X[:3]), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_corrections_in_pieces_are_the_same(images):
    net, X, _ = images
    y = X[:, 0, 0, 0]
    head = nn.Sequential(net, nn.Linear(3, 1)).double()
    est = QUAMRegressor(head, search="natural", parameters="all", random_state=0).fit(X, y)
    expected = est.predict_uncertainty(X[:2])
    needed = est._fitted.models.needs.of(1, 1)
    small = est.set_params(memory_limit=2 * needed // 3).fit(X, y)
    assert small._fitted.models.problem.rows_at_once <= 20
    for a, b in zip(small.predict_uncertainty(X[:2]), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)


def test_what_cannot_fit_is_refused_with_the_number_that_can(images):
    net, X, y = images[0], images[1][:12], images[2][:12]
    search = PenaltySearch(n_steps=3)
    est = QUAMClassifier(net, parameters="all", search=search, memory_limit="9KB")
    with pytest.raises(ValueError, match="a single search needs") as error:
        est.fit(X, y)
    number, unit = re.search(r"needs ([\d.]+) (\w+)\.", str(error.value)).groups()
    est.set_params(memory_limit=f"{number}{unit}").fit(X, y)
    assert np.isfinite(est.predict_uncertainty(X[:1]).epistemic).all()
    with pytest.raises(ValueError, match="a single search needs"):
        est.set_params(memory_limit="9KB").predict_uncertainty(X[:1])


def test_wide_layers_are_refused_with_the_number_that_they_need():
    X = np.random.default_rng(0).normal(size=(30, 700)).astype(np.float32)
    net = nn.Linear(700, 3)
    est = QUAMClassifier(net, search="natural", memory_limit="10MB")
    with pytest.raises(ValueError, match=r"needs 1[34]\.\d MB.*has 700 inputs or outputs"):
        est.fit(X, np.arange(30) % 3)
    est.set_params(memory_limit="15MB").fit(X, np.arange(30) % 3)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="address spaces are limited on Linux only")
@pytest.mark.parametrize(
    ("network", "megabytes", "outcome"),
    [
        ("dense", 20, "answered"),
        ("small", 20, "answered"),
        ("wide", 100, "answered"),
        ("many rows", 20, "answered"),
        ("convolutions", 30, "answered"),
        ("attention", 20, "answered"),
        ("head", 80, "answered"),
        ("head", 50, "refused: The curvature of what is searched needs 57.9 MB"),
    ],
)
def test_no_more_memory_is_taken_than_a_fifth_beyond_the_limit(network, megabytes, outcome):
    arguments = ["-m", "tests.posterior.limited", network, "natural", str(megabytes)]
    # Freed memory goes back to the system, so that it counts no longer.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(outcome)
