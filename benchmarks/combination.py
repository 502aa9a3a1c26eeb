"""QUAM with a detector: better together than each alone?

QUAM (default arguments) and detectors that look at features or inputs are fitted on 80 % of the
training rows; `CombinedDetector` ranks rows among the other 20 %, which the given network has seen.
(With MNIST: on 5,000 of the training images, and among 300 held-out ones, which it has not.) Tasks:
the tables of ``benchmarks.tables`` (seed 20), the left-out digits of ``benchmarks.digits`` (seed
20), and with ``--data DIR`` images of four other kinds around two LeNets of MNIST. Nothing was
chosen on these.

A combination is better than its parts on a task if its AUROC is above that of both. The summary
has mean AUROCs by kind of task, and mean gains with 95 % bootstrap intervals over tasks: over the
better part of each task, which is not known beforehand, and over the part that is better on
average.

    python -m benchmarks.combination --data DIR
"""

from functools import lru_cache, partial

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split

from sklearn_quam import QUAMClassifier
from sklearn_quam.ood import (
    CombinedDetector,
    EnergyDetector,
    MahalanobisDetector,
    NearestNeighborDetector,
)

from . import digits, small_tables
from .paper.lenet import OOD_SETS, load_images, load_networks, load_training_data
from .paper.runs import options, report, run
from .searches import auroc

QUAM = "QUAM"
DETECTORS = {
    "Energy": EnergyDetector,
    "Mahalanobis, relative": partial(MahalanobisDetector, relative=True),
    "NearestNeighbor": NearestNeighborDetector,
    "NearestNeighbor, inputs": partial(NearestNeighborDetector, layer="input", metric="euclidean"),
}
COMBINE = ("fisher", "max")
SEED = 20
N_REFERENCE = 300
N_TRAINING = 5000  # images of MNIST


class Scored(BaseEstimator):
    """A fitted detector that scores the same rows once: combinations share their parts."""

    def __init__(self, detector):
        self.detector = detector
        self.scores = {}

    def __sklearn_clone__(self):
        return self

    def __sklearn_is_fitted__(self):
        return True

    def fit(self, X, y=None):  # noqa: ARG002
        return self

    def score_samples(self, X):
        key = np.ascontiguousarray(X).tobytes()
        if key not in self.scores:
            self.scores[key] = self.detector.score_samples(X)
        return self.scores[key]


def fitted_parts(network, X, y, **arguments):
    parts = {QUAM: QUAMClassifier(network, random_state=0, **arguments)}
    parts |= {name: make(network) for name, make in DETECTORS.items()}
    return {name: Scored(part.fit(X, y)) for name, part in parts.items()}


def judge(parts, X_reference, X_new, n_known):
    """Return the AUROC of each part and of each combination of QUAM with another one."""

    def tell(detector):
        rows = (X_new[:n_known], X_new[n_known:])
        scores = np.concatenate([detector.score_samples(part) for part in rows])
        return auroc(np.where(np.isinf(scores), np.finfo(float).max, -scores), n_known)

    found = {name: tell(part) for name, part in parts.items()}
    for name in DETECTORS:
        for combine in COMBINE:
            both = CombinedDetector([parts[QUAM], parts[name]], combine=combine)
            found[f"{QUAM} and {name}, {combine}"] = tell(both.fit(X_new, X_val=X_reference))
    return found


def held_out(X, y):
    return train_test_split(X, y, test_size=0.2, random_state=SEED, stratify=y)


def table(name, points, folder):
    network, X, y, X_new, n_known = small_tables.pooled(name, SEED, points, folder)
    X_fit, X_reference, y_fit, _ = held_out(X, y)
    return judge(fitted_parts(network, X_fit, y_fit), X_reference, X_new, n_known)


def left_out(classes, points):
    (network,), X, y, X_new = digits.prepare(classes, SEED, points, n_members=0)
    X_fit, X_reference, y_fit, _ = held_out(X.numpy(), y.numpy())
    return judge(fitted_parts(network, X_fit, y_fit), X_reference, X_new.numpy(), points)


@lru_cache(maxsize=1)
def lenet(folder, seed):
    X, y, X_held_out, _ = load_training_data(folder, seed)
    chosen = np.random.default_rng(seed).choice(len(X), N_TRAINING, replace=False)
    parts = fitted_parts(
        load_networks(folder, seed)[0], X[chosen], y[chosen], n_training_rows=len(X)
    )
    return parts, X_held_out[:N_REFERENCE]


def images(folder, seed, file, points):
    parts, X_reference = lenet(folder, seed)
    X_new = [load_images(folder, each, points) for each in ("mnist", file)]
    return judge(parts, X_reference, np.concatenate(X_new), points)


def all_tasks(chosen):
    for name in small_tables.names(chosen.data):
        yield f"tables: {name}", partial(table, name, chosen.points, chosen.data)
    for classes in digits.LEFT_OUT:
        text = " and ".join(map(str, classes))
        yield f"digits: without {text}", partial(left_out, classes, chosen.points)
    if chosen.data:
        for seed in (42, 142):
            for name, file in OOD_SETS.items():
                task = partial(images, chosen.data, seed, file, chosen.points)
                yield f"MNIST: {name}, seed {seed}", task


def gain(results, both, *alone):
    """Return the mean gain over the best of some scores, with its bootstrap interval."""
    gains = [result[both] - max(result[name] for name in alone) for result in results]
    draws = np.random.default_rng(0).choice(gains, (2000, len(gains))).mean(axis=1)
    return float(np.mean(gains)), *(float(end) for end in np.quantile(draws, [0.025, 0.975]))


def summarise(results):
    kinds = dict.fromkeys(task.partition(":")[0] for task in results)
    rows = []
    for name in next(iter(results.values())):
        row = {"score": name}
        for kind in kinds:
            own = [r[name] for task, r in results.items() if task.startswith(f"{kind}:")]
            row[kind] = float(np.mean(own))
        row["mean of all"] = float(np.mean([result[name] for result in results.values()]))
        if " and " in name:
            part = name.partition(" and ")[2].rpartition(", ")[0]
            every = list(results.values())
            alone = max((QUAM, part), key=lambda each: np.mean([r[each] for r in every]))
            wins = sum(r[name] > max(r[QUAM], r[part]) for r in every)
            row["better than both"] = f"{wins} of {len(every)}"
            row["gain over the better one of each task"] = "{:+.3f} ({:+.3f} to {:+.3f})".format(
                *gain(every, name, QUAM, part)
            )
            row["gain over the better one on average"] = (
                f"{alone}: " + "{:+.3f} ({:+.3f} to {:+.3f})".format(*gain(every, name, alone))
            )
        rows.append(row)
    return rows


def main():
    chosen = options(__doc__, data="optional", points=100)
    torch.set_num_threads(1)
    settings = {
        "points": chosen.points,
        "seed": SEED,
        "reference": N_REFERENCE,
        "training": N_TRAINING,
    }
    path = chosen.out / "combination.json"
    results = run(path, settings | small_tables.SETTINGS, dict(all_tasks(chosen)))
    rows = summarise(results)
    report(path, rows, columns=list(rows[-1]))


if __name__ == "__main__":
    main()
