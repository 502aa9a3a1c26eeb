"""A last layer with a thousand classes: images of other kinds against ImageNet's.

The given network is the last layer of an EfficientNet-lite0, on the features of its other layers.
QUAM knows four validation images of each class, as the training images are not at hand, and is told
how many training rows there were. The AUROC tells images of four other kinds from other validation
images. Settings were chosen on the textures alone (``--tune`` looks at nothing else); the mean
leaves them out. Some textures, scenes and plants show what is a class of ImageNet too; they stay.
Features that occur twice count once.

The seconds of a row depend on the machine. Beside them stands which fraction of the speed of a
large matrix product, measured in the same run, the natural search reaches: ``operations_per_row``
counts what it has to do. Memory is the peak of the process when a search has ended; in the row of
the entropy it is the peak before the searches. ``--targets 0`` leaves the number of classes that
are searched for to QUAM.

The folder of the data holds ``imagenet_lite0.npz`` (features, label, image_in_class, head_weight,
head_bias, ood_textures, ood_scenes, ood_plants, ood_chest_xray).

    python -m benchmarks.large_head --data DIR
"""

import resource
import time
from functools import partial

import numpy as np
import torch
from torch import nn

from sklearn_quam import LinearSearch, NaturalSearch

from .paper.runs import options, report, run
from .searches import auroc, named, plain_scores, quam

N_TRAINING_ROWS = 1_281_167
TUNING_SET = "textures"
OOD_SETS = (TUNING_SET, "scenes", "plants", "chest_xray")
# The linear search first: the peak of a process never falls.
SEARCHES = {"linear": LinearSearch(), "natural": NaturalSearch()}
PLAIN = ("entropy", "max-softmax", "energy")
N_AUTO_TARGETS = 11  # the most probable class and ten rivals


def load(folder, n_images, sets):
    """Return network, known rows and labels, rows to judge, and the rows of each set."""
    with np.load(folder / "imagenet_lite0.npz", allow_pickle=False) as data:
        features, labels = data["features"].astype(np.float32), data["label"].astype(np.int64)
        is_test = data["image_in_class"] == 4
        network = nn.Linear(features.shape[1], len(data["head_weight"]))
        with torch.no_grad():
            network.weight.copy_(torch.tensor(data["head_weight"]))
            network.bias.copy_(torch.tensor(data["head_bias"]))
        parts = {"ImageNet": features[is_test]}
        parts |= {name: data[f"ood_{name}"].astype(np.float32) for name in sets}
    rng = np.random.default_rng(0)
    parts = {name: rng.permutation(np.unique(X, axis=0))[:n_images] for name, X in parts.items()}
    ends = np.cumsum([len(X) for X in parts.values()])
    places = dict(zip(parts, map(slice, [0, *ends[:-1]], ends), strict=True))
    X_new = np.concatenate(list(parts.values()))
    return network.eval(), features[~is_test], labels[~is_test], X_new, places


def aurocs(scores, places):
    """Return the AUROC of each set, and the mean of those that were not used for tuning."""
    known = scores[places["ImageNet"]]
    found = {
        name: auroc(np.concatenate([known, scores[place]]), len(known))
        for name, place in places.items()
        if name != "ImageNet"
    }
    others = [value for name, value in found.items() if name != TUNING_SET]
    return {**found, "mean": float(np.mean(others)) if others else None}


def operations_per_row(n_targets, n_steps, n_rows, n_classes):
    """Return the floating point operations that the natural search of a last layer needs.

    An update of the last layer for one row x moves the logits of a training row z by a vector c of
    n_classes values times the product of x and z in the metric of the curvature. This product is
    computed once for each pair of rows, so that a step only has to know what c does to the training
    rows it looks at: about six operations for each of their logits (the shifted logit, its
    exponential, the sum, the probability, its gradient, the update).
    """
    return 6 * n_targets * n_steps * n_rows * n_classes


def peak_operations_per_second(size=3072, n_repeats=5):
    """Return what a large float32 matrix product reaches, the best of a few."""
    A, B = torch.randn(2, size, size)
    times = []
    for _ in range(n_repeats + 1):
        start = time.perf_counter()
        A @ B
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def judge_network(case):
    network, _, _, X_new, places = case
    with torch.no_grad():
        scores = plain_scores(network(torch.tensor(X_new)).numpy())
    results = {name: aurocs(scores[name], places) for name in PLAIN}
    results[PLAIN[0]]["peak_megabytes"] = peak_megabytes()
    return results


def judge_search(name, case, targets):
    *case, places = case
    search, n_classes = SEARCHES[name], len(case[0].weight)
    found = quam(*case, search, targets=targets or "auto", n_training_rows=N_TRAINING_ROWS)
    cost = {
        "fit_seconds": found["fit_seconds"],
        "seconds_per_row": found["seconds_per_row"],
        "peak_megabytes": peak_megabytes(),
    }
    if name == "natural":
        needed = operations_per_row(
            targets or N_AUTO_TARGETS, search.n_steps, search.n_rows, n_classes
        )
        cost["of_peak"] = needed / found["seconds_per_row"] / peak_operations_per_second()
    results = {}
    for setting, scores in found["scores"].items():
        results[named(name, setting)] = aurocs(scores, places) | (
            cost if setting == "given" else {}
        )
    return results


def main():
    chosen = options(
        __doc__, data=True, images=300, targets=0, threads=1, methods=list(SEARCHES), tune=False
    )
    torch.set_num_threads(chosen.threads)
    sets = (TUNING_SET,) if chosen.tune else OOD_SETS
    case = load(chosen.data, chosen.images, sets)
    tasks = {"network alone": partial(judge_network, case)}
    tasks |= {name: partial(judge_search, name, case, chosen.targets) for name in chosen.methods}
    settings = {key: getattr(chosen, key) for key in ("images", "targets", "threads")}
    settings |= {name: search.get_params() for name, search in SEARCHES.items()}
    path = chosen.out / ("large_head_tuning.json" if chosen.tune else "large_head.json")
    results = run(path, settings, tasks)
    rows = [{"method": name, **row} for own in results.values() for name, row in own.items()]
    columns = ["method", *sets] if chosen.tune else ["method", *sets, "mean"]
    columns += ["fit_seconds", "seconds_per_row", "of_peak", "peak_megabytes"]
    formats = {"seconds_per_row": "{:.4f}", "fit_seconds": "{:.1f}", "peak_megabytes": "{:.0f}"}
    report(path, rows, columns, formats)


if __name__ == "__main__":
    main()
