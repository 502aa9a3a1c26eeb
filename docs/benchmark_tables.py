"""Tables of the benchmarks page, made from the results that the project keeps."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT))


def stored(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def seeds_and_methods(results):
    """Return what the names of results, "method seed", are made of."""
    names = [name.rsplit(" ", 1) for name in results]
    return sorted({int(seed) for _, seed in names}), list(dict.fromkeys(m for m, _ in names))


def digits():
    rows = stored("digits")["results"]
    methods = {"entropy": "entropy of the network", "ensemble": "ensemble of 5", "quam": "QUAM"}
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


def defaults():
    return [{"setting": name, **result} for name, result in stored("defaults")["results"].items()]


def two_moons():
    from benchmarks.paper.two_moons import summarise

    results = stored("two_moons")["results"]
    return summarise(results, *seeds_and_methods(results))


def sine():
    from benchmarks.paper.sine import summarise

    results = stored("sine")["results"]
    return summarise(results, *seeds_and_methods(results))


def mnist():
    from benchmarks.paper.mnist import summarise

    results = stored("mnist")["results"]
    parts = [name.split(", ") for name in results]
    chosen = SimpleNamespace(
        methods=list(dict.fromkeys(method for method, _, _ in parts)),
        seeds=sorted({int(seed.removeprefix("seed ")) for _, seed, _ in parts}),
    )
    columns = ("method", "set", "auroc", "auroc_low", "auroc_high", "aupr", "fpr95", "seconds")
    return [{name: row[name] for name in columns} for row in summarise(results, chosen)]


def mnist_tuning():
    return [{"setting": name, **row} for name, row in stored("mnist_tuning")["results"].items()]


def uci():
    from benchmarks.paper.uci import summarise

    results = stored("uci")["results"]
    parts = [name.split(", ") for name in results]
    chosen = SimpleNamespace(
        sets=list(dict.fromkeys(name for name, _, _ in parts)),
        splits=sorted({int(split.removeprefix("split ")) for _, split, _ in parts}),
        methods=list(dict.fromkeys(method for _, _, method in parts)),
    )
    columns = ("data", "method", "log score", "log score sd", "rmse", "rank correlation")
    return [{c: row.get(c) for c in columns} for row in summarise(results, chosen)]


def simplex():
    from benchmarks.paper.simplex import summarise

    results = stored("simplex")["results"]
    seeds, methods = seeds_and_methods(results)
    return summarise(results, seeds, [method for method in methods if method != "background"])


def diversity():
    from benchmarks.paper.diversity import summarise

    return summarise(list(stored("diversity")["results"].values()))


def of_cases(name):
    from benchmarks.paper.cases import summarise

    return summarise(stored(name)["results"])


def calibration():
    return of_cases("calibration")


def mistakes():
    return of_cases("mistakes")


TABLES = (
    digits,
    baselines,
    defaults,
    two_moons,
    sine,
    simplex,
    mnist,
    mnist_tuning,
    calibration,
    mistakes,
    uci,
    diversity,
)
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
    for table in TABLES:
        try:
            content = as_rst(table())
        except FileNotFoundError:
            content = "Not measured yet.\n"
        (folder / f"{table.__name__}.rst").write_text(content)
    for name in FIGURES:
        figure = RESULTS / f"{name}.png"
        content = "Not drawn yet.\n"
        if figure.exists():
            shutil.copy(figure, folder / figure.name)
            content = f".. image:: generated/{figure.name}\n   :alt: {name.replace('_', ' ')}\n"
        (folder / f"{name}_figure.rst").write_text(content)
