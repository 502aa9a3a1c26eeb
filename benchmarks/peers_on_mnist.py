"""Methods and detectors of the package and the same ones of other packages, side by side.

A LeNet that was trained on MNIST, its 50,000 training images, 1,000 images each of MNIST's test
set, of Omniglot and of KMNIST: both packages get the same. Images that switch on a unit before the
last layer which no training image does (one of Omniglot) are left out: how far they are along a
direction without extent is a convention. What is compared is

same
    the same numbers up to rounding, after a change of units where conventions differ: largest
    difference of scores, relative to the largest score, and the AUROC, which must be equal;
draws
    random numbers differ: the means of several AUROCs, which must agree up to their errors;
similar
    another approximation of the same thing, said below: rank correlation.

- Ensembles of ten networks: torch-uncertainty and probly. MC dropout: torch-uncertainty, which
  draws a mask for each image; the package draws one for each model, which all images share. probly
  adds dropout layers to the network, which is another method.
- Laplace approximation: laplace-torch, with the prior precision 1. Its Kronecker factors of
  convolutions are those of the package (sums over places, "expand"), but it takes the bias of a
  layer for independent of the weight, which the package takes together. "Same" is on a network
  whose convolutions are linear layers on patches and whose biases are weights of a constant. Its
  scores are logits, those of the package for all layers log-probabilities: what moves all logits
  alike is left out, as it changes no prediction. The probit probabilities of laplace-torch do
  depend on it; here they are made, on both sides, of what is left. "Similar" is the mutual
  information of draws of linearised logits, with biases as each package has them; laplace-torch
  draws for each image, the package takes the same evenly spread draws for all. A hundred draws are
  few: ranks of images that the network is sure of are mostly those of the draws.
- Detectors: pytorch-ood. Units differ (see ``peer_detectors``). Its entropy clips probabilities at
  1e-7, and its pNML works in single precision, where regrets below 1e-7 are lost: these two are
  "similar". ``fit`` of the package also sets a threshold, for which it scores the training images,
  too; that of pytorch-ood does not.

Both packages have one thread, also where pytorch-ood would take all cores. Peers get images
as tensors, 500 at a time; for Jacobians of laplace-torch five, the fastest of 1, 5, 20 and 50 in a
trial of its own network. Times are the best of up to five, in turns.
The exit status is 1 if anything disagrees.

    make check-peers DATA=DIR

or, where ``benchmarks/peers-requirements.txt`` is installed,
``python -m benchmarks.peers_on_mnist --data DIR``.
"""

import copy
import sys
import time
from functools import cache
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import spearmanr

import sklearn_quam
from sklearn_quam import ood

from . import peer_packages
from .digests import COMPARED, stamp
from .paper.lenet import load_images, load_networks, load_training_data
from .paper.runs import options, report, run
from .peer_methods import (
    N_FOR_ALL_LAYERS,
    Body,
    Given,
    Side,
    detector,
    ensemble,
    in_batches,
    laplace,
    mutual_information,
    network_entropy,
    one_thread,
    peer_detector,
    peer_information,
    peer_laplace,
    peer_probit,
    pnml,
    probly_ensemble,
    torch_uncertainty,
    without_biases,
)
from .searches import auroc

PEERS = ("laplace-torch", "torch-uncertainty", "probly", "pytorch-ood")
SEED = 42
OTHERS = {"OMNIGLOT": "omniglot", "KMNIST": "kmnist"}
N_SAMPLES = 100
N_COMPONENTS, N_NEIGHBORS = 32, 5
N_REPEATS = 5  # of methods that draw
# Single precision: of the largest score, and of the 1,000,000 pairs that an AUROC compares.
SCORES, AUROC = 1e-3, 1e-4
# Standard errors that means of draws may be apart.
N_ERRORS = 4
MOST_CALLS, MOST_SECONDS = 5, 20.0


class Pair(NamedTuple):
    """The same method of the package and of a peer."""

    peer: str
    kind: str
    ours: Side
    theirs: Side
    all_layers: bool = False


