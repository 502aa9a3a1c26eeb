"""Tables of the results pages, made from the results that the project keeps.

``python docs/benchmark_tables.py`` writes them all into ``benchmarks/RESULTS.rst``, for those who
read the repository and not the site.
"""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RESULTS = BENCHMARKS / "results"
PAGE = BENCHMARKS / "RESULTS.rst"
SCALE = ("imagenet", "cifar10", "mnist", "text")


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


def with_intervals(name, part):
    """Return a table in which half of the 95 % interval stands behind a value."""
    rows = stored(name)[part]
    columns = [column for column in rows[0] if not column.endswith(("_low", "_high"))]
    return [{column: _with_interval(row, column) for column in columns} for row in rows]


def _with_interval(row, column):
    low, high = row.get(f"{column}_low"), row.get(f"{column}_high")
    if row.get(column) is None or low is None:
        return row.get(column)
    return f"{row[column]:.3f} ± {(high - low) / 2:.3f}".replace("0.", ".")


def summary_of_ranks():
    """Return ranks with their intervals, and AUROCs by family."""
    return [
        {
            "method": row["method"],
            "mean rank": f"{row['mean rank']:.1f} ({row['low']:.1f} to {row['high']:.1f})",
            **{
                column: value
                for column, value in row.items()
                if column not in ("method", "mean rank", "low", "high")
            },
        }
        for row in summary_of("ranks")
    ]


TABLES = {
    "ranks": summary_of_ranks,
    **{
        f"{name}_{part}": partial(with_intervals, name, part)
        for name in SCALE
        for part in ("ood", "total", "own", "speed")
    },
    "digits": digits,
    "baselines": baselines,
    **{
        name: partial(summary_of, name)
        for name in (
            "defaults",
            "two_moons",
            "sine",
            "simplex",
            "mnist_300",
            "mnist_tuning",
            "calibration",
            "mistakes",
            "uci",
            "diversity",
            "tables",
            "combination",
            "beyond_range",
            "intervals",
            "sets",
            "brute_force",
            "costs",
            "many_rows",
            "peer_loop",
            "scaling",
            "peers_on_mnist",
        )
    },
    "tables_by_table": lambda: stored("tables")["by table"],
    "beyond_range_by_factor": lambda: stored("beyond_range")["by_factor"],
    **{
        f"scaling_{part}": lambda part=part: stored("scaling")[part]
        for part in ("relative", "workers", "traffic", "check", "million")
    },
}
FIGURES = (
    "ranks",
    *SCALE,
    *(f"{name}_reject" for name in SCALE),
    "two_moons",
    "sine",
    "simplex",
    "budget",
    "uci",
    "calibration",
    "mistakes",
    "diversity",
    "importance",
    "tables",
    "scaling",
)


def text(value):
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"


def as_rst(rows):
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in [dict(zip(rows[0], rows[0], strict=True)), *rows]:
        cells = [text(value) for value in row.values()]
        lines += [f"   {'*' if not i else ' '} - {cell}" for i, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


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


def scale_tables(name):
    return [f"{name}_{part}" for part in ("ood", "total", "own", "speed")]


# What stands in RESULTS.rst: title, script, and the tables.
SECTIONS = (
    ("All methods over all tasks", "benchmarks.ranks", ["ranks"]),
    ("ImageNet", "benchmarks.scale.imagenet", scale_tables("imagenet")),
    ("CIFAR-10", "benchmarks.scale.cifar10", scale_tables("cifar10")),
    ("MNIST", "benchmarks.scale.mnist", scale_tables("mnist")),
    ("Text", "benchmarks.scale.text", scale_tables("text")),
    ("Small tables", "benchmarks.tables", ["tables", "tables_by_table"]),
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
    ("One image and one network at a time", "benchmarks.peer_loop", ["peer_loop"]),
    ("Against peers in one run", "benchmarks.peers_on_mnist", ["peers_on_mnist"]),
    ("How different the found models are", "benchmarks.paper.diversity", ["diversity"]),
    ("What other defaults would buy", "benchmarks.defaults", ["defaults"]),
)


INTRODUCTION = """Results
=======

Made by ``python docs/benchmark_tables.py`` from ``benchmarks/results/``; do not edit. The
documentation says what each experiment is, and what its numbers mean. Behind ± is half of a 95 %
bootstrap interval. Where nothing else is said, numbers are AUROCs.
"""


# What the README shows: a method once, with default arguments.
SHOWN = {
    "QUAM": "QUAM",
    "QUAM, expected": 'QUAM, setting="expected"',
    "NearestNeighbor": "nearest neighbours",
    "PNML": "pNML",
    "Reference": "entropy of the network",
}


def readme_table():
    """Return the table of the README."""
    return as_text(
        [
            {
                "Method": SHOWN[row["method"]],
                "Mean AUROC": f"{row['mean AUROC']:.3f}".removeprefix("0"),
                "Mean rank": f"{row['mean rank']:.1f}",
                "Rank, mistakes": f"{row['rank for mistakes']:.1f}",
                "Rows a second": _rounded(row["rows a second"]),
            }
            for row in summary_of("ranks")
            if row["method"] in SHOWN
        ]
    )


def _rounded(value):
    """Return a number with two digits that count."""
    digits = max(0, int(np.floor(np.log10(value))) - 1)
    return f"{round(value, -digits):,.0f}"


def results_page():
    """Return all tables as one text."""
    parts = [INTRODUCTION]
    for title, script, names in SECTIONS:
        parts.append(f"{title}\n{'-' * len(title)}\n``python -m {script}``\n")
        parts += [as_text(TABLES[name]()) for name in names]
    return "\n".join(parts)


def write(folder):
    """Write a table for each result that is there; what is not there is said to be missing."""
    folder.mkdir(exist_ok=True)
    for name, table in TABLES.items():
        try:
            content = as_rst(table())
        except (FileNotFoundError, KeyError):  # a run that was not finished has no summary
            content = "Not measured yet.\n"
        (folder / f"{name}.rst").write_text(content)
    for name in FIGURES:
        figure = RESULTS / f"{name}.png"
        content = "Not drawn yet.\n"
        if figure.exists():
            shutil.copy(figure, folder / figure.name)
            content = (
                f".. image:: /generated/{figure.name}\n"
                f"   :alt: {name.replace('_', ' ')}\n"
                f"   :target: ../_images/{figure.name}\n"  # in full size
            )
        (folder / f"{name}_figure.rst").write_text(content)


if __name__ == "__main__":
    PAGE.write_text(results_page())
