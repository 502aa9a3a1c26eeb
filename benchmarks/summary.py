"""Rows of tables from the stored results of families: three questions, forecasts, ranks, costs.

Means are over the cases of a family; a "†" marks a method with results of an earlier version. What
was not measured is None.
"""

import json

import numpy as np
from scipy.stats import rankdata

from . import tables
from .digests import RESULTS, earlier
from .scale import cifar10, imagenet, mnist, text
from .scale.case import SETTINGS
from .scale.judge import WITHOUT_FORECAST, meant

FAMILIES = {
    module.FAMILY.name: module.FAMILY for module in (imagenet, cifar10, mnist, text, tables)
}
NETWORK = "Reference"
# Columns of the three questions, and whether larger is better.
QUESTIONS = {"near": True, "far": True, "mistakes": True, "AUGRC, %": False}


def entries_of(family):
    """Return results by method and case."""
    path = family.path(RESULTS)
    found = {}
    if path.exists():
        for name, entry in json.loads(path.read_text())["entries"].items():
            case, _, method = name.rpartition(": ")
            found.setdefault(method, {})[case] = entry
    return {name: found[name] for name in family.methods if name in found}


def is_earlier(family, method):
    """Return whether some result of a method is of an earlier version."""
    old = earlier().get(family.name, [])
    return old == "all" or method in old


def label(family, method, setting, mark=True):
    found = method if setting == "given" else f"{method}, {setting}"
    return f"{found} †" if mark and is_earlier(family, method) else found


def mean_of(found):
    """Return the mean of some values with intervals, and half of the mean interval."""
    if not found:
        return None, None
    half = None
    if all("low" in each for each in found):
        half = float(np.mean([(each["high"] - each["low"]) / 2 for each in found]))
    return float(np.mean([each["value"] for each in found])), half


def answers(family, method, setting, cases, score=None):
    """Return the answers to the three questions, each with half of its interval.

    Parameters
    ----------
    score : str, default=None
        Which score is asked; None takes what is meant for each question.
    """
    found = {column: [] for column in QUESTIONS} | {"FPR95": []}
    for entry in cases.values():
        own = entry.get(setting, {})
        unknown, both, mistakes = (
            own.get(question, {}).get(score or meant(method, question))
            for question in ("unknown", "both", "mistakes")
        )
        for column, parts in (("near", family.near), ("far", family.far)):
            found[column] += [unknown[part] for part in parts if part in (unknown or {})]
        found["FPR95"] += [
            {"value": each["fpr95"]} for each in (unknown or {}).values() if "fpr95" in each
        ]
        for each in (both or {}).values():
            found["AUGRC, %"].append({key: 100 * value for key, value in each.items()})
        found["mistakes"] += [mistakes] if mistakes else []
    return {column: mean_of(each) for column, each in found.items()}


def milliseconds(cases):
    found = [entry["row seconds"] for entry in cases.values()]
    return 1000 * float(np.mean(found))


def asked(family):
    """Yield each method and setting of a family with its results."""
    for method, cases in entries_of(family).items():
        for setting in SETTINGS:
            if any(setting in entry for entry in cases.values()):
                yield method, setting, cases


def questions(family):
    """Return the table of a family: a method asked as it is meant to be."""
    rows = []
    for method, setting, cases in asked(family):
        found = answers(family, method, setting, cases)
        row = {"method": label(family, method, setting)}
        for column in ("near", "far", "FPR95", "mistakes", "AUGRC, %"):
            value, half = found[column]
            row[column] = value if half is None else shown(value, half)
        rows.append(row | {"ms a sample": milliseconds(cases)})
    return without_empty(rows)


def shown(value, half):
    digits = 2 if value > 1 else 3
    return f"{value:.{digits}f} ± {half:.{digits}f}".replace("0.", ".")


def without_empty(rows):
    """Return rows without columns that have no value."""
    kept = [key for key in rows[0] if any(row.get(key) is not None for row in rows)] if rows else []
    return [{key: row.get(key) for key in kept} for row in rows]


def scores(family, methods=("Reference", "QUAM", "DeepEnsemble", "PNML")):
    """Return what each score of some methods answers."""
    rows = []
    for method, setting, cases in asked(family):
        names = ("epistemic", "total", "1 - max p", "doubt")
        for name in names if method in methods else ():
            found = answers(family, method, setting, cases, score=name)
            row = {column: value for column, (value, _) in found.items() if column in QUESTIONS}
            if any(value is not None for value in row.values()):
                row = {"method": label(family, method, setting), "score": name} | row
                rows.append(row)
    return without_empty(rows)


