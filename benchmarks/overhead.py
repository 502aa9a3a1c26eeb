"""What the shared machinery costs: predict_uncertainty against the bare network.

Prints ratios of times measured in one run, so that they can be compared between machines.
Run with ``make bench`` or ``python -m benchmarks.overhead``.
"""

import statistics
import time

import numpy as np
import torch
from torch import nn

from sklearn_quam import ReferenceClassifier


def seconds(function, repeats=15):
    """Return the median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    rng = np.random.default_rng(0)
    module = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    ).eval()
    y = rng.integers(0, 10, size=1000)
    est = ReferenceClassifier(module).fit(rng.normal(size=(1000, 64)).astype(np.float32), y)
    print("rows    predict_uncertainty / forward pass of the network")
    for n_rows in (100, 1_000, 10_000, 100_000):
        X = rng.normal(size=(n_rows, 64)).astype(np.float32)
        tensor = torch.tensor(X)
        with torch.no_grad():
            forward = seconds(lambda rows=tensor: module(rows))
        ours = seconds(lambda rows=X: est.predict_uncertainty(rows))
        print(f"{n_rows:<7} {ours / forward:.2f}")


if __name__ == "__main__":
    main()
