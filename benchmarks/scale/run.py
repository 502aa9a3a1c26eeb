"""Puts a case to every method, goes on where it was interrupted, and reports."""

import hashlib
import json
from functools import lru_cache, partial

import numpy as np
import torch

from sklearn_quam.metrics import accuracy_rejection_curve

from ..paper.runs import dot_plot, options, report, run, save_figure
from .case import DETECTORS, FEW, METHODS, SLOW
from .judge import TEST, auroc, judged, scores_of

EVERY = (*METHODS, *DETECTORS)
# Rows of each set below which only the speed of a method is reported.
MIN_JUDGED = 20


def benchmark(description, name, load, *, settings, methods=EVERY, few=100, variants=None):
    """Judge every method on the cases that `load` returns, and write json and figure.

    Parameters
    ----------
    description : str
        Docstring of the script.
    name : str
        Of the files that are written.
    load : callable
        ``load(folder, case, tuning)`` returns a `Case`; while tuning, one whose rows are not
        reported.
    settings : dict
        What results depend on. ``cases`` are the names of the cases.
    methods : sequence of str, or dict of str to sequence of str
        Which are judged, in each of the cases or by case.
    few : int
        How many rows of each set the slow search gets.
    variants : dict of str to dict, default=None
        Arguments of QUAM that ``--tune`` tries.
    """
    chosen = options(
        description,
        data=True,
        methods=["all"],
        cases=settings["cases"],
        threads=1,
        tune=False,
        tuning_rows=300,
    )
    torch.set_num_threads(chosen.threads)
    stem = f"{name}_tuning" if chosen.tune else name
    loaded = lru_cache(maxsize=1)(lambda case: load(chosen.data, case, False))
    if chosen.tune:
        loaded = lru_cache(maxsize=1)(
            lambda case: load(chosen.data, case, True).few(chosen.tuning_rows)
        )
    settings = {**settings, "few": few}
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
    scores = Scores(chosen.out / "scores" / f"{stem}-{digest}", loaded, few, variants or {})

    def methods_of(case):
        own = methods[case] if isinstance(methods, dict) else methods
        if chosen.methods != ["all"]:
            own = [method for method in own if method in chosen.methods]
        if chosen.tune:
            own = [*own, *(variants or {})]
        return [*own, f"QUAM{FEW}"] if SLOW in own else own

    def task(case, method):
        arrays = scores(case, method)
        own = scores.case_for(case, method)
        proba = scores(case, "Reference")[f"given/{TEST}/proba"][: len(own.X_test)]
        found = judged(arrays, own, proba)
        cost = {key: float(arrays[key]) for key in ("fit_seconds", "seconds_per_row")}
        return {"cost": cost, **found}

    tasks = {
        f"{case}: {method}": lambda case=case, method=method: task(case, method)
        for case in chosen.cases
        for method in methods_of(case)
    }
    path = chosen.out / f"{stem}.json"
    results = run(path, settings, tasks)
    enough = {
        name: result
        for name, result in results.items()
        if few >= MIN_JUDGED or (FEW not in name and SLOW not in name)
    }
    for part, columns in (("ood", None), ("own", OWN)):
        rows = summarise(enough, columns)
        report(path, rows, columns=columns_of(rows), key=part)
    report(path, by_total(scores, results), key="total")
    report(path, speeds(results), key="speed", formats={"rows a second": "{:.0f}"})
    if not chosen.tune:
        draw(results, chosen.out / f"{name}.png")
        first = chosen.cases[0]
        draw_rejection(loaded(first), partial(scores, first), chosen.out / f"{name}_reject.png")


class Scores:
    """Scores of a method for all rows, kept in files: metrics can change without a new run.

    They do not know when the package changes: remove the folder then.
    """

    def __init__(self, folder, loaded, few, variants):
        self.folder, self.loaded, self.few, self.variants = folder, loaded, few, variants

    def __call__(self, case, method):
        path = self.folder / f"{case}, {method}.npz"
        if not path.exists():
            own, name = self.case_for(case, method), method
            if method in self.variants:
                own, name = own.with_arguments("QUAM", self.variants[method]), "QUAM"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, **scores_of(own, name))
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)

    def case_for(self, case, method):
        """Return the case with the rows that a method judges."""
        full = self.loaded(case)
        return full.few(self.few) if method == SLOW or method.endswith(FEW) else full


# Of the test set alone.
OWN = (
    "accuracy",
    "mistakes, epistemic",
    "mistakes, total",
    "selective, epistemic",
    "selective, total",
    "ece",
    "log score",
    "human, aleatoric",
    "human, epistemic",
    "aleatoric, epistemic",
)


def named(method, setting):
    return method if setting == "given" else f"{method}, {setting}"


