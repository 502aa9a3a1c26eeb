"""The experiments of the paper, one script each: ``python -m benchmarks.paper.two_moons``."""
