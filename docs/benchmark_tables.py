"""Tables of the benchmarks page, made from the results that the project keeps."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


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


TABLES = {
    "digits": digits,
    "baselines": baselines,
    **{
        name: partial(summary_of, name)
        for name in (
            "defaults",
            "two_moons",
            "sine",
            "simplex",
            "mnist",
            "mnist_300",
            "mnist_tuning",
            "calibration",
            "mistakes",
            "uci",
            "diversity",
            "tables",
            "combination",
            "intervals",
            "sets",
            "large_head",
            "many_rows",
            "peer_loop",
            "scaling",
            "peers_on_mnist",
        )
    },
    "tables_by_table": lambda: stored("tables")["by table"],
    **{
        f"scaling_{part}": lambda part=part: stored("scaling")[part]
        for part in ("relative", "workers", "traffic", "check", "million")
    },
}
FIGURES = (
    "two_moons",
    "sine",
    "simplex",
    "mnist",
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
                f".. image:: generated/{figure.name}\n"
                f"   :alt: {name.replace('_', ' ')}\n"
                f"   :target: _images/{figure.name}\n"  # in full size
            )
        (folder / f"{name}_figure.rst").write_text(content)