def pairs():
    """Return all comparisons, by name."""
    peer = peer_packages.pytorch_ood()
    found = {
        "ensemble of ten, torch-uncertainty": Pair(
            "torch-uncertainty",
            "same",
            ensemble(),
            torch_uncertainty(lambda methods, given: methods.deep_ensembles(given.networks)),
        ),
        "ensemble of ten, probly": Pair("probly", "same", ensemble(), probly_ensemble()),
        "MC dropout": Pair(
            "torch-uncertainty",
            "draws",
            mutual_information(sklearn_quam.MCDropoutClassifier, n_samples=N_SAMPLES),
            torch_uncertainty(
                # One pass after the other: all images a hundred times do not fit.
                lambda methods, given: methods.mc_dropout(
                    copy.deepcopy(given.network), N_SAMPLES, on_batch=False
                )
            ),
        ),
        "Laplace, last layer, probit": Pair(
            "laplace-torch",
            "same",
            laplace("last_layer"),
            peer_laplace("last_layer", without_biases, peer_probit),
        ),
        "Laplace, all layers, probit": Pair(
            "laplace-torch",
            "same",
            laplace("all"),
            peer_laplace("all", without_biases, peer_probit),
            all_layers=True,
        ),
        "Laplace, all layers, mutual information": Pair(
            "laplace-torch",
            "similar",
            mutual_information(
                sklearn_quam.LaplaceClassifier,
                parameters="all",
                prior_precision=1.0,
                n_samples=N_SAMPLES,
            ),
            peer_laplace("all", copy.deepcopy, peer_information(N_SAMPLES)),
            all_layers=True,
        ),
    }
    detectors = {
        "entropy": (network_entropy(), peer_detector(peer.Entropy)),
        "energy": (detector(ood.EnergyDetector), peer_detector(peer.EnergyBased)),
        "largest logit": (detector(ood.MaxLogitDetector), peer_detector(peer.MaxLogit)),
        "Mahalanobis": (
            detector(ood.MahalanobisDetector, shrinkage=0.0, normalize=False),
            peer_detector(
                lambda network: peer.Mahalanobis(Body(network)),
                lambda scores, n_rows: 2 * n_rows * scores,
            ),
        ),
        "Mahalanobis, relative": (
            detector(ood.MahalanobisDetector, shrinkage=0.0, normalize=False, relative=True),
            peer_detector(
                lambda network: peer.RMD(Body(network)), lambda scores, n_rows: n_rows * scores
            ),
        ),
        "nearest neighbours": (
            detector(ood.NearestNeighborDetector, n_neighbors=N_NEIGHBORS),
            # The squared distance of unit vectors is twice their cosine distance.
            peer_detector(
                lambda network: one_thread(peer.KNN(Body(network), k=N_NEIGHBORS)),
                lambda scores, _: scores**2 / 2,
            ),
        ),
        "ViM": (
            detector(ood.ViMDetector, n_components=N_COMPONENTS),
            peer_detector(
                lambda network: peer.ViM(
                    Body(network), N_COMPONENTS, network.out.weight, network.out.bias
                )
            ),
        ),
        "pNML": (
            detector(ood.PNMLDetector, normalize=True),
            peer_detector(
                lambda network: pnml(peer, network), lambda scores, _: np.log(10) * scores
            ),
        ),
        "gradient norm": (
            detector(ood.GradientNormDetector),
            peer_detector(
                lambda network: peer.GradNorm(network, lambda name: name == "out.weight")
            ),
        ),
    }
    for name, sides in detectors.items():
        kind = "similar" if name in ("entropy", "pNML") else "same"
        found[name] = Pair("pytorch-ood", kind, *sides)
    return found


# -- what is measured ------------------------------------------------------------------------


def timed(*calls):
    """Return what calls return, and the least seconds of some of each, taken in turns."""
    results, seconds = [None] * len(calls), [[] for _ in calls]
    while len(seconds[0]) < MOST_CALLS and np.sum(seconds) < MOST_SECONDS:
        for number, call in enumerate(calls):
            start = time.perf_counter()
            results[number] = call()
            seconds[number].append(time.perf_counter() - start)
    return [(result, min(each)) for result, each in zip(results, seconds, strict=True)]


def measure(sides, given, n_seeds):
    """Return the scores of both packages, and their AUROCs for some seeds and times."""
    fits = timed(*(lambda side=side: side.fit(given, 0) for side in sides))
    calls = []
    for side, (fitted, _) in zip(sides, fits, strict=True):
        side.score(fitted, given.X_new[::100])
        calls.append(lambda side=side, fitted=fitted: side.score(fitted, given.X_new))
    found = []
    for side, (_, fit_seconds), (scores, seconds) in zip(sides, fits, timed(*calls), strict=True):
        more = [side.score(side.fit(given, seed), given.X_new) for seed in range(1, n_seeds)]
        measured = {
            "aurocs": aurocs([scores, *more], given.sizes),
            "fit_seconds": fit_seconds,
            "rows_per_second": len(given.X_new) / seconds,
        }
        found.append((scores, measured))
    return found


