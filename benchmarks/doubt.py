"""One number to decide by: mistakes and unknown rows, by doubt and by single scores.

Known rows are split into training, held-out and test rows; held-out rows measure doubt. "unknown"
is the AUROC of unknown rows against all known test rows, "mistakes" that of mistakes among these,
and "both" that of mistakes and unknown rows together against correct known rows.

Digits with two classes left out, with right labels and with 10 % wrong ones, and tables need no
files. ``--data DIR`` adds the networks of CIFAR-10 and ImageNet (see ``benchmarks/scale``). How
doubt adds up was chosen on textures around these two, on other left-out digits and other seeds;
neither is used here.

    python -m benchmarks.doubt --data DIR
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from sklearn_quam import QUAMClassifier
from sklearn_quam.metrics import failure_auroc
from sklearn_quam.ood import EnergyDetector, NearestNeighborDetector, PNMLDetector

from . import small_tables
from .digits import train
from .scale import cifar10, imagenet
from .searches import auroc

LEFT_OUT = ((1, 6), (0, 5), (2, 9), (3, 8), (6, 7))
SEEDS = (10, 11)
TABLE_SEEDS = (2, 3)
TABLES = ("mixture 8x3", "mixture 10x4", "mixture 50x8", "mixture 16x10", "blobs 30x6")
WRONG_LABELS = 0.1
N_UNKNOWN = 400
DETECTORS = {
    "energy": EnergyDetector,
    "nearest neighbors": NearestNeighborDetector,
    "pNML": PNMLDetector,
}
TASKS = ("unknown", "mistakes", "both")


def parts_of(X, y, seed):
    """Return training, held-out and test rows, 60 %, 20 % and 20 %."""
    X, X_new, y, y_new = train_test_split(X, y, test_size=0.4, random_state=seed)
    X_val, X_test, y_val, y_test = train_test_split(X_new, y_new, test_size=0.5, random_state=seed)
    return (X, y), (X_val, y_val), (X_test, y_test)


def digits(wrong_labels):
    """Yield networks of digits, their rows, and left-out digits."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    for left_out in LEFT_OUT:
        for seed in SEEDS:
            rng, unknown = np.random.default_rng(seed), np.isin(y, left_out)
            labels = np.unique(y[~unknown], return_inverse=True)[1]
            wrong = rng.random(len(labels)) < wrong_labels
            labels = np.where(wrong, rng.integers(0, labels.max() + 1, len(labels)), labels)
            parts = parts_of(X[~unknown], labels, seed)
            network = train(*map(torch.tensor, parts[0]), 10 * seed)
            yield network, *parts, X[unknown], {}


def tables():
    """Yield networks of tables, their rows, and those of a class that is left out."""
    for name in TABLES:
        for seed in TABLE_SEEDS:
            X, y = small_tables.load(name, seed, None)
            unknown = y == np.unique(y)[seed % len(np.unique(y))]
            parts = parts_of(X[~unknown], y[~unknown], seed)
            scaler = StandardScaler().fit(parts[0][0])
            parts = [(scaler.transform(X_part), y_part) for X_part, y_part in parts]
            network = small_tables.train(*parts[0], 10 * seed)
            yield network, *parts, scaler.transform(X[unknown])[:N_UNKNOWN], {}


def images(module, name, folder, tuned_on):
    """Yield the network, its rows, and each kind of others but that of tuning."""
    case = module.load(folder, name, False)
    (X_val, y_val), (X_test, y_test) = (
        (case.X_test[half], case.y_test[half]) for half in (slice(0, None, 2), slice(1, None, 2))
    )
    for kind, X in case.others.items():
        # Flickr's images are of the known classes.
        if kind not in (tuned_on, "flickr"):
            held_out = (X_val, y_val), (X_test, y_test)
            yield case.network, (case.X, case.y), *held_out, X[:N_UNKNOWN], case.arguments["QUAM"]


def judged(network, known, held_out, test, X_unknown, arguments):
    """Return the AUROC of each score for each task."""
    (X_val, y_val), (X_test, y_test) = held_out, test
    est = QUAMClassifier(network, random_state=0, **arguments)
    est.fit(*known, X_val=X_val, y_val=y_val)
    scores = {}
    for part in (X_test, X_unknown):
        proba, u = est.predict_proba(part, return_uncertainty=True)
        found = {
            "doubt": u.doubt,
            "epistemic": u.epistemic,
            "1 - max p": 1 - proba.max(axis=1),
            "entropy": u.aleatoric,
        }
        for name, own in found.items():
            scores.setdefault(name, []).append(own)
    for name, kind in DETECTORS.items():
        detector = kind(network).fit(*known)
        scores[name] = [-detector.score_samples(part) for part in (X_test, X_unknown)]
    right = est.predict(X_test) == y_test
    return {
        name: (
            auroc(np.concatenate([own, other]), len(own)),
            failure_auroc(right, own) if 0 < right.sum() < len(right) else np.nan,
            failure_auroc(right, own, other),
        )
        for name, (own, other) in scores.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10's and ImageNet's networks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    families = {
        "digits": digits(0.0),
        "digits, 10 % wrong labels": digits(WRONG_LABELS),
        "tables": tables(),
    }
    if options.data is not None:
        families["CIFAR-10"] = images(cifar10, cifar10.LAST, options.data, "textures")
        families["ImageNet"] = images(imagenet, "EfficientNet-lite0", options.data, "textures")
    means = {}
    for family, runs in families.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [judged(*run) for run in runs]
        print(f"\n{family} ({len(found)} runs){'':8}" + "".join(f"{task:>10}" for task in TASKS))
        for name in found[0]:
            mean = np.nanmean([one[name] for one in found], axis=0)
            means.setdefault(name, []).append(mean)
            print(f"{name:<32}" + "".join(f"{value:10.3f}" for value in mean), flush=True)
    print(f"\n{'mean over families':<32}" + "".join(f"{task:>10}" for task in TASKS))
    for name, own in means.items():
        print(f"{name:<32}" + "".join(f"{value:10.3f}" for value in np.mean(own, axis=0)))


if __name__ == "__main__":
    main()
