"""How far outside the range of all training rows a known row ever is, and an absurd one always.

Rows that are further away than a factor times the width of the training data get an infinite
uncertainty, whatever the method. A table is split in halves; the rows of one half are the training
data, those of the other are known rows, none of which should be called beyond the range. Absurd
rows are known ones times 1,000 or 1,000,000, or with -9999 in one feature. No network is needed:
only inputs are looked at. Every table is looked at as it is and standardised.

Twenty tables need no files, half of them with the features that make it hard: heavy tails, rare
ones, one-hot codes, pixels that are constant in the training data. ``--data DIR`` adds those of the
folder (see `small_tables`) and its embeddings (``clinc_minilm``, ``imagenet_lite0``).

    python -m benchmarks.beyond_range --data DIR
"""

import itertools
from collections import Counter
from functools import partial

import numpy as np
import torch
from sklearn import datasets
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from sklearn_quam._network.inputs.rows import Inputs
from sklearn_quam._posterior.training_range import FACTOR_OF_ROW, FACTOR_OF_VALUE, input_range

from . import small_tables
from .paper.runs import options, report, run

# How many widths a value, and a row in the root mean square over its features, may be away.
FACTORS = [(10, 3), (10, 10), (30, 3), (30, 10), (30, 30), (100, 10), (100, 30), (1000, 100)]
N_ROWS = 600  # of tables that are made: few rows leave the tails unknown
FILL = -9999.0
EMBEDDINGS = {"clinc_minilm": "train_x", "imagenet_lite0": "features"}


def made(rng, kind, n_features):
    """Return a table of which nobody knows all that it may hold from half of its rows."""
    shape = (N_ROWS, n_features)
    if kind == "lognormal":
        return rng.lognormal(0, 1, shape)
    if kind == "wide lognormal":
        return rng.lognormal(0, 2, shape)
    if kind == "t":
        return rng.standard_t(2, shape)
    if kind == "pareto":
        return rng.pareto(1.5, shape)
    if kind == "cauchy":
        return rng.standard_cauchy(shape)
    if kind == "one-hot":
        return np.hstack([np.eye(40)[rng.zipf(1.5, N_ROWS) % 40] for _ in range(n_features)])
    if kind == "rare":
        return rng.lognormal(0, 1.5, shape) * (rng.random(shape) < 0.005)
    if kind == "counts":
        return rng.negative_binomial(0.2, 0.02, shape).astype(float)
    assert kind == "mixed units"
    return rng.lognormal(0, 1, shape) * 10.0 ** rng.integers(-6, 7, n_features)


MADE = {
    "lognormal 10": ("lognormal", 10),
    "lognormal 100": ("lognormal", 100),
    "wide lognormal 10": ("wide lognormal", 10),
    "Student t2 20": ("t", 20),
    "Pareto 1.5 10": ("pareto", 10),
    "Cauchy 1": ("cauchy", 1),
    "Cauchy 10": ("cauchy", 10),
    "one-hot 5x40": ("one-hot", 5),
    "rare lognormal 50": ("rare", 50),
    "counts 30": ("counts", 30),
    "mixed units 20": ("mixed units", 20),
}
LOADED = ("iris", "wine", "breast_cancer", "digits", "diabetes")
GENERATED = {
    "classification 20": lambda s: datasets.make_classification(N_ROWS, random_state=s),
    "moons": lambda s: datasets.make_moons(N_ROWS, noise=0.2, random_state=s),
    "Friedman 1": lambda s: datasets.make_friedman1(N_ROWS, random_state=s),
    "regression 100": lambda s: datasets.make_regression(N_ROWS, random_state=s),
}
TABLES = [*LOADED, *GENERATED, *MADE]


def load(name, seed, folder):
    """Return the rows of a table."""
    if name in LOADED:
        return getattr(datasets, f"load_{name}")().data
    if name in GENERATED:
        return GENERATED[name](seed)[0]
    if name in MADE:
        return made(np.random.default_rng(seed), *MADE[name])
    if name in EMBEDDINGS:
        with np.load(folder / f"{name}.npz") as arrays:
            return arrays[EMBEDDINGS[name]].astype(np.float32)
    return np.nan_to_num(small_tables.load(name, seed, folder)[0])


def names(folder):
    """Return the names of all tables; some are there only with a folder of data."""
    if folder is None:
        return TABLES
    made_up = ("blobs", "shells", "mixture", "heart in")
    more = [name for name in small_tables.names(folder) if not name.startswith(made_up)]
    found = [name for name in EMBEDDINGS if (folder / f"{name}.npz").exists()]
    return TABLES + [name for name in more if name not in TABLES] + found


def as_inputs(X):
    return Inputs((torch.as_tensor(X, dtype=torch.float32),))


def judge(name, seeds, folder):
    """Return how many rows there are, and how many are beyond each pair of factors, by kind."""
    found = Counter()
    for seed in seeds:
        X = load(name, seed, folder)
        train, test = train_test_split(X, train_size=0.5, random_state=seed)
        found["rows"] += len(test)
        filled = test.copy()
        feature = np.random.default_rng(seed).integers(X.shape[1], size=len(test))
        filled[np.arange(len(test)), feature] = FILL
        rows = {"known": test, "times 1e3": 1e3 * test, "times 1e6": 1e6 * test, "-9999": filled}
        for how, change in ("scaled", StandardScaler().fit(train).transform), ("raw", np.asarray):
            known = input_range(as_inputs(change(train)))
            for (kind, some), factors in itertools.product(rows.items(), FACTORS):
                lost = known.beyond(as_inputs(change(some)), *factors)
                found[key(kind, how, factors)] += int(lost.sum())
    return dict(found)


def key(kind, how, factors):
    return f"{kind}, {how}, {factors[0]:g} and {factors[1]:g}"


def share(counts, kind, factors):
    """Return the share of the rows of a kind that are beyond, scaled or not: the worse one."""
    shares = [counts[key(kind, how, factors)] / counts["rows"] for how in ("scaled", "raw")]
    return max(shares) if kind == "known" else min(shares)


def main():
    chosen = options(__doc__, data="optional", seeds=list(range(10)))
    tables = names(chosen.data)
    tasks = {table: partial(judge, table, chosen.seeds, chosen.data) for table in tables}
    path = chosen.out / "beyond_range.json"
    settings = {"factors": FACTORS, "rows": N_ROWS, "fill": FILL, "seeds": chosen.seeds}
    results = run(path, settings, tasks)
    absurd = ("times 1e3", "times 1e6", "-9999")
    formats = dict.fromkeys(("known", "worst table"), "{:.5f}")
    rows = []
    for factors in FACTORS:
        known = [share(results[table], "known", factors) for table in tables]
        row = {"value": factors[0], "row": factors[1], "known": np.mean(known)}
        row |= {"worst table": max(known), "tables above .001": sum(one > 1e-3 for one in known)}
        row |= {
            kind: np.mean([share(results[t], kind, factors) for t in tables]) for kind in absurd
        }
        rows.append(row)
    report(path, rows, formats=formats, key="by_factor")
    factors = (FACTOR_OF_VALUE, FACTOR_OF_ROW)
    rows = [
        {"table": table}
        | {kind: share(results[table], kind, factors) for kind in ("known", *absurd)}
        for table in tables
    ]
    report(path, rows, formats=formats)


if __name__ == "__main__":
    main()
