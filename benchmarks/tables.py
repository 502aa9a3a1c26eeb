"""Small tables: a class left out of the training, or rows whose columns were shuffled.

A scikit-learn MLP with 100 hidden units is trained on 70 % of the known rows; the AUROC says how
well a score tells unknown rows from the other 30 %. With three classes or more, all rows of one
class are unknown: the seed modulo the number of classes says which. With two classes, and where
classes are steps of a scale (wine-quality, energy), unknown rows are test rows whose columns were
shuffled independently of each other. Ten tables need no files; ``--data DIR`` adds three.
QUAM runs with default arguments but for the search; its settings were chosen with seeds 0 and 1.
Speeds are rows a second relative to the penalty search, measured one after the other; their mean
over the tables is the geometric one. ``--methods`` can leave out the penalty search, the slowest.

    python -m benchmarks.tables --data DIR
"""

import warnings
from functools import lru_cache, partial

import numpy as np
import torch
from scipy.stats import gmean
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_wine,
    make_blobs,
    make_classification,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_quam import DeepEnsembleClassifier, LaplaceClassifier

from .paper.runs import options, report, run
from .searches import auroc, named, plain_scores, quam

SEARCHES = {
    "natural": ("given", "expected"),
    "linear": ("given",),
    "penalty": ("given",),
}
METHODS = ["entropy", "energy", "ensemble", "laplace", *SEARCHES, "neighbours", "lof"]
SCALES = ("wine-quality-red", "energy")
N_ROWS = 3000
N_MEMBERS = 5
NETWORK = {"hidden_layer_sizes": [100], "max_iter": 200}
LOADED = {
    "iris": load_iris,
    "wine": load_wine,
    "breast_cancer": load_breast_cancer,
    "digits": load_digits,
}
MADE = {
    "blobs 2x4": (
        make_blobs,
        {"n_samples": 800, "n_features": 2, "centers": 4, "cluster_std": 1.0},
    ),
    "blobs 30x6": (
        make_blobs,
        {"n_samples": 1200, "n_features": 30, "centers": 6, "cluster_std": 8.0},
    ),
    "mixture 8x3": (
        make_classification,
        {"n_samples": 900, "n_features": 8, "n_informative": 6, "n_classes": 3, "class_sep": 0.7},
    ),
    "mixture 10x4": (
        make_classification,
        {"n_samples": 1500, "n_features": 10, "n_informative": 8, "n_classes": 4, "class_sep": 1.5},
    ),
    "mixture 20x2": (
        make_classification,
        {"n_samples": 1000, "n_features": 20, "n_informative": 5, "n_classes": 2, "class_sep": 0.8},
    ),
    "mixture 50x8": (
        make_classification,
        {"n_samples": 3000, "n_features": 50, "n_informative": 20, "n_classes": 8},
    ),
}
FILES = ("heart", *SCALES)


def load(name, seed, folder):
    """Return a table; those that are made differ from seed to seed."""
    if name in LOADED:
        return LOADED[name](return_X_y=True)
    if name in MADE:
        make, arguments = MADE[name]
        return make(**arguments, random_state=seed)
    if name == "heart":
        with np.load(folder / "heart_hospitals.npz", allow_pickle=False) as data:
            hospitals = ("cleveland", "hungarian")
            X = np.concatenate([data[f"X_{hospital}"] for hospital in hospitals])
            y = np.concatenate([data[f"y_{hospital}"] for hospital in hospitals])
        return X, (y > 0).astype(int)
    with np.load(folder / "uci" / f"{name}.npz", allow_pickle=False) as data:
        X, y = data["X"], data["y"]
    if name == "energy":
        return X, np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))
    return X, np.clip(np.round(y), 5, 7).astype(int)


@lru_cache(maxsize=1)
def prepare(name, seed, n_points, folder):
    """Return a network, its data, rows to judge, and how many of these are known."""
    X, y = load(name, seed, folder)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(X))[:N_ROWS]
    X, y = X[chosen], y[chosen]
    classes = np.unique(y)
    class_left_out = len(classes) > 2 and name not in SCALES
    unknown = np.zeros(len(X), dtype=bool)
    if class_left_out:
        unknown = y == classes[seed % len(classes)]
    X_train, X_known, y_train, _ = train_test_split(
        X[~unknown], y[~unknown], test_size=0.3, random_state=seed, stratify=y[~unknown]
    )
    X_unknown = X[unknown] if class_left_out else rng.permuted(X_known, axis=0)
    # Values are missing in one table only.
    scaler = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit(X_train)
    X_known, X_unknown = X_known[:n_points], X_unknown[:n_points]
    X_new = scaler.transform(np.concatenate([X_known, X_unknown]))
    X_train = scaler.transform(X_train)
    return train(X_train, y_train, 10 * seed), X_train, y_train, X_new, len(X_known)


