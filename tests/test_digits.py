"""Default arguments on real data: digits of classes that the network has never seen."""

import numpy as np

from benchmarks.digits import aurocs

# Neither these left-out classes nor the seeds were used to choose the defaults.
LEFT_OUT = [(1, 6), (0, 5), (2, 9)]
SEEDS = (10, 11)
N_POINTS = 25


def test_quam_finds_digits_that_the_network_does_not_know():
    results = [aurocs(left_out, seed, N_POINTS) for left_out in LEFT_OUT for seed in SEEDS]
    quam, ensemble, entropy = (
        np.mean([result[name] for result in results]) for name in ("quam", "ensemble", "entropy")
    )
    assert quam > entropy + 0.05
    assert quam > ensemble
