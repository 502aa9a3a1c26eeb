"""Small tables: every method and detector, ranked over all tasks.

A scikit-learn MLP with 100 hidden units is trained on 70 % of the known rows; the AUROC says how
well a score tells unknown rows from the other 30 %. With three classes or more, all rows of one
class are unknown: the seed modulo the number of classes says which. With two classes, and where
classes are steps of a scale (wine-quality, energy), unknown rows are test rows whose columns were
shuffled independently of each other. ``heart in ...`` is a natural shift: a network of patients in
Cleveland is asked about those of another hospital. Tables with anomalies in ``adbench/`` have no
classes: their networks tell clusters of the normal rows apart. Thirteen tables need no files;
``--data DIR`` adds what is in the folder.

All run with default arguments, on standardised features. Settings of the natural search were chosen
with seeds 0 and 1 of ten of the tables, which may leave the same class out, and on other data.
Methods are ranked on each task by the mean AUROC of all seeds. Intervals of the mean ranks are
Nemenyi's critical difference at 5 %, half of it on each side: methods whose intervals do not
overlap differ. Rows a second are measured on one thread.

    python -m benchmarks.tables --data DIR
"""

import time
import warnings
from functools import lru_cache, partial

import numpy as np
import torch
from scipy.stats import friedmanchisquare, rankdata, studentized_range

import sklearn_quam
from sklearn_quam import ood

from . import small_tables
from .detectors import DETECTORS, ON_INPUTS, WITHOUT_NETWORK
from .paper.runs import options, report, run, save_figure
from .searches import auroc

N_MEMBERS = 5
DETECTORS = {**DETECTORS, **ON_INPUTS}
METHODS = {
    "Reference": {},
    "MCDropout": {"p": 0.2},
    "DeepEnsemble": {},
    "Laplace": {},
    "Laplace, all layers": {"parameters": "all"},
    "MixtureLaplace": {},
    "SWAG": {},
    "CyclicalSGHMC": {},
    "QUAM": {},
    "QUAM, expected": {"setting": "expected"},
    "QUAM, linear search": {"search": "linear"},
    "QUAM, penalty search": {"search": "penalty"},
}
# What the average of the plausible models is unsure of.
METHODS |= {
    f"{name}, expected": {**METHODS[name], "setting": "expected"}
    for name in (
        "MCDropout",
        "DeepEnsemble",
        "Laplace",
        "MixtureLaplace",
        "SWAG",
        "CyclicalSGHMC",
        "QUAM, linear search",
    )
}
COMBINED = "QUAM and NearestNeighbor, inputs"
NAMES = [*METHODS, *DETECTORS, *WITHOUT_NETWORK, COMBINED]
SLOW = ("QUAM, penalty search",)


@lru_cache(maxsize=1)
def further_networks(prepare, seed):
    """Return the networks of an ensemble, and the seconds that their training takes."""
    _, X, y, _, _ = prepare()
    start = time.perf_counter()
    seeds = range(10 * seed + 1, 10 * seed + 1 + N_MEMBERS)
    networks = [small_tables.train(X, y, each) for each in seeds]
    return networks, time.perf_counter() - start


def make(name, network, seed, networks):
    """Return a method or detector, not fitted."""
    if name in WITHOUT_NETWORK:
        return WITHOUT_NETWORK[name]()
    if name in DETECTORS:
        return DETECTORS[name](network)
    if name == COMBINED:
        parts = [make(part, network, seed, networks) for part in name.split(" and ")]
        return ood.CombinedDetector(parts, random_state=seed)
    kind = getattr(sklearn_quam, f"{name.partition(',')[0]}Classifier")
    arguments = dict(METHODS[name])
    if networks is not None:
        arguments["estimators"] = networks
    if not name.startswith(("Reference", "DeepEnsemble")):
        arguments["random_state"] = seed
    return kind(network, **arguments)


