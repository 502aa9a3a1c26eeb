"""Draw what a sample costs against what it buys, for all methods, from the stored results.

Milliseconds a sample against AUGRC of mistakes and unknown samples together (below is better), both
means over families; where AUGRC was not measured, against the AUROC of unknown samples.

    python -m benchmarks.tradeoff
"""

from .digests import RESULTS
from .paper.runs import save_figure
from .summary import FAMILIES, NETWORK, WITHOUT_FORECAST, overall

# Okabe's and Ito's colours, with markers of their own: kinds differ in print, too.
KINDS = {
    "QUAM": ("#D55E00", "*", 130),
    "detectors": ("#0072B2", "s", 35),
    "methods that draw models": ("#009E73", "o", 40),
    "the network alone": ("#000000", "D", 45),
}


def kind_of(method):
    name = method.removesuffix(" †").partition(", ")
    if name[0] == "QUAM":
        return "QUAM"
    if method.removesuffix(" †") in WITHOUT_FORECAST:
        return "detectors"
    return "the network alone" if name[0] == NETWORK else "methods that draw models"


def draw(rows, path):
    import matplotlib.pyplot as plt

    column = "AUGRC, %" if "AUGRC, %" in rows[0] else "unknown"
    figure, ax = plt.subplots(figsize=(8, 5), layout="constrained")
    for kind, (colour, marker, size) in KINDS.items():
        own = [row for row in rows if kind_of(row["method"]) == kind]
        x, y = ([row[key] for row in own] for key in ("ms a sample", column))
        ax.scatter(x, y, s=size, c=colour, marker=marker, label=kind, zorder=3)
    placed = []
    low, high = (end(row[column] for row in rows) for end in (min, max))
    gap = (high - low) / 32
    # Labels that would lie on each other move up; a line leads back to the point.
    for row in sorted(rows, key=lambda row: row[column]):
        x, y = row["ms a sample"], row[column]
        while any(abs(y - other) < gap and 0.2 < x / at < 5 for at, other in placed):
            y += gap / 4
        placed.append((x, y))
        ax.plot([x, x], [row[column], y], color="0.6", lw=0.6, zorder=1)
        ax.annotate(
            row["method"], (x, y), (6, 0), textcoords="offset points", fontsize=7, va="center"
        )
    ax.set_xscale("log")
    ax.set_xlabel("milliseconds a sample, one thread")
    of_unknown = "mean AUROC of unknown samples"
    ax.set_ylabel("mean AUGRC, % (lower is better)" if column != "unknown" else of_unknown)
    old = any(row["method"].endswith("†") for row in rows)
    title = f"Means over {len(FAMILIES)} families"
    ax.set_title(f"{title}; † measured with an earlier version" if old else title, fontsize=9)
    ax.margins(x=0.15)
    ax.legend(frameon=False, fontsize=8)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


if __name__ == "__main__":
    draw(overall(), RESULTS / "tradeoff.png")
