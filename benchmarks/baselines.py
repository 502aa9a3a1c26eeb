"""Every method on the same trained network: time, memory, and digits that it has never seen.

An MLP 64-64 with dropout before its last layer is trained by skorch on scikit-learn's digits
without two of the classes. Each method then runs in a process of its own, on the same network, with
default arguments: seconds to fit, points per second, by how much the memory in use grew at most,
and the AUROC with which its epistemic uncertainty (the total one for the network alone, which has
no other) tells left-out digits from known ones of the test set. The ensembles train their other
networks within ``fit``. HMC takes minutes: it runs for the first seed only. Detectors of
``sklearn_quam.ood`` and of scikit-learn are judged by their scores.

Run with ``python -m benchmarks.baselines``; writes ``benchmarks/results/baselines.json``.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import joblib
import numpy as np
import sklearn
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from torch import nn

import sklearn_quam

from .detectors import DETECTORS, ON_INPUTS, WITHOUT_NETWORK

DETECTORS = {
    **DETECTORS,
    "NearestNeighbor, inputs": ON_INPUTS["NearestNeighbor, inputs"],
    **{name: lambda _, make=make: make() for name, make in WITHOUT_NETWORK.items()},
}
METHODS = (
    "Reference",
    "MCDropout",
    "DeepEnsemble",
    "Laplace",
    "MixtureLaplace",
    "SWAG",
    "CyclicalSGHMC",
    "HMC",
    "Laplace, all layers",
    "QUAM",
    "QUAM, linear search",
    "QUAM, penalty search",
    *DETECTORS,
)
ARGUMENTS = {
    "Laplace, all layers": {"parameters": "all"},
    "QUAM, linear search": {"search": "linear"},
    "QUAM, penalty search": {"search": "penalty"},
}
LEFT_OUT = (3, 8)


class Classifier(nn.Sequential):
    def __init__(self, n_classes):
        super().__init__(
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(64, n_classes),
        )


def prepare(seed, n_points):
    """Return a trained net, its training data, and rows of which the second half is unknown."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    unknown = np.isin(y, LEFT_OUT)
    known = np.flatnonzero(~unknown)
    columns = np.unique(y[known], return_inverse=True)[1].astype(np.int64)
    fit, test = train_test_split(np.arange(len(known)), test_size=0.3, random_state=seed)
    torch.manual_seed(seed)
    net = NeuralNetClassifier(
        Classifier,
        module__n_classes=int(columns.max()) + 1,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=3e-3,
        max_epochs=60,
        batch_size=64,
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
    ).fit(X[known[fit]], columns[fit])
    others = np.random.default_rng(seed).permutation(np.flatnonzero(unknown))[:n_points]
    X_new = np.concatenate([X[known[test[:n_points]]], X[others]])
    return net, X[known[fit]], columns[fit], X_new


class PeakMemory:
    """Watches by how many megabytes the memory in use grows at most (Linux)."""

    def __enter__(self):
        self._first = self.peak = self._resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    @staticmethod
    def _resident():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20

    def _watch(self):
        while not self._stop.wait(0.002):
            self.peak = max(self.peak, self._resident())

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self.growth = max(self.peak, self._resident()) - self._first


def measure(method, path):
    """Run a method in this process and print what was measured."""
    net, X, y, X_new = joblib.load(path)
    torch.set_num_threads(1)
    net.predict_proba(X_new)
    if method in DETECTORS:
        est = DETECTORS[method](net)
    else:
        kind = getattr(sklearn_quam, f"{method.partition(',')[0]}Classifier")
        est = kind(net, random_state=0, **ARGUMENTS.get(method, {}))
    with PeakMemory() as memory:
        start = time.perf_counter()
        est.fit(X, y)
        fitted = time.perf_counter()
        if method in DETECTORS:
            score = -est.score_samples(X_new)
        else:
            uncertainty = est.predict_uncertainty(X_new)
            score = uncertainty.total if method == "Reference" else uncertainty.epistemic
        done = time.perf_counter()
    is_unknown = np.arange(len(X_new)) >= len(X_new) // 2
    result = {
        "fit_seconds": fitted - start,
        "points_per_second": len(X_new) / (done - fitted),
        "megabytes": memory.growth,
        "auroc": float(roc_auc_score(is_unknown, score)),
    }
    if method == "HMC":
        result["r_hat"] = est.r_hat_
    print(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=150, help="of known and of left-out digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder"
    )
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        warnings.simplefilter("ignore")
        measure(*options.measure)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            path = Path(folder) / f"{seed}.joblib"
            # Workers have to find the network's class under the module's full name.
            from benchmarks import baselines

            joblib.dump(baselines.prepare(seed, options.points), path)
            for method in options.methods:
                if method == "HMC" and seed != options.seeds[0]:
                    continue
                command = [sys.executable, "-m", "benchmarks.baselines", "--measure", method, path]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                rows.append({"method": method, "seed": seed, **json.loads(output)})
                print(f"{method:<15} seed {seed}: {output.strip()}", file=sys.stderr)
    report(rows, options.methods)
    packages = (sklearn_quam, sklearn, torch, np)
    versions = {package.__name__: package.__version__ for package in packages}
    settings = {"points": options.points, "left_out": LEFT_OUT, "versions": versions}
    path = options.out / "baselines.json"
    if path.exists():
        # Methods that did not run this time keep their rows.
        kept = json.loads(path.read_text())["results"]
        rows = [row for row in kept if row["method"] not in options.methods] + rows
    options.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**settings, "results": rows}, indent=1))


def report(rows, methods):
    print(f"{'method':<22}{'fit s':>8}{'points/s':>11}{'MB':>8}{'AUROC':>8}")
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        columns = ("fit_seconds", "points_per_second", "megabytes", "auroc")
        fit, speed, memory, auroc = (np.mean([row[c] for row in own]) for c in columns)
        print(f"{method:<22}{fit:8.1f}{speed:11.0f}{memory:8.0f}{auroc:8.3f}")


if __name__ == "__main__":
    main()
