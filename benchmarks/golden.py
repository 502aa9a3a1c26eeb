"""The published numbers of QUAM on ImageNet, recomputed from the published scores of each image.

ImageNet-O and ImageNet-A images are to be told from ImageNet's own, and misclassified images from
correctly classified ones. Numbers agree if they differ by no more than 1e-6; the exit status says
whether all do.

The area under accuracy over the retained share of images is an exception: the published recipe, the
trapezoid over 1 to n - 1 retained images, gives 0.96949560 on these arrays and not the published
0.96951633. One image in 7000, counted as correct instead of wrong, would make that difference; the
arrays cannot tell. It is printed, and not counted.

What finds the mistakes besides QUAM is printed, too: the network's 1 - max p and its entropy, and
how far their ranks agree with QUAM's.

Run with ``python -m benchmarks.golden --data DIR``, where DIR holds ``imagenet_quam_scores.npz``.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from sklearn.metrics import auc, roc_auc_score

from sklearn_quam.metrics import (
    accuracy_rejection_auc,
    accuracy_rejection_curve,
    aupr,
    fpr_at_tpr,
    rank_correlation,
)

TOLERANCE = 1e-6
PUBLISHED = {
    "ImageNet-O": {"AUROC": 0.75808875, "AUPR": 0.7294560, "FPR95": 0.766},
    "ImageNet-A": {"AUROC": 0.8749498, "AUPR": 0.8587743, "FPR95": 0.470},
    "mistakes": {
        "AUROC": 0.9011462,
        "AUPR": 0.6435451,
        "FPR95": 0.4506101,
        "rejection": 0.96951633,
    },
}


def load(path):
    """Return, for each task, which images are to be found and their scores."""
    with np.load(path, allow_pickle=False) as scores:
        tasks = {"mistakes": (scores["mis_wrong"].astype(int), scores["mis_score"])}
        for name, found, others in (
            ("ImageNet-O", scores["o_ood"], scores["o_id"]),
            ("ImageNet-A", scores["a_adv"], scores["a_id"]),
        ):
            is_found = np.r_[np.ones(len(found), int), np.zeros(len(others), int)]
            tasks[name] = is_found, np.r_[found, others]
    return tasks


def published_rejection_area(is_wrong, score):
    """Return the area between 1 and n - 1 retained images, by the trapezoidal rule."""
    fraction, accuracy = accuracy_rejection_curve(1 - is_wrong, score)
    return auc(fraction[:-1], accuracy[:-1])


METRICS = {
    "AUROC": roc_auc_score,
    "AUPR": aupr,
    "FPR95": fpr_at_tpr,
    "rejection": published_rejection_area,
}


def compare(tasks):
    """Return a row for each number: task, metric, published, ours, difference, agrees."""
    rows = []
    for task, numbers in PUBLISHED.items():
        for metric, published in numbers.items():
            ours = float(METRICS[metric](*tasks[task]))
            difference = ours - published
            agrees = abs(difference) <= TOLERANCE
            rows.append((task, metric, published, ours, difference, agrees))
    return rows


def confidence(path):
    """Return how well the network itself finds mistakes, and how far QUAM ranks images alike."""
    with np.load(path, allow_pickle=False) as scores:
        quam, is_wrong = scores["mis_score"], scores["mis_wrong"]
        others = {"1 - max p": 1 - scores["mis_p_max"], "entropy": scores["mis_entropy"]}
    return [
        (name, roc_auc_score(is_wrong, score), rank_correlation(score, quam))
        for name, score in {"QUAM": quam, **others}.items()
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the published scores")
    options = parser.parse_args()
    tasks = load(options.data / "imagenet_quam_scores.npz")
    rows = compare(tasks)
    print(f"{'task':<11}{'metric':<10}{'published':>11}{'ours':>12}{'difference':>12}")
    for task, metric, published, ours, difference, agrees in rows:
        verdict = "" if agrees else "  differs"
        print(f"{task:<11}{metric:<10}{published:>11}{ours:12.8f}{difference:12.1e}{verdict}")
    print("\nmistakes       AUROC   rank correlation with QUAM")
    for name, auroc, correlation in confidence(options.data / "imagenet_quam_scores.npz"):
        print(f"{name:<12}{auroc:8.4f}{correlation:10.3f}")
    is_wrong, score = tasks["mistakes"]
    area = accuracy_rejection_auc(1 - is_wrong, score)
    print(f"accuracy_rejection_auc, over 1 to n retained images: {area:.8f}")
    return int(not all(row[-1] for row in rows if row[1] != "rejection"))


if __name__ == "__main__":
    sys.exit(main())
