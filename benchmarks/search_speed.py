"""How fast the searches are, as ratios within one run.

- the batched search of many points and classes of an MLP against a plain loop with
  ``torch.optim.Adam`` and a copy of the module for each (point, class);
- the last layer of a convolutional network with the frozen part cached against without;
- how the cost grows with points, targets and steps;
- peak memory against ``memory_limit``.

Run with ``make bench`` or ``python -m benchmarks.search_speed``.
"""

import argparse
import copy
import resource
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax

from sklearn_quam import PenaltySearch, QUAMClassifier
from sklearn_quam._network import free
from sklearn_quam._network.cut.split import SplitModule
from sklearn_quam._search.penalty.engine import PenaltyEngine

N_CLASSES = 10
BATCH_SIZE = 64


def make_mlp():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, N_CLASSES)
    )


def make_cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, N_CLASSES),
    )


def trained(module, X, y, epochs=20):
    optimizer = torch.optim.Adam(module.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(X)).split(64):
            optimizer.zero_grad()
            cross_entropy(module(X[rows]), y[rows]).backward()
            optimizer.step()
    return module.eval()


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def plain_loop(module, X, y, points, n_steps):
    """Search one (point, class) after the other, as one would write it first."""
    with torch.no_grad():
        given_losses = cross_entropy(module(X), y, reduction="none")
    results = []
    for x in points:
        for target in range(N_CLASSES):
            model = copy.deepcopy(module)
            optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
            generator = torch.Generator().manual_seed(0)
            for step in range(n_steps):
                rows = torch.randint(len(X), (BATCH_SIZE,), generator=generator)
                loss = cross_entropy(model(X[rows]), y[rows])
                prediction = log_softmax(model(x[None]), dim=1)[0]
                objective = -prediction[target] + 6 * 1.9 ** (step // 7) * loss
                optimizer.param_groups[0]["lr"] = 5e-3 / 1.4 ** (step // 7)
                optimizer.zero_grad()
                objective.backward()
                optimizer.step()
                results.append((prediction.detach(), loss.detach() - given_losses[rows].mean()))
    return results


def seconds_of_loop(module, X, y, points, n_steps, n_threads):
    """Return the time of a search step of the plain loop."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    plain_loop(module, X, y, points[:1], 20)
    taken = seconds(lambda: plain_loop(module, X, y, points[:2], n_steps)) / 2
    torch.set_num_threads(before)
    return taken / N_CLASSES / n_steps


def report_loop(module, X, y, points, n_steps):
    loops = {
        n_threads: seconds_of_loop(module, X, y, points, n_steps, n_threads)
        for n_threads in sorted({1, torch.get_num_threads()})
    }
    for n_threads, loop in loops.items():
        print(f"plain loop, {n_threads} thread(s): {1e3 * loop:8.3f} ms a search step")
    for n_jobs in (1, 2):
        est = QUAMClassifier(
            module,
            search=PenaltySearch(n_steps=n_steps, batch_size=BATCH_SIZE, tol=0),
            random_state=0,
            n_jobs=n_jobs,
        )
        est.fit(X, y).predict_uncertainty(points[:32])
        taken = seconds(lambda est=est: est.predict_uncertainty(points))
        step = taken / len(points) / N_CLASSES / n_steps
        ratios = ", ".join(f"{loop / step:.1f}" for loop in loops.values())
        print(f"batched, n_jobs={n_jobs}:      {1e3 * step:8.3f} ms, times as fast: {ratios}")


def report_natural(module, X, y, points):
    """Compare natural and linear search with penalty search, and with what the machine can do."""
    taken = {}
    for search in ("penalty", "linear", "natural"):
        est = QUAMClassifier(module, search=search, random_state=0).fit(X, y)
        few = points[:16] if search == "penalty" else points
        est.predict_uncertainty(points[:8])
        taken[search] = seconds(lambda est=est, few=few: est.predict_uncertainty(few)) / len(few)
    for search in ("linear", "natural"):
        ratio = taken["penalty"] / taken[search]
        print(f"{search} search: {1e3 * taken[search]:.2f} ms a row, {ratio:.0f} times as fast")
    square = torch.randn(1024, 1024)
    peak = 2 * 1024**3 / seconds(lambda: square @ square)
    # Products of the layers behind the first one, for every class, model on the way and row.
    steps = est._fitted.models.engine.steps
    layers = [layer for layer in module if isinstance(layer, nn.Linear)][1:]
    products = sum(2 * layer.weight.numel() for layer in layers)
    needed = N_CLASSES * (steps.n_steps + 1) * steps.n_rows * products
    print(f"natural search: {needed / taken['natural'] / peak:.0%} of the matrix-multiply peak")


def report_cache(X, y, points):
    module = trained(make_cnn(), X, y, epochs=5)
    search = PenaltySearch(n_steps=20, tol=0)
    options = {"parameters": "last_layer", "search": search, "random_state": 0}

    def uncached(module, *_, **__):
        return SplitModule(None, module, "failed")

    cached_est = QUAMClassifier(module, **options).fit(X, y)
    with mock.patch.object(free, "split_module", uncached):
        uncached_est = QUAMClassifier(module, **options).fit(X, y)
    few = points[:8]
    with_cache = seconds(lambda: cached_est.predict_uncertainty(few))
    without = seconds(lambda: uncached_est.predict_uncertainty(few))
    print(f"last layer of a CNN, cached against not: {without / with_cache:.1f} times as fast")


def report_growth(module, X, y, points):
    def cost(n_points, targets, n_steps):
        search = PenaltySearch(n_steps=n_steps, tol=0, targets=targets)
        est = QUAMClassifier(module, search=search, random_state=0).fit(X, y)
        est.predict_uncertainty(points[:8])
        return seconds(lambda: est.predict_uncertainty(points[:n_points]))

    base = cost(64, 5, 50)
    print(
        "cost of twice as much, relative (2 is linear): "
        f"points {cost(128, 5, 50) / base:.2f}, targets {cost(64, 10, 50) / base:.2f}, "
        f"steps {cost(64, 5, 100) / base:.2f}"
    )


def measure_memory(name, limit):
    """Search under a memory limit and print by how much the peak of this process grew."""
    X, y = load_data()
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, N_CLASSES))
    module = {"wide MLP": wide, "CNN": make_cnn()}[name].eval()
    search = PenaltySearch(n_steps=8, tol=0)
    options = {"parameters": "all", "memory_limit": f"{limit}MB"}
    est = QUAMClassifier(module, search=search, **options).fit(X, y)
    with mock.patch.object(PenaltyEngine, "at_once_on_cpu", 10):
        est.predict_uncertainty(X[:2])  # libraries take their own memory once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with mock.patch.object(PenaltyEngine, "at_once_on_cpu", 10**9):
        models, limits = est._fitted.models, est._question(X).limits
        n_rows = models.rows_at_once(X, limits)
        searches = n_rows * models._targets_at_once(n_rows, limits)
        est.predict_uncertainty(X[:n_rows])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{name}, memory_limit {limit} MB, {searches} searches at once: peak grew by {grown:.0f} MB"
    )


def report_memory():
    for name in ("wide MLP", "CNN"):
        for limit in ("200", "800"):
            # A process of its own: its peak never falls.
            command = [sys.executable, "-m", "benchmarks.search_speed", "--memory", name, limit]
            subprocess.run(command, check=True)


def load_data():
    X, y = load_digits(return_X_y=True)
    return torch.tensor((X / 16).astype(np.float32)), torch.tensor(y)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--memory", nargs=2, metavar=("NETWORK", "MB"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        return measure_memory(*options.memory)
    X, y = load_data()
    points = X[-options.points :]
    module = trained(make_mlp(), X, y)
    report_natural(module, X, y, points)
    report_loop(module, X, y, points, options.steps)
    report_cache(X, y, points)
    report_growth(module, X, y, points)
    report_memory()
    return None


if __name__ == "__main__":
    main()
