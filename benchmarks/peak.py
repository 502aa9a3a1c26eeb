"""How much of what the processor can multiply natural search uses.

Floating-point operations of matrix products and convolutions are counted by torch
(``FlopCounterMode``) while samples are judged; they are divided by the processor seconds of the
same samples, and by what one large product of matrices in single precision reaches in the same
run, on one thread. What is no product, exponentials above all, takes time and counts nothing.

    python -m benchmarks.peak
"""

import time
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

from .paper.runs import options, report, run
from .scaling import BASE, prepare, quam, timed

CASES = {
    "MLP 20-64-64-5": {},
    "MLP 20-256-256-5": {"width": 256},
    "MLP 20-512-512-5": {"width": 512},
    "MLP 20-64-64-20": {"n_classes": 20},
    "MLP 20-64-64-200": {"n_classes": 200},
}
SIZE = 2048  # of the matrices


def peak(n_repeats=5):
    """Return the operations a second of a large product of matrices."""
    A, B = torch.rand(2, SIZE, SIZE)
    seconds = []
    for _ in range(n_repeats):
        start = time.process_time()
        A @ B
        seconds.append(time.process_time() - start)
    return 2 * SIZE**3 / min(seconds)


def measure(seed, changed):
    """Return operations a sample, and what of the peak they reach."""
    network, X, y, X_new = prepare(seed, **{**BASE, **changed})
    est = quam(network).fit(X, y)
    est.predict_uncertainty(X_new[:2])
    with FlopCounterMode(display=False) as counter:
        est.predict_uncertainty(X_new)
    # Before and after: the processor may be slower or faster meanwhile.
    before = peak()
    seconds = timed(partial(est.predict_uncertainty, X_new))
    largest = max(before, peak())
    n_operations = counter.get_total_flops()
    return {
        "million operations a sample": n_operations / len(X_new) / 1e6,
        "ms a sample": 1000 * seconds / len(X_new),
        "share of the peak": n_operations / seconds / largest,
        "peak, 1e9 a second": largest / 1e9,
    }


def main():
    chosen = options(__doc__, seed=0)
    torch.set_num_threads(1)
    path = chosen.out / "peak.json"
    tasks = {name: partial(measure, chosen.seed, changed) for name, changed in CASES.items()}
    settings = {"base": BASE, "cases": CASES, "size": SIZE, "seed": chosen.seed}
    found = run(path, settings, tasks)
    report(path, [{"network": name, **result} for name, result in found.items()])


if __name__ == "__main__":
    main()
