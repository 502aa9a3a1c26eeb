"""Defaults of detectors, on tuning data only: nothing of it is in a table of results.

AUROC of unknown rows: CIFAR-10 and ImageNet against textures, MNIST against the tuning images of
Fashion-MNIST (two LeNets), scikit-learn's digits with two or three left out, and small tables with
seeds 0 and 1. AUROC of mistakes on held-out rows of the first two, as far as there are any. The
folder of the data is that of ``benchmarks.scale``.

    python -m benchmarks.detector_defaults --data DIR

writes ``benchmarks/results/detector_defaults.json``.
"""

import argparse
import json
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sklearn_quam import ood

from . import digits, small_tables
from .detectors import DETECTORS
from .scale import cifar10, imagenet, mnist
from .scale.judge import auroc

VARIANTS = {
    **DETECTORS,
    "Mahalanobis, relative, lengths kept": partial(
        ood.MahalanobisDetector, relative=True, normalize=False
    ),
    "NearestNeighbor, guided": partial(ood.NearestNeighborDetector, guided=True),
    "GEN, gamma .5": partial(ood.GENDetector, gamma=0.5),
    **{f"NCI, alpha {alpha}": partial(ood.NCIDetector, alpha=alpha) for alpha in (0.0, 0.3)},
    **{f"MaxLogit, norm {p}": partial(ood.MaxLogitDetector, normalize=p) for p in (2, 5)},
    "MaxLogit, any norm": partial(ood.MaxLogitDetector, normalize="auto"),
}
LEFT_OUT = [(3, 5), (0, 1, 2), (2, 7), (4, 7), (8, 9)]
SEEDS = (0, 1)
N_POINTS = 150


def tasks(folder):
    """Yield family, network, training rows and labels, known rows, their labels, and unknown."""
    for family, module in (("CIFAR-10", cifar10), ("ImageNet", imagenet)):
        case = module.load(folder, getattr(module, "LAST", None), True)
        (unknown,) = case.others.values()
        yield family, case.network, case.X, case.y, case.X_test, case.y_test, unknown
    for seed in mnist.SEEDS:
        case = mnist.load(folder, seed, True)
        (unknown,) = case.others.values()
        yield "MNIST", case.network, case.X, case.y, case.X_test, case.y_test, unknown
    for left_out in LEFT_OUT:
        for seed in SEEDS:
            (network,), X, y, X_new = digits.prepare(left_out, seed, N_POINTS, 0)
            yield "digits", network, X, y, X_new[:N_POINTS], None, X_new[N_POINTS:]
    for name in small_tables.names(folder):
        for seed in SEEDS:
            network, X, y, X_new, n_known = small_tables.pooled(name, seed, N_POINTS, folder)
            yield "tables", network, X, y, X_new[:n_known], None, X_new[n_known:]


def judged(network, X, y, X_known, y_known, X_unknown):
    """Return the AUROC of unknown rows, and of mistakes, for each detector."""
    # A last layer alone takes the features themselves.
    train, known, unknown = (ood.read_features(network, rows) for rows in (X, X_known, X_unknown))
    is_unknown = np.repeat([0, 1], [len(known.features), len(unknown.features)])
    found = {}
    for name, make in VARIANTS.items():
        detector = make(network).fit_features(train.features, y, logits=train.logits)
        scores = [
            -detector.score_features(rows.features, logits=rows.logits) for rows in (known, unknown)
        ]
        scores = [np.nan_to_num(each, posinf=np.finfo(float).max) for each in scores]
        found[name] = {"unknown": auroc(is_unknown, np.concatenate(scores))}
        if y_known is not None:
            is_wrong = (detector.classes_[known.logits.argmax(axis=1)] != y_known).astype(int)
            if is_wrong.sum() >= 20:
                found[name]["mistakes"] = auroc(is_wrong, scores[0])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for family, network, *data in tasks(options.data):
        rows.append({"family": family, "found": judged(network, *data)})
        print(f"{family}: {len(rows)} tasks", flush=True)
    table = {
        name: {
            f"{family}, {what}": float(np.mean(values))
            for family in dict.fromkeys(row["family"] for row in rows)
            for what in ("unknown", "mistakes")
            if (
                values := [
                    row["found"][name][what]
                    for row in rows
                    if row["family"] == family and what in row["found"][name]
                ]
            )
        }
        for name in VARIANTS
    }
    columns = list(table["Energy"])
    print(f"{'':<36}" + "".join(f"{column:>21}" for column in columns))
    for name, own in table.items():
        mean = np.mean([own[column] for column in columns if column.endswith("unknown")])
        values = "".join(f"{own[column]:21.3f}" for column in columns)
        print(f"{name:<36}{values}   mean, unknown {mean:.3f}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "detector_defaults.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
