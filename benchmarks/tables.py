"""Small tables: every method and detector.

A scikit-learn MLP with 100 hidden units is trained on 60 % of the known samples; of the others,
half are held out and half are judged. With three classes or more, all samples of one class are
unknown: the seed modulo the number of classes says which. With two classes, and where classes are
steps of a scale (wine-quality, energy), unknown samples are test samples whose columns were
shuffled independently of each other. ``heart in ...`` is a natural shift: a network of patients in
Cleveland is asked about those of another hospital.

All run with default arguments, on standardised features. Settings of the natural search were chosen
with seeds 0 and 1 of ten of the tables, which may leave the same class out, and on other data.
"""

import numpy as np
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from . import small_tables
from .detectors import ON_INPUTS, WITHOUT_NETWORK
from .scale.case import METHODS, Case, Family, Members

N_MEMBERS = 5
SEEDS = (10, 11, 12, 13, 14)
N_JUDGED = 100
# Tables that come with scikit-learn or are made, and those of the data.
TABLES = (
    *small_tables.LOADED,
    *small_tables.BLOBS,
    *small_tables.MIXTURES,
    *small_tables.SHELLS,
    "heart",
    *(f"heart in {hospital}" for hospital in small_tables.HOSPITALS),
    *small_tables.SCALES,
)


def load(folder, case):
    table, _, seed = case.rpartition(", seed ")
    network, X, y, X_known, y_known, X_unknown = small_tables.prepare(table, int(seed), folder)
    # Of few known samples, half are held out.
    order = np.argsort(np.arange(len(y_known)) % 2, kind="stable")
    half = len(y_known) // 2
    held_out, test = order[: len(order) - half][:N_JUDGED], order[len(order) - half :][:N_JUDGED]
    seeds = range(10 * int(seed) + 1, 10 * int(seed) + 1 + N_MEMBERS)
    case = Case(
        network=network,
        X=X,
        y=y,
        X_test=X_known[test],
        y_test=y_known[test],
        others={"unknown": X_unknown[:N_JUDGED]},
        members=Members(lambda: [small_tables.train(X, y, each) for each in seeds]),
        X_val=X_known[held_out],
        y_val=y_known[held_out],
    )
    return case


FAMILY = Family(
    name="tables",
    title="tables",
    load=load,
    cases=tuple(f"{table}, seed {seed}" for seed in SEEDS for table in TABLES),
    near=("unknown",),
    far=(),
    rows=None,
    settings={"judged": N_JUDGED, "members": N_MEMBERS, **small_tables.SETTINGS},
    arguments={"MCDropout": {"p": 0.2}},
    methods=(*METHODS, "Laplace, all layers", *ON_INPUTS, *WITHOUT_NETWORK),
)


def nemenyi(n_methods, n_tasks, level=0.05):
    """Return the difference of mean ranks that is significant at a level, for all pairs at once."""
    quantile = studentized_range.ppf(1 - level, n_methods, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(n_methods * (n_methods + 1) / (6 * n_tasks)))


def ranked(aurocs):
    """Return mean ranks of methods, half of the critical difference, and Friedman's p-value.

    Parameters
    ----------
    aurocs : ndarray of shape (n_tables, n_methods)
    """
    ranks = rankdata(-aurocs.round(6), axis=1).mean(axis=0)
    half = nemenyi(aurocs.shape[1], len(aurocs)) / 2
    return ranks, half, float(friedmanchisquare(*aurocs.T).pvalue)