def aurocs(all_scores, sizes):
    """Return AUROCs of each kind of images, which come behind each other."""
    parts = [np.split(np.asarray(scores), np.cumsum(sizes)[:-1]) for scores in all_scores]
    return {
        name: [auroc(np.concatenate([part[0], part[number]]), sizes[0]) for part in parts]
        for number, name in enumerate(OTHERS, start=1)
    }


def compare(pair, given):
    """Return what was measured of both, and whether they agree."""
    given = given.few() if pair.all_layers else given
    n_seeds = N_REPEATS if pair.kind == "draws" else 1
    (ours, own), (theirs, others) = measure((pair.ours, pair.theirs), given, n_seeds)
    difference = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    apart, allowed = {}, {}
    for name in OTHERS:
        a, b = own["aurocs"][name], others["aurocs"][name]
        apart[name] = abs(np.mean(a) - np.mean(b))
        error = np.hypot(np.std(a, ddof=1), np.std(b, ddof=1)) / len(a) ** 0.5 if a[1:] else 0.0
        allowed[name] = AUROC + N_ERRORS * error
    agree = all(apart[name] <= allowed[name] for name in OTHERS)
    return {
        "peer": pair.peer,
        "kind": pair.kind,
        "ours": own,
        "theirs": others,
        "relative_difference": difference,
        "spearman": float(spearmanr(ours, theirs).statistic),
        "auroc_apart": apart,
        "auroc_allowed": allowed,
        # NaN must fail, too.
        "agree": pair.kind == "similar"
        or (agree and (pair.kind == "draws" or difference <= SCORES)),
    }


def summary(name, result):
    own, others = result["ours"], result["theirs"]
    row = {
        "method": name.removesuffix(f", {result['peer']}"),
        "peer": result["peer"],
        "compared": result["kind"],
    }
    for other in OTHERS:
        means = [np.mean(side["aurocs"][other]) for side in (own, others)]
        row[f"{other}, ours / theirs"] = " / ".join(f"{mean:.4f}" for mean in means)
    worst = max(OTHERS, key=lambda name: result["auroc_apart"][name])
    row["agreement"] = {
        "same": f"scores {result['relative_difference']:.0e} apart",
        "draws": f"AUROC {result['auroc_apart'][worst]:.4f} apart, "
        f"{result['auroc_allowed'][worst]:.4f} allowed",
        "similar": f"rank correlation {result['spearman']:.3f}",
    }[result["kind"]]
    seconds = (own["fit_seconds"], others["fit_seconds"])
    row["seconds to fit"] = " / ".join(f"{value:.1f}" for value in seconds)
    speeds = (own["rows_per_second"], others["rows_per_second"])
    row["rows a second"] = " / ".join(f"{value:,.0f}" for value in speeds)
    row["ratio"] = f"{speeds[0] / speeds[1]:.2f}"
    return row


@cache
def load(folder, n_images):
    sets = ["mnist", *OTHERS.values()]
    X, y, _, _ = load_training_data(folder, SEED)
    networks = load_networks(folder, SEED)
    body = Body(networks[0])
    ever_on = in_batches(body, X).any(axis=0)
    images = [load_images(folder, name, n_images) for name in sets]
    known = [rows[~in_batches(body, rows)[:, ~ever_on].any(axis=1)] for rows in images]
    return Given(networks, X, y, np.concatenate(known), [len(rows) for rows in known])


def main():
    compared = pairs()
    chosen = options(__doc__, data=True, images=1000, methods=list(compared))
    torch.set_num_threads(1)
    settings = {
        "network": SEED,
        "images": chosen.images,
        "samples": N_SAMPLES,
        "repeats": N_REPEATS,
        "training_images_for_all_layers": N_FOR_ALL_LAYERS,
        "n_components": N_COMPONENTS,
        "n_neighbors": N_NEIGHBORS,
        "peers": {package: version(package) for package in PEERS},
    }
    tasks = {
        name: lambda pair=compared[name]: compare(pair, load(chosen.data, chosen.images))
        for name in chosen.methods
    }
    path = chosen.out / "peers_on_mnist.json"
    results = run(path, settings, tasks)
    report(path, [summary(name, result) for name, result in results.items()])
    stamp(path, COMPARED["peers_on_mnist"])
    disagree = [name for name, result in results.items() if not result["agree"]]
    print(f"Disagree: {', '.join(disagree)}" if disagree else "All agree.")
    return int(bool(disagree))


if __name__ == "__main__":
    sys.exit(main())
