"""QUAM's default search on tuning data: how well it ranks, and what a row takes.

Textures around CIFAR-10's and ImageNet's last layers, Fashion-MNIST's tuning images around a LeNet,
validation questions of intents that a text MLP has not seen, left-out digits, and seeds 0 and 1 of
the small tables that need no files. None of these is reported elsewhere: defaults may be chosen
here. Times are processor seconds of one thread.

To compare two versions, store the cases once, and measure them with the package of each tree:

    python -m benchmarks.engine --data DIR --cases FOLDER --out now.json
    python -m benchmarks.engine --package /path/to/other/tree --cases FOLDER --out before.json
"""

import argparse
import json
import pathlib
import sys
import time
import warnings

import joblib
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

# Rows of each kind; ImageNet's and text's searches take longer.
FAMILIES = {
    "cifar10": ("last layer", 400),
    "imagenet": (None, 150),
    "mnist": ("seed 142", 200),
    "text": ("135 intents", 150),
}
LEFT_OUT = ((3, 5), (0, 2), (4, 7), (8, 9), (1, 6))
N_ROWS = 150


def cases(family, folder):
    """Yield network, training data, known rows, rows of another kind, and arguments."""
    # Not at the top: they need the present version of the package.
    from . import small_tables
    from .scale import cifar10, imagenet, mnist, text

    modules = {"cifar10": cifar10, "imagenet": imagenet, "mnist": mnist, "text": text}
    if family in FAMILIES:
        module, (name, n_rows) = modules[family], FAMILIES[family]
        case = module.load(folder, name, True)
        other = next(iter(case.others.values()))
        arguments = module.FAMILY.arguments.get("QUAM", {})
        yield case.network, case.X, case.y, case.X_test[:n_rows], other[:n_rows], arguments
    elif family == "digits":
        X, y = load_digits(return_X_y=True)
        for pair in LEFT_OUT:
            known = ~np.isin(y, pair)
            rows = np.random.default_rng(0).permutation(np.flatnonzero(known))
            train, test = rows[:1000], rows[1000:][:N_ROWS]
            net = MLPClassifier((64, 64), max_iter=300, random_state=0).fit(X[train] / 16, y[train])
            yield net, X[train] / 16, y[train], X[test] / 16, X[~known][:N_ROWS] / 16, {}
    else:
        for name in small_tables.names(None):
            for seed in (0, 1):
                net, X, y, rows, n_known = small_tables.pooled(name, seed, 80, None)
                yield net, X, y, rows[:n_known], rows[n_known:], {}


def stored(family, data, folder):
    """Return the cases of a family, from a folder that keeps them."""
    path = None if folder is None else folder / f"{family}.joblib"
    if path is not None and path.exists():
        return joblib.load(path)
    found = list(cases(family, data))
    if path is not None:
        folder.mkdir(parents=True, exist_ok=True)
        joblib.dump(found, path)
    return found


def judged(network, X, y, known, other, arguments):
    """Return AUROCs of both settings, and milliseconds of a row."""
    from sklearn_quam import QUAMClassifier

    est = QUAMClassifier(network, random_state=0, **arguments).fit(X, y)
    rows, is_other = np.concatenate([known, other]), np.repeat([0, 1], [len(known), len(other)])
    start = time.process_time()
    given = est.predict_uncertainty(rows).epistemic
    seconds = (time.process_time() - start) / len(rows)
    expected = est.set_params(setting="expected").predict_uncertainty(rows).epistemic
    return roc_auc_score(is_other, given), roc_auc_score(is_other, expected), 1e3 * seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder of the data sets")
    parser.add_argument("--cases", type=pathlib.Path, help="folder that keeps the cases")
    parser.add_argument("--package", type=pathlib.Path, help="a tree with the package to measure")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--families", nargs="+", default=[*FAMILIES, "digits", "tables"])
    options = parser.parse_args()
    if options.package is not None:
        sys.path.insert(0, str(options.package))
    torch.set_num_threads(1)
    found = {}
    for family in options.families:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = [judged(*case) for case in stored(family, options.data, options.cases)]
        names = ("given", "expected", "milliseconds")
        found[family] = dict(zip(names, np.mean(results, axis=0).tolist(), strict=True))
        print(family, {name: round(value, 4) for name, value in found[family].items()}, flush=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
