"""Tables of the results pages, made from the results that the project keeps.

``python docs/benchmark_tables.py`` writes them all into ``benchmarks/RESULTS.rst``, to be read in
the repository, and one into the README.
"""

import json
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import summary  # noqa: E402
from benchmarks.digests import RESULTS, earlier  # noqa: E402

README = ROOT / "README.rst"
PAGE = ROOT / "benchmarks" / "RESULTS.rst"
OLD = "Measured with an earlier version."
PARTS = ("questions", "scores", "forecast")


def stored(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def digits():
    rows = stored("digits")["results"]
    methods = {
        "entropy": "entropy of the network",
        "ensemble": "ensemble of 5",
        "laplace": "Laplace, all layers",
        "penalty": "QUAM, penalty search",
        "linear": "QUAM, linear search",
        "quam": "QUAM",
        "expected": 'QUAM, setting "expected"',
    }
    pairs = list(dict.fromkeys(tuple(row["left_out"]) for row in rows))
    table = []
    for key, name in methods.items():
        means = [np.mean([r[key] for r in rows if tuple(r["left_out"]) == p]) for p in pairs]
        labels = ["without " + " and ".join(map(str, p)) for p in pairs]
        table.append(
            {"method": name, **dict(zip(labels, means, strict=True)), "mean": np.mean(means)}
        )
    return table


def baselines():
    rows = stored("baselines")["results"]
    columns = {
        "seconds to fit": "fit_seconds",
        "points a second": "points_per_second",
        "megabytes": "megabytes",
        "AUROC": "auroc",
    }
    return [
        {"method": method}
        | {
            title: np.mean([row[key] for row in rows if row["method"] == method])
            for title, key in columns.items()
        }
        for method in dict.fromkeys(row["method"] for row in rows)
    ]


def summary_of(name):
    """Return what the script of an experiment has printed and kept."""
    return stored(name)["summary"]


# The paper's AUROCs for MNIST, means of three networks.
PAPER = {
    "Reference": (0.986, 0.966, 0.888, 0.973),
    "CyclicalSGHMC": (0.977, 0.957, 0.869, 0.963),
    "Laplace": (0.978, 0.959, 0.877, 0.963),
    "MCDropout": (0.978, 0.956, 0.876, 0.965),
    "DeepEnsemble": (0.988, 0.990, 0.924, 0.983),
    "MixtureLaplace": (0.986, 0.984, 0.920, 0.979),
    "QUAM": (0.994, 0.994, 0.937, 0.992),
}
SETS = ("FMNIST", "KMNIST", "EMNIST", "OMNIGLOT")


def paper():
    """Return the paper's AUROCs on MNIST beside those of the same methods here."""
    family, rows = summary.FAMILIES["mnist"], []
    entries = summary.entries_of(family)
    for method, values in PAPER.items():
        row = {"method": summary.label(family, method, "given")}
        for k, name in enumerate(SETS):
            found = [
                entry["given"]["unknown"]["epistemic"][name]["value"]
                for entry in entries.get(method, {}).values()
            ]
            row |= {
                f"{name}, paper": values[k],
                "here" + " " * k: np.mean(found) if found else None,
            }
        rows.append(row)
    return rows


TABLES = {
    "overall": lambda: summary.overall(),
    "paper": paper,
    **{
        f"{name}_{part}": partial(getattr(summary, part), family)
        for name, family in summary.FAMILIES.items()
        for part in (*PARTS, "parts")
    },
    "tables_ranks": lambda: summary.ranks_of_tables()[0],
    "digits": digits,
    "baselines": baselines,
    **{
        name: partial(summary_of, name)
        for name in (
            "defaults",
            "two_moons",
            "sine",
            "simplex",
            "calibration",
            "mistakes",
            "uci",
            "diversity",
            "combination",
            "beyond_range",
            "intervals",
            "sets",
            "brute_force",
            "costs",
            "many_rows",
            "peer_loop",
            "scaling",
            "peak",
            "peers_on_mnist",
        )
    },
    "beyond_range_by_factor": lambda: stored("beyond_range")["by_factor"],
    **{
        f"scaling_{part}": lambda part=part: stored("scaling")[part]
        for part in ("relative", "workers", "traffic", "check", "million")
    },
}
# Figures, with the captions that they have on the pages.
FIGURES = {
    "tradeoff": "Milliseconds a sample, and what they buy: means over families.",
    "two_moons": "Epistemic uncertainty over the plane, for one data set; bright is uncertain.",
    "sine": "Predicted mean, with two standard deviations of the mean (dark) and of new targets.",
    "simplex": "Predictions of plausible models (orange) for one point. Darker predictions can "
    "explain the training data better.",
    "uci": "Log score of each method on each data set; the best one is orange.",
    "calibration": "Log score, and area under accuracy and rejection; the best one is orange.",
    "mistakes": "AUROC with 95 % intervals; the best one is orange.",
    "diversity": "Share of the variance of attributions that the first components explain.",
    "importance": "Left: a target with two modes, and two distributions to sample from. Right: the "
    "variance of a weighted sample, by the distance of the modes.",
    "scaling": "Processor seconds, with fits of a constant plus a share of the size. Bottom right: "
    "hours for a million samples, on paper.",
}
# What columns are called on the pages, where scripts have short names.
TITLES = {
    "auroc": "AUROC",
    "aupr": "AUPR",
    "ece": "calibration error",
    "fpr95": "FPR95",
    "n_fooled": "attacks that succeed",
    "n_mistakes": "number of mistakes",
    "pearson": "Pearson",
    "rmse": "RMSE",
    "spearman": "Spearman",
}


def text(value):
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"


NO_BREAK = "\N{NO-BREAK SPACE}"


def with_intervals(row):
    """Return cells by title, with the ends of an interval behind the value."""
    cells = {}
    for key, value in row.items():
        if not key.endswith(("_low", "_high")):
            cell = text(value)
            if row.get(f"{key}_low") is not None:
                ends = text(row[f"{key}_low"]), text(row[f"{key}_high"])
                cell = f"{cell} ({ends[0]} to {ends[1]})".replace(" ", NO_BREAK)
            # A hyphen alone would begin a list.
            cells[title(key)] = r"\-" if cell == "-" else cell
    return cells


def title(key):
    """Return what a column is called on a page."""
    place, _, name = key.partition("_")
    if place == "corner":
        return f"{title(name)}, corners"
    return TITLES.get(key, key.replace("_", " "))


def as_rst(rows):
    """Return a table of a page; few rows of many columns are turned to fit the page."""
    rows = [with_intervals(row) for row in rows]
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    turned = len(lines[0]) > 10 and len(rows) < 6
    if turned:
        lines = list(zip(*lines, strict=True))
    table = [".. list-table::", "   :header-rows: 1", "   :stub-columns: 1"][: 3 if turned else 2]
    table.append("")
    for line in lines:
        table += [f"   {'*' if not i else ' '} - {cell}" for i, cell in enumerate(line)]
    return "\n".join(table) + "\n"


def as_text(rows):
    """Return a table that can be read as it is."""
    cells = [list(rows[0]), *([text(value) for value in row.values()] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    rule = "  ".join("=" * width for width in widths)
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule]) + "\n"


def file_of(name):
    """Return which file of results a table is made of, or None if it marks methods itself."""
    if name in ("overall", "paper", "tradeoff") or name.rpartition("_")[0] in summary.FAMILIES:
        return None
    files = [path.stem for path in RESULTS.glob("*.json") if name.startswith(path.stem)]
    return max(files, key=len, default=None)


def is_earlier(name):
    """Return whether a table is of an earlier version as a whole."""
    return file_of(name) in earlier()


def family_tables(name, *more):
    return [f"{name}_{part}" for part in (*PARTS, *more)]


# What stands in RESULTS.rst: title, script, and the tables.
SECTIONS = (
    ("All methods over all families", "benchmarks.results --data DIR", ["overall"]),
    ("ImageNet", "benchmarks.results --data DIR --only imagenet", family_tables("imagenet")),
    ("CIFAR-10", "benchmarks.results --data DIR --only cifar10", family_tables("cifar10", "parts")),
    ("MNIST", "benchmarks.results --data DIR --only mnist", family_tables("mnist")),
    ("Text", "benchmarks.results --data DIR --only text", family_tables("text")),
    (
        "Small tables",
        "benchmarks.results --data DIR --only tables",
        [*family_tables("tables"), "tables_ranks"],
    ),
    ("The paper's table", "benchmarks.results --data DIR --only mnist", ["paper"]),
    ("Left-out digits", "benchmarks.digits", ["digits"]),
    ("All methods on one small network", "benchmarks.baselines", ["baselines"]),
    ("Two moons, against HMC", "benchmarks.paper.two_moons", ["two_moons"]),
    ("Sine, against HMC", "benchmarks.paper.sine", ["sine"]),
    ("The simplex", "benchmarks.paper.simplex", ["simplex"]),
    ("UCI regression", "benchmarks.paper.uci", ["uci"]),
    ("Calibration and selective prediction", "benchmarks.paper.calibration", ["calibration"]),
    ("Mistakes and adversarial inputs", "benchmarks.paper.mistakes", ["mistakes"]),
    ("Intervals", "benchmarks.intervals", ["intervals"]),
    ("Sets of labels", "benchmarks.sets", ["sets"]),
    ("Found and least costs of rivals", "benchmarks.brute_force", ["brute_force"]),
    ("Costs on some and on all training rows", "benchmarks.costs", ["costs"]),
    ("QUAM and a detector together", "benchmarks.combination", ["combination"]),
    (
        "Rows beyond the range of the training data",
        "benchmarks.beyond_range",
        ["beyond_range_by_factor", "beyond_range"],
    ),
    ("Many training rows", "benchmarks.many_rows", ["many_rows"]),
    ("How cost grows", "benchmarks.scaling", ["scaling", "scaling_relative", "scaling_million"]),
    ("What of the processor is used", "benchmarks.peak", ["peak"]),
    ("One image and one network at a time", "benchmarks.peer_loop", ["peer_loop"]),
    ("Against peers in one run", "benchmarks.peers_on_mnist", ["peers_on_mnist"]),
    ("How different the found models are", "benchmarks.paper.diversity", ["diversity"]),
    ("What other defaults would buy", "benchmarks.defaults", ["defaults"]),
)


INTRODUCTION = """Results
=======

Made by ``python docs/benchmark_tables.py`` from ``benchmarks/results/``; do not edit. The
documentation says what each experiment is, and what its numbers mean. Behind ± is half of a 95 %
bootstrap interval. "near" and "far" are AUROCs of unknown samples, "mistakes" is the AUROC of
mistakes, AUGRC is the area under the generalised risk of both together (lower is better). A † marks
methods that were measured with an earlier version.
"""


# What the README shows: a method once, with default arguments.
SHOWN = {
    "QUAM": "QUAM",
    "QUAM, expected": 'QUAM, setting="expected"',
    "NearestNeighbor": "nearest neighbours",
    "PNML": "pNML",
    "Reference": "the network alone",
}
COLUMNS = (
    ("Unknown", "unknown", 3),
    ("Mistakes", "mistakes", 3),
    ("Both (AUGRC, %)", "AUGRC, %", 1),
)


def readme_table():
    """Return the table of the README."""
    rows = []
    for row in summary.overall():
        method = row["method"].removesuffix(" †")
        if method in SHOWN:
            own = {"Method": SHOWN[method] + row["method"].removeprefix(method)}
            for title, key, digits in COLUMNS:
                if key in row:
                    own[title] = f"{row[key]:.{digits}f}".removeprefix("0")
            rows.append(own | {"Samples a second": _rounded(1000 / row["ms a sample"])})
    return as_text(rows)


def with_table(text):
    """Return the README with the present table in place of the one that it has."""
    section = text.index("How well it works\n")
    start = text.index("\n==", section) + 1
    return text[:start] + readme_table() + text[text.index("\n\n", start) + 1 :]


def _rounded(value):
    """Return a number with two digits that count."""
    digits = max(0, int(np.floor(np.log10(value))) - 1)
    return f"{round(value, -digits):,.0f}"


def results_page():
    """Return all tables as one text."""
    parts = [INTRODUCTION]
    for title, script, names in SECTIONS:
        parts.append(f"{title}\n{'-' * len(title)}\n``python -m {script}``\n")
        for name in names:
            rows = TABLES[name]()
            if rows:
                parts += [f"{OLD}\n"] * is_earlier(name) + [as_text(rows)]
    return "\n".join(parts)


def write(folder):
    """Write a table for each result that is there; what is not there is said to be missing."""
    folder.mkdir(exist_ok=True)
    for name, table in TABLES.items():
        try:
            rows = table()
            content = f".. note:: {OLD}\n\n" * is_earlier(name)
            content += as_rst(rows) if rows else "Not measured yet.\n"
        except (FileNotFoundError, KeyError):  # a run that was not finished has no summary
            content = "Not measured yet.\n"
        (folder / f"{name}.rst").write_text(content)
    for name, caption in FIGURES.items():
        figure = RESULTS / f"{name}.png"
        content = "Not drawn yet.\n"
        if figure.exists():
            shutil.copy(figure, folder / figure.name)
            content = (
                f".. note:: {OLD}\n\n"
                * is_earlier(name)
                + f".. figure:: /generated/{figure.name}\n"
                f"   :alt: {caption}\n"
                f"   :target: ../_images/{figure.name}\n\n"  # in full size
                f"   {caption}\n"
            )
        (folder / f"{name}_figure.rst").write_text(content)


if __name__ == "__main__":
    PAGE.write_text(results_page())
    README.write_text(with_table(README.read_text()))