def judge(name, prepare, seed):
    """Return AUROC, seconds to fit (the training of further networks included) and speed."""
    network, X, y, X_new, n_known = prepare()
    networks, training = None, 0.0
    if name.startswith(("DeepEnsemble", "MixtureLaplace")):
        networks, training = further_networks(prepare, seed)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        est = make(name, network, seed, networks).fit(X, y)
    fitted = time.perf_counter()
    if hasattr(est, "predict_uncertainty"):
        found = est.predict_uncertainty(X_new)
        doubt = found.total if name == "Reference" else found.epistemic
    else:
        doubt = -est.score_samples(X_new)
    seconds = time.perf_counter() - fitted
    doubt = np.where(np.isinf(doubt), np.finfo(float).max, doubt)
    return {
        "auroc": auroc(doubt, n_known),
        "fit_seconds": training + fitted - start,
        "rows_per_second": len(X_new) / seconds,
    }


def nemenyi(n_methods, n_tasks, level=0.05):
    """Return the difference of mean ranks that is significant at a level, for all pairs at once."""
    quantile = studentized_range.ppf(1 - level, n_methods, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(n_methods * (n_methods + 1) / (6 * n_tasks)))


def summarise(results, tables, seeds, methods):
    """Return a row for each method, the best mean rank first, and what differs at all."""
    mean = {
        (table, name): np.mean([results[text(table, seed, name)]["auroc"] for seed in seeds])
        for table in tables
        for name in methods
    }
    aurocs = np.array([[mean[table, name] for name in methods] for table in tables])
    ranks = rankdata(-aurocs.round(6), axis=1).mean(axis=0)
    half = nemenyi(len(methods), len(tables)) / 2
    rows = []
    for column in np.argsort(ranks):
        name = methods[column]
        own = [results[text(table, seed, name)] for table in tables for seed in seeds]
        rows.append(
            {
                "method": name,
                "mean rank": float(ranks[column]),
                "low": float(ranks[column] - half),
                "high": float(ranks[column] + half),
                "mean AUROC": float(aurocs[:, column].mean()),
                "worst AUROC": float(aurocs[:, column].min()),
                "seconds to fit": float(np.median([each["fit_seconds"] for each in own])),
                "rows a second": float(np.median([each["rows_per_second"] for each in own])),
            }
        )
    p_value = float(friedmanchisquare(*aurocs.T).pvalue)
    by_table = [
        {"table": table, **{name: float(mean[table, name]) for name in methods}} for table in tables
    ]
    return rows, by_table, p_value


def text(table, seed, name):
    return f"{table}, seed {seed}, {name}"


def plot(rows, path):
    """Draw mean ranks with their intervals, the best above."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7, 0.5 + 0.25 * len(rows)), layout="constrained")
    for place, row in enumerate(rows):
        colour = "#D55E00" if row["method"].startswith("QUAM") else "#0072B2"
        ax.plot(row["mean rank"], place, "o", color=colour)
        ax.hlines(place, row["low"], row["high"], color=colour)
    ax.axvspan(rows[0]["low"], rows[0]["high"], color="0.9", zorder=0)
    ax.set_yticks(range(len(rows)), [row["method"] for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlabel("mean rank, with Nemenyi's critical difference (grey: not told from the first)")
    ax.grid(axis="x", alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def main():
    quick = [name for name in NAMES if name not in SLOW]
    chosen = options(
        __doc__, data="optional", seeds=[10], points=100, methods=quick, tables=["all"]
    )
    torch.set_num_threads(1)
    tables = small_tables.names(chosen.data)
    if chosen.tables != ["all"]:
        tables = [name for name in tables if name in chosen.tables]
    tasks = {}
    for table in tables:
        for seed in chosen.seeds:
            prepare = partial(small_tables.prepare, table, seed, chosen.points, chosen.data)
            for name in chosen.methods:
                tasks[text(table, seed, name)] = partial(judge, name, prepare, seed)
    path = chosen.out / "tables.json"
    settings = {"points": chosen.points, "members": N_MEMBERS, **small_tables.SETTINGS}
    results = run(path, settings, tasks)
    rows, by_table, p_value = summarise(results, tables, chosen.seeds, chosen.methods)
    report(path, rows, formats={"rows a second": "{:.0f}"})
    print(f"{len(tables)} tasks; Friedman's test that all are alike: p = {p_value:.2g}")
    report(path, by_table, key="by table")
    plot(rows, chosen.out / "tables.png")


if __name__ == "__main__":
    main()