def train(X, y, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return MLPClassifier(**NETWORK, random_state=seed).fit(X, y)


def logits(network, X):
    """Return the logits of an MLPClassifier; of two classes they are +-half of its only output."""
    for weight, bias in zip(network.coefs_[:-1], network.intercepts_[:-1], strict=True):
        X = np.maximum(X @ weight + bias, 0)
    found = X @ network.coefs_[-1] + network.intercepts_[-1]
    return found if found.shape[1] > 1 else np.hstack([-found / 2, found / 2])


def score(method, network, X, y, X_new, seed):
    """Return how doubtful a method that is no search finds each row."""
    if method in ("entropy", "energy"):
        return plain_scores(logits(network, X_new))[method]
    if method == "ensemble":
        others = [train(X, y, 10 * seed + member) for member in range(1, N_MEMBERS + 1)]
        est = DeepEnsembleClassifier(network, estimators=others).fit(X, y)
        return est.predict_uncertainty(X_new).epistemic
    if method == "laplace":
        est = LaplaceClassifier(network, parameters="all", random_state=seed).fit(X, y)
        return est.predict_uncertainty(X_new).epistemic
    if method == "neighbours":
        return NearestNeighbors(n_neighbors=5).fit(X).kneighbors(X_new)[0][:, -1]
    return -LocalOutlierFactor(novelty=True).fit(X).score_samples(X_new)


def judge(method, case, seed):
    *case, n_known = case()
    return {"auroc": auroc(score(method, *case, seed), n_known)}


def judge_searches(searches, case):
    """Return AUROC and speed of all searches: a ratio of speeds never spans two runs."""
    *case, n_known = case()
    results = {}
    for search in searches:
        found = quam(*case, search, settings=SEARCHES[search])
        for setting, scores in found["scores"].items():
            results[named(search, setting)] = auroc(scores, n_known)
        results[f"rows a second, {search}"] = 1 / found["seconds_per_row"]
    return results


def tasks(chosen, names):
    searches = [method for method in chosen.methods if method in SEARCHES]
    for name in names:
        for seed in chosen.seeds:
            case = partial(prepare, name, seed, chosen.points, chosen.data)
            for method in chosen.methods:
                if method not in SEARCHES:
                    yield (name, seed, method), partial(judge, method, case, seed)
            if searches:
                yield (name, seed, "+".join(searches)), partial(judge_searches, searches, case)


def summarise(results, names, methods):
    """Return a row for each table: AUROC and relative speeds, means over the seeds."""
    rows = []
    for name in names:
        row = {"table": name}
        found = {}
        for (table, _, method), result in results.items():
            if table == name:
                for key, value in result.items():
                    found.setdefault(method if key == "auroc" else key, []).append(value)
        speeds = {key: found.pop(key) for key in list(found) if key.startswith("rows a second")}
        row |= {key: float(np.mean(values)) for key, values in found.items()}
        for search in SEARCHES if "penalty" in methods else ():
            if search in methods and search != "penalty":
                ratios = np.divide(
                    speeds[f"rows a second, {search}"], speeds["rows a second, penalty"]
                )
                row[f"{search} / penalty"] = float(gmean(ratios))
        rows.append(row)
    mean = {"table": "mean"}
    for column in list(rows[0])[1:]:
        average = gmean if column.endswith("/ penalty") else np.mean
        mean[column] = float(average([row[column] for row in rows]))
    return [*rows, mean]


def main():
    chosen = options(
        __doc__, data="optional", seeds=[10, 11], points=100, methods=METHODS, tables=[""]
    )
    torch.set_num_threads(1)
    names = [*LOADED, *MADE, *(FILES if chosen.data else ())]
    names = [name for name in names if chosen.tables == [""] or name in chosen.tables]
    settings = {"points": chosen.points, "rows": N_ROWS, "network": NETWORK, "made": MADE_SETTINGS}
    path = chosen.out / "tables.json"
    keys, own = zip(*tasks(chosen, names), strict=True)
    texts = [f"{name}, seed {seed}, {method}" for name, seed, method in keys]
    results = run(path, settings, dict(zip(texts, own, strict=True)))
    by_key = {key: results[text] for key, text in zip(keys, texts, strict=True)}
    ratios = [f"{search} / penalty" for search in SEARCHES]
    rows = summarise(by_key, names, chosen.methods)
    report(path, rows, formats=dict.fromkeys(ratios, "{:.1f}"))


if __name__ == "__main__":
    main()