def forecast(family):
    """Return log score and calibration error before and after temperature scaling."""
    rows = []
    for method, setting, cases in asked(family):
        if method in WITHOUT_FORECAST or (setting == "given" and method != NETWORK):
            continue
        own = [entry[setting].get("forecast") for entry in cases.values() if setting in entry]
        if setting == "pairwise" or not own or not all(own):
            continue
        keys = ("accuracy", "log score", "log score, scaled", "ece", "ece, scaled")
        means = {key: np.mean([e[key] for e in own]) for key in keys if all(key in e for e in own)}
        rows.append({"method": label(family, method, setting)} | means)
    return complete(rows)


def parts(family):
    """Return rank correlations of aleatoric and epistemic uncertainty, and with people."""
    rows = []
    for method, setting, cases in asked(family):
        own = [entry[setting].get("parts") for entry in cases.values() if setting in entry]
        if method not in (*WITHOUT_FORECAST, NETWORK) and own and all(own):
            means = {key: float(np.mean([each[key] for each in own])) for key in own[0]}
            rows.append({"method": label(family, method, setting)} | means)
    return complete(rows)


def complete(rows):
    """Return rows that all have the same columns."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]


def by_table():
    """Return the AUROC of unknown samples for each small table."""
    family, rows = FAMILIES["tables"], {}
    for method, setting, cases in asked(family):
        for case, entry in cases.items():
            own = entry.get(setting, {}).get("unknown", {}).get(meant(method, "unknown"))
            if own:
                row = rows.setdefault(case.rpartition(", seed")[0], {})
                row.setdefault(label(family, method, setting), []).append(own["unknown"]["value"])
    rows = [
        {"table": table} | {name: float(np.mean(each)) for name, each in row.items()}
        for table, row in rows.items()
    ]
    return complete(rows)


def ranks_of_tables():
    """Return mean ranks over the small tables with Nemenyi's critical difference."""
    rows = by_table()
    methods = [key for key in rows[0] if all(row[key] is not None for row in rows)][1:]
    aurocs = np.array([[row[method] for method in methods] for row in rows])
    ranks, half, p_value = tables.ranked(aurocs)
    return [
        {
            "method": methods[k],
            "mean rank": f"{ranks[k]:.1f} ± {half:.1f}",
            "mean AUROC": float(aurocs[:, k].mean()),
            "worst AUROC": float(aurocs[:, k].min()),
        }
        for k in np.argsort(ranks)
    ], p_value


def overall():
    """Return the mean over families for each question, mean ranks, and milliseconds a sample.

    Only methods that all families have; those with results of an earlier version only if there are
    no others, so that means are of the same samples.
    """
    found, old = {}, set()
    for family in FAMILIES.values():
        for method, setting, cases in asked(family):
            name = label(family, method, setting, mark=False)
            own = {
                key: value for key, (value, _) in answers(family, method, setting, cases).items()
            }
            found.setdefault(name, {})[family.name] = own | {"ms": milliseconds(cases)}
            if is_earlier(family, method):
                old.add(name)
    everywhere = [name for name, own in found.items() if len(own) == len(FAMILIES)]
    names = [name for name in everywhere if name not in old] or everywhere
    rows = {name: {"method": f"{name} †" if name in old else name} for name in names}
    for column, largest in (("unknown", True), ("mistakes", True), ("AUGRC, %", False)):
        values = {name: [_value(own, column) for own in found[name].values()] for name in names}
        if any(None in each for each in values.values()):
            continue
        array = np.array(list(values.values()))
        ranks = rankdata(-array if largest else array, axis=0).mean(axis=1)
        for name, rank in zip(names, ranks, strict=True):
            rows[name] |= {column: float(np.mean(values[name])), f"rank, {column}": float(rank)}
    for name in names:
        times = [own["ms"] for own in found[name].values()]
        rows[name]["ms a sample"] = float(np.exp(np.mean(np.log(times))))
    order = "rank, AUGRC, %" if "rank, AUGRC, %" in rows[names[0]] else "rank, unknown"
    return sorted(rows.values(), key=lambda row: row[order])


def _value(own, column):
    if column != "unknown":
        return own[column]
    both = [own[key] for key in ("near", "far") if own[key] is not None]
    return float(np.mean(both)) if both else None
