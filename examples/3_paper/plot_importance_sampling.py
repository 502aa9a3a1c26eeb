"""
Why search for more than one mode?
==================================

Epistemic uncertainty is an average over all plausible models. With samples it can be estimated
without bias from almost any proposal, but the variance of the estimate depends on where the samples
are. If the posterior has two modes and all samples come from around one of them, a few huge weights
have to make up for the mode that was missed. QUAM therefore searches the other modes and samples
around all of them. Here is the effect in one dimension, where the answer is known.
"""

# %%
# Two modes, two proposals
# ------------------------
# The posterior has two equal modes with a standard deviation of 1. What is averaged is
# :math:`w^2`, whose mean is :math:`1 + d^2 / 4` if the modes are :math:`d` apart.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

WIDTH = 1.5  # standard deviation of each part of a proposal


def mixture(w, centres, width):
    """Return the density of equally likely Gaussians."""
    w = np.asarray(w)[..., None]
    parts = np.exp(-(((w - centres) / width) ** 2) / 2) / (width * np.sqrt(2 * np.pi))
    return parts.mean(axis=-1)


def both_modes(distance):
    return np.array([-distance / 2, distance / 2])


# %%
# The variance of one weighted sample
# -----------------------------------
# In general it is an integral, here a sum over a fine grid. For a proposal with a single Gaussian
# there is a closed form, because products and quotients of Gaussians are Gaussians.


def by_quadrature(distance, n_modes):
    modes = both_modes(distance)
    w = np.linspace(-distance / 2 - 12, distance / 2 + 12, 20_001)
    weighted = w**2 * mixture(w, modes, 1.0)
    second_moment = (weighted**2 / mixture(w, modes[:n_modes], WIDTH)).sum() * (w[1] - w[0])
    return second_moment - (1 + distance**2 / 4) ** 2


def closed_form(distance):
    modes = both_modes(distance)
    second_moment = 0.0
    for first in modes:
        for second in modes:
            # A product of two modes over the proposal is exp(-a w^2 / 2 + b w - c / 2).
            a = 2 - WIDTH**-2
            b = first + second - modes[0] / WIDTH**2
            c = first**2 + second**2 - (modes[0] / WIDTH) ** 2
            mean, variance = b / a, 1 / a
            fourth = mean**4 + 6 * mean**2 * variance + 3 * variance**2
            second_moment += WIDTH * np.sqrt(variance) * np.exp((b * b / a - c) / 2) * fourth / 4
    return second_moment - (1 + distance**2 / 4) ** 2


# %%
# The same by simulation: many estimates, each from a hundred samples.


def estimates(distance, n_modes, n_estimates=4000, n_samples=100):
    rng = np.random.default_rng(0)
    modes, shape = both_modes(distance), (n_estimates, n_samples)
    w = rng.choice(modes[:n_modes], shape) + WIDTH * rng.normal(size=shape)
    weights = mixture(w, modes, 1.0) / mixture(w, modes[:n_modes], WIDTH)
    return (weights * w**2).mean(axis=1)


distances = np.arange(0.0, 4.5, 0.5)
table = pd.DataFrame(
    {
        "one mode": [by_quadrature(d, 1) for d in distances],
        "closed form": [closed_form(d) for d in distances],
        "one mode, simulated": [100 * estimates(d, 1).var() for d in distances],
        "both modes": [by_quadrature(d, 2) for d in distances],
        "both modes, simulated": [100 * estimates(d, 2).var() for d in distances],
    },
    index=pd.Index(distances, name="distance"),
)
np.testing.assert_allclose(table["one mode"], table["closed form"], rtol=1e-6)
table.round(2)

# %%
# The picture
# -----------
# In the middle are the estimates: around one mode, most are too small, and a few are far too large.
# On the right, lines are computed and markers are simulated.

ONE, BOTH = {"color": "#D55E00", "ls": "--"}, {"color": "#0072B2", "ls": "-"}
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
w = np.linspace(-6.5, 6.5, 400)
left.fill_between(w, mixture(w, both_modes(4), 1.0), color="0.85", label="posterior")
left.plot(w, mixture(w, both_modes(4)[:1], WIDTH), **ONE, label="around one mode")
left.plot(w, mixture(w, both_modes(4), WIDTH), **BOTH, label="around both modes")
left.set(title="posterior and proposals, distance 4", xlabel="weight $w$", ylabel="density")
left.set_ylim(0, 0.36)
left.legend(frameon=False, loc="upper right")

truth = 1 + 4**2 / 4
bins = np.linspace(0, 15, 61)
for style, n_modes in ((ONE, 1), (BOTH, 2)):
    values = estimates(4, n_modes).clip(*bins[[0, -1]])
    middle.hist(values, bins, histtype="step", lw=1.6, **style)
middle.axvline(truth, color="black", lw=1, ls=":")
middle.annotate(
    "true value",
    (truth, 0.97),
    (4, 0),
    xycoords=("data", "axes fraction"),
    textcoords="offset points",
    va="top",
)
middle.set(title="estimates, 100 samples each", xlabel="estimate (larger ones at the end)")
middle.set_ylabel("number of estimates")

right.semilogy(distances, table["one mode"], **ONE)
right.semilogy(distances, table["both modes"], **BOTH)
right.semilogy(distances, table["one mode, simulated"], "s", color=ONE["color"], ms=5)
right.semilogy(distances, table["both modes, simulated"], "o", color=BOTH["color"], ms=5)
right.set(title="variance of a weighted sample", xlabel="distance of the modes")
for ax in (left, middle, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# At the largest distance, in numbers:

ratio = table["one mode"] / table["both modes"]
print(f"ratio of the variances: {ratio.iloc[-1]:.0f}")
for n_modes in (1, 2):
    share = (estimates(4, n_modes) < truth).mean()
    print(f"share of estimates below the true value, {n_modes} mode(s) sampled: {share:.2f}")
