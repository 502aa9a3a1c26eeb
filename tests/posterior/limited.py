"""A run in a process of its own whose memory is limited by the system.

Says whether rows were answered, and in pieces, or what the error said.
"""

import pickle
import resource
import sys
import warnings

import numpy as np
import torch
from torch import nn

from sklearn_quam import QUAMClassifier


class Attention(nn.Module):
    """A block of a transformer over 20 places."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.last = nn.Linear(64, 3)

    def forward(self, x):
        return self.last(self.block(self.first(x)).mean(dim=1))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 3),
    )


def dense():
    return nn.Sequential(
        nn.Linear(50, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5)
    )


def shallow(n_in, n_hidden):
    return nn.Sequential(nn.Linear(n_in, n_hidden), nn.Tanh(), nn.Linear(n_hidden, 10))


N_NEW = 6
# name -> network, shape of a row, number of classes, what is searched, number of training rows
CASES = {
    "dense": (dense, (50,), 5, "auto", 1000),
    "convolutions": (convolutions, (1, 28, 28), 3, "all", 300),
    "attention": (Attention, (20, 16), 3, "all", 300),
    "small": (lambda: shallow(64, 64), (64,), 10, "auto", 1500),
    "wide": (lambda: shallow(784, 1024), (784,), 10, "auto", 1500),
    "many rows": (lambda: shallow(20, 32), (20,), 10, "auto", 100_000),
    "head": (lambda: nn.Linear(1280, 1000), (1280,), 1000, "auto", 3000),
}


def address_space():
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[0]) * resource.getpagesize()


def main(name, search, megabytes):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    limit = int(megabytes * 1e6)
    network, shape, n_classes, parameters, n_rows = CASES[name]
    network = network()
    rows = np.random.default_rng(0).normal(size=(n_rows, *shape)).astype(np.float32)
    y = np.arange(n_rows) % n_classes

    def answer(memory_limit):
        est = QUAMClassifier(network, search=search, parameters=parameters, random_state=0)
        est.set_params(memory_limit=memory_limit, setting="expected").fit(rows, y)
        return est, est.predict_uncertainty(rows[:N_NEW])

    # Libraries that are loaded when they are first needed are no part of what is limited; what the
    # fitted estimator holds is not, either.
    est, expected = answer(None)
    held = len(pickle.dumps(est))
    del est
    allowed = address_space() + held + int(1.2 * limit)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    try:
        est, found = answer(limit)
    except ValueError as error:
        sys.stdout.write(f"refused: {error}\n")
        return
    for first, second in zip(found, expected, strict=True):
        # Rounding may draw another training row.
        np.testing.assert_allclose(first, second, rtol=5e-2, atol=1e-3)
    pieces = est._fitted.models.problem.rows_at_once
    sys.stdout.write("answered in pieces\n" if pieces < n_rows else "answered\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
