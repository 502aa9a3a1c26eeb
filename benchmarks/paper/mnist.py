"""MNIST: what settings of the penalty search buy, on tuning images alone.

The given networks are LeNets that the authors of the paper have published. QUAM searches their
three fully connected layers, for every image anew. Settings are tried on the tuning images of
Fashion-MNIST against held-out training images of MNIST, and are the same for all sets and networks
of ``benchmarks.scale.mnist``. Most images are easy to tell apart: as many images come from those
that the entropy of the network confuses (the most uncertain known, the most certain unknown ones)
as from the others, weighed so that the AUROC is that of all images.

    python -m benchmarks.paper.mnist --data DIR --out DIR
"""

import time

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

import sklearn_quam

from .lenet import load_images, load_networks, load_training_data
from .runs import means, options, report, run

PENALTY = {
    "search": "penalty",
    "parameters": 3,
    "search__batch_size": 256,
    "search__learning_rate": 1e-2,
    # In nats of the 50,000 training rows.
    "temperature": 35.0,
}
# What other methods need around these networks.
METHODS = {
    "MCDropout": {"n_samples": 2048},
    "DeepEnsemble": {"estimators": True},
    "MixtureLaplace": {"estimators": True},
    "SWAG": {"parameters": 3},
    "CyclicalSGHMC": {"parameters": 3},
    "QUAM, penalty search": PENALTY,
}
# What is tried on the tuning images: one thing after the other.
CANDIDATES = {
    "chosen": {},
    "two layers searched": {"parameters": 2},
    "last layer searched": {"parameters": "last_layer"},
    "batch of 64": {"search__batch_size": 64},
    "50 steps": {"search__n_steps": 50},
    "3 targets": {"search__targets": 3},
    "3 targets, batch of 64": {"search__targets": 3, "search__batch_size": 64},
    "learning rate 0.005": {"search__learning_rate": 5e-3},
    "learning rate 0.02": {"search__learning_rate": 2e-2},
    "temperature 10": {"temperature": 10.0},
    "temperature 100": {"temperature": 100.0},
    "steps by layer": {"search__learning_rate": "by_layer"},
    "3 targets, batch of 64, all layers": {
        "search__targets": 3,
        "search__batch_size": 64,
        "parameters": "all",
    },
}
# Shares of the tuning images that the entropy is likely to confuse.
HARD_KNOWN, HARD_UNKNOWN = 0.05, 0.2


class Fitted:
    """Fits each method once, when it is needed first."""

    def __init__(self, folder):
        self._folder = folder
        self._key = self._estimator = None

    def __call__(self, name, arguments, seed):
        key = (name, repr(arguments), seed)
        if key != self._key:
            torch.set_num_threads(1)
            networks = load_networks(self._folder, seed)
            X, y, _, _ = load_training_data(self._folder, seed)
            if "estimators" in arguments:
                arguments = {**arguments, "estimators": networks}
            method = getattr(sklearn_quam, f"{name.partition(',')[0]}Classifier")
            est = method(networks[0], random_state=0).set_params(**arguments)
            self._estimator = est.fit(X, y)
            self._key = key
        return self._estimator


def scores(estimator, images, component):
    """Return the uncertainty of each image, and the seconds that an image took."""
    start = time.perf_counter()
    uncertainty = getattr(estimator.predict_uncertainty(images), component)
    return uncertainty, (time.perf_counter() - start) / len(images)


def tuning_images(folder, seed, n_images):
    """Return images, whether each is unknown, and weights; n_images of each of four kinds."""
    network = load_networks(folder, seed)[0]
    rng = np.random.default_rng(0)
    images, weights = [], []
    for pool, easy_first, share in (
        (load_training_data(folder, seed)[2], 1, HARD_KNOWN),
        (load_images(folder, "fashion_mnist", None, "x_tune"), -1, HARD_UNKNOWN),
    ):
        with torch.no_grad():
            entropy = torch.distributions.Categorical(logits=network(torch.tensor(pool))).entropy()
        order = np.argsort(easy_first * entropy.numpy())
        easy, hard = np.split(order, [round((1 - share) * len(pool))])
        for rows, weight in ((easy, 1 - share), (hard, share)):
            images.append(pool[rng.choice(rows, n_images, replace=False)])
            weights.append(weight)
    is_unknown = np.arange(4 * n_images) >= 2 * n_images
    return np.concatenate(images), is_unknown, np.repeat(weights, n_images)


def main():
    chosen = options(__doc__, data=True, seeds=[42, 142], images=20)
    fitted = Fitted(chosen.data)
    images = {seed: tuning_images(chosen.data, seed, chosen.images) for seed in chosen.seeds}

    def task(method, arguments, component="epistemic"):
        each = []
        for seed in chosen.seeds:
            rows, is_unknown, weights = images[seed]
            doubt, seconds = scores(fitted(method, arguments, seed), rows, component)
            auroc = roc_auc_score(is_unknown, doubt, sample_weight=weights)
            each.append({"auroc": auroc, "seconds": seconds})
        return means(each)

    tasks = {"no search, entropy alone": lambda: task("Reference", {}, "total")}
    tasks |= {
        name: lambda change=change: task("QUAM", {**PENALTY, **change})
        for name, change in CANDIDATES.items()
    }
    settings = {"QUAM": PENALTY, "images": chosen.images, "seeds": chosen.seeds}
    path = chosen.out / "mnist_tuning.json"
    results = run(path, settings, tasks)
    rows = [{"setting": name, **result} for name, result in results.items()]
    report(path, rows, ["setting", "auroc", "seconds"], {"auroc": "{:.4f}"})


if __name__ == "__main__":
    main()
