"""A run in a process of its own, to be killed."""

import signal
import sys
import time

import numpy as np
import torch
from torch import nn

from sklearn_quam import PenaltySearch, QUAMClassifier
from sklearn_quam._posterior import checkpoint

N_ROWS = 40
_rng = np.random.default_rng(0)
X = _rng.normal(size=(60, 4)).astype(np.float32)
Y = np.digitize(X[:, 0], [-0.5, 0.5])
X_NEW = _rng.normal(size=(N_ROWS, 4)).astype(np.float32)


class Slow(nn.Module):
    """A network that takes its time, for a while only when it is asked to."""

    def __init__(self, seconds=0.0):
        super().__init__()
        self.seconds = seconds
        generator = torch.Generator().manual_seed(0)
        self.layer = nn.Linear(4, 3)
        with torch.no_grad():
            for p in self.layer.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))

    def forward(self, x):
        if self.seconds:
            time.sleep(self.seconds)
        return self.layer(x)


def make(n_jobs=None, seconds=0.0, n_steps=10):
    search = PenaltySearch(n_steps=n_steps)
    est = QUAMClassifier(Slow(seconds), search=search, random_state=0, n_jobs=n_jobs, verbose=0)
    return est.fit(X, Y)


def in_small_chunks():
    """Let chunks be small, so that there are many."""
    checkpoint.ROWS_PER_CHUNK = 2


def main(folder, result, n_jobs, n_steps, seconds):
    # Who is started in the background may have inherited that interrupts are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    in_small_chunks()
    est = make(n_jobs, n_steps=n_steps, seconds=seconds)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        u = est.predict_uncertainty(X_NEW, checkpoint=folder or None)
    except KeyboardInterrupt:
        sys.stdout.write("stopped\n")
        sys.stdout.flush()
        raise
    np.save(result, np.stack(u))


if __name__ == "__main__":
    folder, result, n_jobs, n_steps, seconds = sys.argv[1:]
    main(folder, result, int(n_jobs), int(n_steps), float(seconds))
