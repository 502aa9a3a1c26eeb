"""Importance sampling: why adversarial models of several modes beat samples around one of them.

The target has two modes, one of which a search around the given model would miss. Estimates of an
expectation with samples around one mode, and with samples around both, are unbiased alike, but
their variances differ the more, the further the modes are apart. Both are computed by quadrature
and checked: against the closed form, where there is one, and against simulated estimates.

    python -m benchmarks.paper.importance --out DIR
"""

import numpy as np
from scipy.integrate import quad
from scipy.stats import norm

from .runs import options, report, run, save_figure

WIDTH = 1.5  # standard deviation of the proposals; the modes have 1
N_SAMPLES = 100


def modes(distance):
    return np.array([-distance / 2, distance / 2])


def target(w, distance):
    return norm.pdf(np.asarray(w)[..., None], modes(distance)).mean(axis=-1)


def value(w):
    """Return what is averaged: a divergence that grows with the distance from the given model."""
    return np.asarray(w) ** 2


def proposal(w, distance, n_modes):
    centres = modes(distance)[:n_modes]
    return norm.pdf(np.asarray(w)[..., None], centres, WIDTH).mean(axis=-1)


def variance(distance, n_modes):
    """Return the variance of one weighted sample, by quadrature."""

    def integrand(w):
        return value(w) ** 2 * target(w, distance) ** 2 / proposal(w, distance, n_modes)

    edge = distance / 2 + 12
    second, _ = quad(integrand, -edge, edge, points=list(modes(distance)), limit=500)
    return second - (1 + distance**2 / 4) ** 2


def closed_form(distance):
    """Return the variance for a single Gaussian proposal: products of Gaussians are Gaussians."""
    centres = modes(distance)
    second = 0.0
    for first in centres:
        for other in centres:
            # exp(-a w^2 / 2 + b w - c / 2), times constants
            a = 2 - WIDTH**-2
            b = first + other - centres[0] / WIDTH**2
            c = first**2 + other**2 - (centres[0] / WIDTH) ** 2
            constant = WIDTH / np.sqrt(2 * np.pi) * np.exp((b * b / a - c) / 2)
            mean, spread = b / a, 1 / a
            fourth = mean**4 + 6 * mean**2 * spread + 3 * spread**2
            second += constant * np.sqrt(2 * np.pi / a) * fourth / 4
    return second - (1 + distance**2 / 4) ** 2


def simulated(distance, n_modes, n_estimates=20_000):
    """Return the variance of estimates with N_SAMPLES samples, times their number."""
    rng = np.random.default_rng(0)
    shape = (n_estimates, N_SAMPLES)
    w = rng.choice(modes(distance)[:n_modes], shape) + WIDTH * rng.normal(size=shape)
    weighted = value(w) * target(w, distance) / proposal(w, distance, n_modes)
    return float(weighted.mean(axis=1).var() * N_SAMPLES)


def measure(distance):
    return {
        "distance": distance,
        "around one mode": variance(distance, 1),
        "closed form": closed_form(distance),
        "around both": variance(distance, 2),
        "one, simulated": simulated(distance, 1),
        "both, simulated": simulated(distance, 2),
    }


def plot(rows, path):
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    w = np.linspace(-6, 6, 300)
    left.fill_between(w, target(w, 4), color="0.85", label="target")
    left.plot(w, proposal(w, 4, 1), color="#D55E00", ls="--", label="around one mode")
    left.plot(w, proposal(w, 4, 2), color="#0072B2", label="around both modes")
    left.set(xlabel="weight", ylabel="density", ylim=(0, None))
    distance = [row["distance"] for row in rows]
    right.semilogy(distance, [r["around one mode"] for r in rows], color="#D55E00", ls="--")
    right.semilogy(distance, [r["around both"] for r in rows], color="#0072B2")
    for name, colour in (("one, simulated", "#D55E00"), ("both, simulated", "#0072B2")):
        right.scatter(distance, [r[name] for r in rows], color=colour, s=14)
    right.set(xlabel="distance of the modes", ylabel="variance of a weighted sample")
    left.legend(frameon=False, loc="upper right")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def main():
    chosen = options(__doc__, distances=[0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0])
    tasks = {f"distance {d:g}": lambda d=d: measure(d) for d in chosen.distances}
    settings = {"width": WIDTH, "samples": N_SAMPLES}
    path = chosen.out / "importance.json"
    rows = list(run(path, settings, tasks).values())
    report(path, rows)
    worst = max(abs(row["around one mode"] / row["closed form"] - 1) for row in rows)
    print(f"quadrature against the closed form: relative difference at most {worst:.1e}")
    plot(rows, chosen.out / "importance.png")


if __name__ == "__main__":
    main()