def summarise(results, columns):
    """Return a row for each method and setting: means over cases, with ends of the intervals.

    Without columns, a row has the AUROC of each other kind of rows.
    """
    rows = {}
    for name, result in results.items():
        method = name.partition(": ")[2]
        for setting in ("given", "expected"):
            if setting not in result:
                continue
            own = rows.setdefault(named(method, setting), {})
            for key, found in result[setting].items():
                if (columns is None and key in OWN) or (columns is not None and key not in columns):
                    continue
                own.setdefault(key, []).append(found)
    found = []
    for method, values in rows.items():
        row = {"method": method}
        for key, each in values.items():
            row[key] = float(np.mean([one["value"] for one in each]))
            if all("low" in one for one in each):
                row[f"{key}_low"] = float(np.mean([one["low"] for one in each]))
                row[f"{key}_high"] = float(np.mean([one["high"] for one in each]))
        found.append(row)
    return found


def by_total(scores, results):
    """Return the AUROC of the total uncertainty for each other kind of rows."""
    rows = {}
    for name in results:
        case, _, method = name.partition(": ")
        if method in DETECTORS or FEW in method or method in (SLOW, "Reference"):
            continue
        arrays = scores(case, method)
        for key, doubt in arrays.items():
            setting, _, part = key.rpartition("/total")[0].partition("/")
            if key.endswith("/total") and part != TEST:
                known = arrays[f"{setting}/{TEST}/total"]
                is_unknown = np.repeat([0, 1], [len(known), len(doubt)])
                found = auroc(is_unknown, np.concatenate([known, doubt]))
                rows.setdefault(named(method, setting), {}).setdefault(part, []).append(found)
    return [
        {"method": method, **{part: float(np.mean(each)) for part, each in parts.items()}}
        for method, parts in rows.items()
    ]


def columns_of(rows):
    return list(dict.fromkeys(key for row in rows for key in row))


def speeds(results):
    """Return what each method costs: medians over cases; the slow search in units of the others."""
    costs = {}
    for name, result in results.items():
        costs.setdefault(name.partition(": ")[2], []).append(result["cost"])
    rows = []
    for method, each in costs.items():
        seconds = float(np.median([cost["seconds_per_row"] for cost in each]))
        rows.append(
            {
                "method": method,
                "seconds to fit": float(np.median([cost["fit_seconds"] for cost in each])),
                "rows a second": 1 / seconds,
            }
        )
    slow = next((row["rows a second"] for row in rows if row["method"] == SLOW), None)
    for row in rows:
        row["times as fast as penalty search"] = slow and row["rows a second"] / slow
    return rows


def draw(results, path):
    """Draw the AUROC for each other kind of rows and for mistakes, of what judged all rows."""
    some = {name: each for name, each in results.items() if FEW not in name and SLOW not in name}
    rows = summarise(some, None)
    names = [key for key in rows[0] if key != "method" and not key.endswith(("_low", "_high"))]
    mistakes = {row["method"]: row for row in summarise(some, OWN)}
    for row in rows:
        for end in ("", "_low", "_high"):
            row[f"mistakes{end}"] = mistakes[row["method"]].get(f"mistakes, epistemic{end}", np.nan)
    panels = [(name.replace("_", " "), rows, name) for name in (*names, "mistakes")]
    dot_plot(panels, path, label="AUROC")


# Eight curves: Okabe's and Ito's colours, and lines that differ in print, too.
CURVES = {
    "Reference": ("#000000", "-"),
    "MCDropout": ("#E69F00", "--"),
    "DeepEnsemble": ("#0072B2", "-"),
    "Laplace": ("#56B4E9", ":"),
    "CyclicalSGHMC": ("#009E73", "--"),
    "QUAM": ("#D55E00", "-"),
    "PNML": ("#CC79A7", "-."),
    "ViM": ("#7F7F7F", ":"),
}


def draw_rejection(case, scores, path):
    """Draw the accuracy on what is kept as rows are rejected, the least certain first.

    Certainty is by the total uncertainty. The average of the plausible models predicts; where there
    is none, the network does.
    """
    import matplotlib.pyplot as plt

    classes = np.unique(case.y)
    figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
    given = scores("Reference")[f"given/{TEST}/proba"]
    for method, (colour, line) in CURVES.items():
        arrays = scores(method)
        setting = "expected" if f"expected/{TEST}/total" in arrays else "given"
        proba = arrays.get(f"{setting}/{TEST}/proba", given)
        right = classes[proba.argmax(axis=1)] == case.y_test
        kept, accuracy = accuracy_rejection_curve(right, arrays[f"{setting}/{TEST}/total"])
        enough = kept >= 0.1  # of fewer rows the accuracy is chance
        ax.plot(100 * (1 - kept[enough]), accuracy[enough], line, color=colour, label=method)
    ax.set_xlabel("rejected, %")
    ax.set_ylabel("accuracy of the others")
    ax.legend(fontsize=8, ncols=2)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
