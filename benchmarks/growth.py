"""Fits of how cost grows, and a model of what rows take on a cluster: plain numbers only."""

import math

import numpy as np
from scipy.optimize import minimize


def power_law(sizes, seconds):
    """Return exponent and factor of a power of the size, and the residual in logarithms."""
    slope, intercept = np.polyfit(np.log(sizes), np.log(seconds), 1)
    found = np.exp(intercept) * np.asarray(sizes, float) ** slope
    return {
        "exponent": float(slope),
        "factor": float(np.exp(intercept)),
        "residual": _residual(found, seconds),
    }


def constant_and_share(sizes, seconds):
    """Return constant and slope, neither negative, of a straight line, and the residual."""
    sizes, seconds = np.asarray(sizes, float), np.asarray(seconds, float)

    def line(logs):
        constant, slope = np.exp(logs)
        return constant + slope * sizes

    start = np.log([seconds.min() / 2, (seconds / sizes).min() / 2])
    found = minimize(
        lambda logs: np.square(np.log(line(logs) / seconds)).sum(),
        start,
        method="Nelder-Mead",
        options={"maxiter": 10_000, "xatol": 1e-8, "fatol": 1e-12},
    ).x
    constant, slope = np.exp(found)
    if slope * sizes.max() < 1e-6 * constant:  # logarithms never get to zero
        slope = 0.0
    return {
        "constant": float(constant),
        "slope": float(slope),
        "residual": _residual(line(found), seconds),
    }


def _residual(found, seconds):
    """Return the root mean square of the differences of logarithms."""
    return float(np.sqrt(np.square(np.log(found / np.asarray(seconds))).mean()))


def extrapolate(
    n_rows,
    n_machines,
    n_cores,
    *,
    fit_seconds,
    seconds_per_row,
    constant=0.0,
    bytes_of_method=0,
    bytes_per_row=0,
    bits_per_second=math.inf,
):
    """Return what rows take on a cluster with a process of one thread for every core, in seconds.

    Nothing is taken to overlap. The fitted method goes from the client to the scheduler and from
    there to a worker, once; then every process that has it hands it to two others, until all have
    it. Rows and answers go through the link of the scheduler.
    """
    n_processes = n_machines * n_cores
    second = 8 / bits_per_second
    rounds = math.ceil(math.log(n_processes, 3) - 1e-9)
    sends = n_processes > 1
    parts = {
        "fit": fit_seconds,
        "search": constant + n_rows * seconds_per_row / n_processes,
        "send method": sends * (2 + 2 * rounds) * bytes_of_method * second,
        "send rows": sends * 2 * n_rows * bytes_per_row * second,
    }
    return {**parts, "total": sum(parts.values())}
