"""Small tables: a class left out of the training, or rows whose columns were shuffled.

A scikit-learn MLP with 100 hidden units is trained on 70 % of the known rows; the AUROC says how
well a score tells unknown rows from the other 30 %. With three classes or more, all rows of one
class are unknown: the seed modulo the number of classes says which. With two classes, and where
classes are steps of a scale (wine-quality, energy), unknown rows are test rows whose columns were
shuffled independently of each other. Ten tables need no files; ``--data DIR`` adds three.

QUAM runs with default arguments but for the search; its settings were chosen with seeds 0 and 1.
Speeds are rows a second relative to the penalty search, measured one after the other on the same
rows; their mean is the geometric one. The penalty search is the slowest: ``--methods`` can leave it
out, and the speeds with it.

    python -m benchmarks.tables --data DIR
"""

from functools import partial

import torch
from scipy.stats import gmean
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from sklearn_quam import DeepEnsembleClassifier, LaplaceClassifier

from . import small_tables
from .paper.runs import means, options, report, run
from .searches import auroc, named, plain_scores, quam

SEARCHES = {
    "natural": ("given", "expected"),
    "linear": ("given",),
    "penalty": ("given",),
}
METHODS = ["entropy", "energy", "ensemble", "laplace", *SEARCHES, "neighbours", "lof"]
N_MEMBERS = 5


def score(method, network, X, y, X_new, seed):
    """Return how doubtful a method that is no search finds each row."""
    if method in ("entropy", "energy"):
        return plain_scores(small_tables.logits(network, X_new))[method]
    if method == "ensemble":
        seeds = range(10 * seed + 1, 10 * seed + 1 + N_MEMBERS)
        others = [small_tables.train(X, y, each) for each in seeds]
        est = DeepEnsembleClassifier(network, estimators=others).fit(X, y)
        return est.predict_uncertainty(X_new).epistemic
    if method == "laplace":
        est = LaplaceClassifier(network, parameters="all", random_state=seed).fit(X, y)
        return est.predict_uncertainty(X_new).epistemic
    if method == "neighbours":
        return NearestNeighbors(n_neighbors=5).fit(X).kneighbors(X_new)[0][:, -1]
    return -LocalOutlierFactor(novelty=True).fit(X).score_samples(X_new)


def judge(method, prepare, seed):
    *case, n_known = prepare()
    return {method: auroc(score(method, *case, seed), n_known)}


def judge_searches(searches, prepare):
    """Return AUROCs and relative speeds; both speeds of a ratio are measured here."""
    *case, n_known = prepare()
    aurocs, speeds = {}, {}
    for search in searches:
        found = quam(*case, search, settings=SEARCHES[search])
        for setting, scores in found["scores"].items():
            aurocs[named(search, setting)] = auroc(scores, n_known)
        speeds[search] = 1 / found["seconds_per_row"]
    penalty = speeds.pop("penalty", None)
    ratios = {f"{s} / penalty": speed / penalty for s, speed in speeds.items() if penalty}
    return aurocs | ratios


def tasks_of_table(name, seed, chosen):
    """Yield names and tasks; the searches, which are compared in speed, are one task."""
    prepare = partial(small_tables.prepare, name, seed, chosen.points, chosen.data)
    searches = [method for method in chosen.methods if method in SEARCHES]
    for method in chosen.methods:
        if method not in SEARCHES:
            yield f"{name}, seed {seed}, {method}", partial(judge, method, prepare, seed)
    if searches:
        text = f"{name}, seed {seed}, {', '.join(searches)}"
        yield text, partial(judge_searches, searches, prepare)


def summarise(by_table):
    """Return means over the seeds of each table, and over the tables."""
    rows = {name: means(each) for name, each in by_table.items()}
    mean = means(list(rows.values()))
    for column in mean:
        if column.endswith("/ penalty"):
            mean[column] = float(gmean([row[column] for row in rows.values()]))
    return [{"table": name, **row} for name, row in {**rows, "mean": mean}.items()]


def main():
    chosen = options(
        __doc__, data="optional", seeds=[10, 11], points=100, methods=METHODS, tables=["all"]
    )
    torch.set_num_threads(1)
    names = small_tables.names(chosen.data)
    if chosen.tables != ["all"]:
        names = [name for name in names if name in chosen.tables]
    tasks = {
        (name, seed): dict(tasks_of_table(name, seed, chosen))
        for name in names
        for seed in chosen.seeds
    }
    path = chosen.out / "tables.json"
    settings = {"points": chosen.points, "members": N_MEMBERS, **small_tables.SETTINGS}
    results = run(
        path, settings, {text: task for own in tasks.values() for text, task in own.items()}
    )
    by_table = {}
    for (name, _), own in tasks.items():
        merged = {key: value for text in own for key, value in results[text].items()}
        by_table.setdefault(name, []).append(merged)
    rows = summarise(by_table)
    ratios = [column for column in rows[0] if column.endswith("/ penalty")]
    report(path, rows, formats=dict.fromkeys(ratios, "{:.1f}"))


if __name__ == "__main__":
    main()
