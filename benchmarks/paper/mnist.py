"""MNIST: images of other kinds, found by the epistemic uncertainty of networks trained on MNIST.

The given networks, and the ensembles, are LeNets that the authors of the paper have published.
Every method judges the first network of a seed. QUAM searches the three fully connected layers, for
every image anew, with default arguments; the settings of its penalty search were chosen with
``--tune`` on the tuning images of Fashion-MNIST and held-out training images of MNIST alone, and
are the same for all sets and networks. Energy is minus the log-sum-exp of the logits. Most images
are easy to tell apart: tuning takes as many images from those that the entropy of the network
confuses (the most uncertain known, the most certain unknown ones) as from the others, and weighs
them so that the AUROC is that of all images.

    python -m benchmarks.paper.mnist --data DIR --out DIR
"""

import time

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

import sklearn_quam
from sklearn_quam.metrics import aupr, bootstrap_interval, fpr_at_tpr

from .lenet import OOD_SETS, load_images, load_networks, load_training_data
from .runs import dot_plot, means, options, report, run

PENALTY = {
    "search": "penalty",
    "parameters": 3,
    "search__batch_size": 256,
    "search__learning_rate": 1e-2,
    # In nats of the 50,000 training rows.
    "temperature": 35.0,
}
METHODS = {
    "Reference": {},
    "Energy": {},
    "MCDropout": {"n_samples": 2048},
    "DeepEnsemble": {"estimators": True},
    "Laplace": {},
    "Laplace, three layers": {"parameters": 3},
    "MixtureLaplace": {"estimators": True},
    "SWAG": {"parameters": 3},
    "CyclicalSGHMC": {"parameters": 3},
    "QUAM, penalty search": PENALTY,
    "QUAM, linear search": {"search": "linear"},
    "QUAM": {},
    "QUAM, expected": {"setting": "expected"},
}
# What is tried on the tuning images: one thing after the other.
CANDIDATES = {
    "chosen": {},
    "two layers searched": {"parameters": 2},
    "last layer searched": {"parameters": "last_layer"},
    "batch of 64": {"search__batch_size": 64},
    "50 steps": {"search__n_steps": 50},
    "3 targets": {"targets": 3},
    "3 targets, batch of 64": {"targets": 3, "search__batch_size": 64},
    "learning rate 0.005": {"search__learning_rate": 5e-3},
    "learning rate 0.02": {"search__learning_rate": 2e-2},
    "temperature 10": {"temperature": 10.0},
    "temperature 100": {"temperature": 100.0},
    "steps by layer": {"search__learning_rate": "by_layer"},
    "3 targets, batch of 64, all layers": {
        "targets": 3,
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


def scores(estimator, images, component="epistemic"):
    """Return the uncertainty of each image, and the seconds that an image took."""
    start = time.perf_counter()
    if component == "energy":
        with torch.no_grad():
            energy = -estimator.estimator_(torch.tensor(images)).logsumexp(dim=1)
        return {"scores": energy.tolist(), "seconds_per_image": 0.0}
    uncertainty = getattr(estimator.predict_uncertainty(images), component)
    seconds = (time.perf_counter() - start) / len(images)
    return {"scores": [float(f"{u:.5g}") for u in uncertainty], "seconds_per_image": seconds}


def judge(known, unknown):
    """Return each metric, the AUROC with its bootstrap interval."""
    known, unknown = np.array(known["scores"]), np.array(unknown["scores"])
    is_unknown = np.repeat([0, 1], [len(known), len(unknown)])
    both = np.concatenate([known, unknown])
    auroc = bootstrap_interval(
        roc_auc_score, is_unknown, both, stratify=is_unknown, n_resamples=500, random_state=0
    )
    return {
        "auroc": auroc.value,
        "auroc_low": auroc.low,
        "auroc_high": auroc.high,
        "aupr": aupr(is_unknown, both),
        "fpr95": fpr_at_tpr(is_unknown, both),
    }


def tasks_of_table(chosen):
    fitted = Fitted(chosen.data)
    for seed in chosen.seeds:
        for method in chosen.methods:
            component = {"Reference": "total", "Energy": "energy"}.get(method, "epistemic")
            for name, file in {"MNIST": "mnist", **OOD_SETS}.items():

                def task(seed=seed, method=method, file=file, component=component):
                    images = load_images(chosen.data, file, chosen.images)
                    name = "Reference" if method == "Energy" else method
                    return scores(fitted(name, METHODS[method], seed), images, component)

                yield f"{method}, seed {seed}, {name}", task


def summarise(results, chosen):
    rows = []
    for method in chosen.methods:
        for name in OOD_SETS:
            each = [
                judge(results[f"{method}, seed {s}, MNIST"], results[f"{method}, seed {s}, {name}"])
                for s in chosen.seeds
            ]
            seconds = [
                results[f"{method}, seed {s}, {name}"]["seconds_per_image"] for s in chosen.seeds
            ]
            rows.append(
                {"method": method, "set": name, **means(each), "seconds": float(np.mean(seconds))}
            )
    return rows


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


def tune(chosen):
    """Try settings of QUAM on tuning images, and report what each of them buys."""
    fitted = Fitted(chosen.data)
    images = {seed: tuning_images(chosen.data, seed, chosen.images) for seed in chosen.seeds}

    def task(method, arguments, component="epistemic"):
        each = []
        for seed in chosen.seeds:
            rows, is_unknown, weights = images[seed]
            found = scores(fitted(method, arguments, seed), rows, component)
            auroc = roc_auc_score(is_unknown, found["scores"], sample_weight=weights)
            each.append({"auroc": auroc, "seconds": found["seconds_per_image"]})
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


def main():
    chosen = options(
        __doc__, data=True, seeds=[42, 142], images=500, methods=list(METHODS), tune=False
    )
    if chosen.tune:
        tune(chosen)
        return
    settings = {"methods": METHODS, "images": chosen.images}
    path = chosen.out / "mnist.json"
    results = run(path, settings, dict(tasks_of_table(chosen)))
    rows = summarise(results, chosen)
    columns = ["method", "set", "auroc", "auroc_low", "auroc_high", "aupr", "fpr95", "seconds"]
    report(path, rows, columns, {"seconds": "{:.4f}"})
    panels = [(name, [row for row in rows if row["set"] == name], "auroc") for name in OOD_SETS]
    dot_plot(panels, chosen.out / "mnist.png")


if __name__ == "__main__":
    main()
