"""Numbers of every method and detector with its default arguments, and what writes them down.

``make pin`` computes them anew. Do so where numbers are meant to change, and look at the
difference: a line is an array of one method.
"""

import copy
import json
import warnings
from pathlib import Path

import numpy as np
import torch

import sklearn_quam
from sklearn_quam import ood

from .networks import LABELS, TARGET, X64, X64_NEW, dense, train

PATH = Path(__file__).parent / "pinned_numbers.json"
ROWS = X64_NEW[:5]
# What a network without dropout needs, and short chains; all other arguments are the default ones.
ARGUMENTS = {
    "MCDropout": {"p": 0.1},
    "SWAG": {"n_samples": 8, "n_epochs": 3},
    "CyclicalSGHMC": {"n_cycles": 2, "n_steps": 20, "samples_per_cycle": 2, "n_chains": 2},
    "HMC": {"n_samples": 6, "n_warmup": 4, "n_leapfrog": 4, "n_chains": 2},
}
METHODS = sorted(
    name for name in sklearn_quam.__all__ if name.endswith(("Classifier", "Regressor"))
)
DETECTORS = sorted(name for name in ood.__all__ if name.endswith("Detector"))
# What benchmarks depend on beside defaults.
VARIANTS = {
    "QUAMClassifier, linear search": {"search": "linear"},
    "QUAMClassifier, penalty search": {"search": "penalty"},
    "doubt": {"setting": "expected"},
}
NAMES = METHODS + DETECTORS + [*VARIANTS]


def trained(target):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(dense(1 if target is TARGET else 3).double(), X64, target, n_epochs=30)


def members(network):
    """Return three networks near a given one, for methods that make an average of several."""
    found = [copy.deepcopy(network) for _ in range(3)]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in (p for each in found for p in each.parameters()):
            p += 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return found


def of_method(name):
    """Return arrays of a method: both settings, and what only adversarial models answer."""
    method = name.removesuffix("Classifier").removesuffix("Regressor")
    target = TARGET if name.endswith("Regressor") else LABELS
    network, arguments = trained(target), dict(ARGUMENTS.get(method, {}))
    if method in ("DeepEnsemble", "MixtureLaplace"):
        arguments["estimators"] = members(network)
    est = getattr(sklearn_quam, name)(network, random_state=0, **arguments).fit(X64, target)
    found = {}
    for setting in ("given", "expected"):
        prediction, u = est.set_params(setting=setting).predict(ROWS, return_uncertainty=True)
        found |= {f"{setting}, epistemic": u.epistemic, f"{setting}, total": u.total}
        proba = est.predict_proba(ROWS)[:, 0] if target is LABELS else prediction
        found[f"{setting}, prediction"] = proba
    if name == "QUAMClassifier":
        # Refined costs end where an optimiser stops, which depends on the processor.
        found["rival_costs"] = est.rival_costs(ROWS, refine=False)
        found["predict_proba_bounds"] = est.predict_proba_bounds(ROWS)
    return found


def of_detector(name):
    network = trained(LABELS)
    if name == "CombinedDetector":
        parts = [ood.EnergyDetector(network), ood.MahalanobisDetector(network)]
        detector = ood.CombinedDetector(parts, random_state=0)
    else:
        detector = getattr(ood, name)(network, random_state=0)
    return {"scores": detector.fit(X64, LABELS).score_samples(ROWS)}


def of_variant(name):
    # All results depend on doubt: it is that of another method, so that QUAM may change alone.
    kind = sklearn_quam.LaplaceClassifier if name == "doubt" else sklearn_quam.QUAMClassifier
    est = kind(trained(LABELS), random_state=0, **VARIANTS[name])
    u = est.fit(X64, LABELS, X_val=X64[::2], y_val=LABELS[::2]).predict_uncertainty(ROWS)
    return {"doubt": u.doubt} if name == "doubt" else {"epistemic": u.epistemic, "total": u.total}


def numbers(name):
    """Return what a method or a detector says about some rows, as arrays."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        of = of_method if name in METHODS else of_variant if name in VARIANTS else of_detector
        found = of(name)
    return {f"{name}: {key}": array for key, array in found.items()}


def main():
    found = {key: array for name in NAMES for key, array in numbers(name).items()}
    lines = [
        f"{json.dumps(key)}: {json.dumps([float(f'{x:.10g}') for x in np.ravel(array)])}"
        for key, array in found.items()
    ]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
