"""Cases whose numbers are pinned: every method, and the ways in which QUAM can search."""

import numpy as np
import torch
from torch import nn

import sklearn_quam
from sklearn_quam import LoRA

from .networks import IMAGES, MeanAndVariance, Residual, dense, train

_rng = np.random.default_rng(7)
X = _rng.normal(size=(60, 4))
X_NEW = _rng.normal(scale=2.0, size=(5, 4))
LABELS = (X[:, 0] + 0.5 * _rng.normal(size=60) > 0).astype(int) + (X[:, 1] > 0)
TARGET = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * _rng.normal(size=60)
TWO_TARGETS = np.column_stack([TARGET, X[:, 3]])
IMAGE_ROWS = IMAGES.astype(np.float64)
WEIGHTS = _rng.uniform(0.2, 3.0, size=60)


def convolutional():
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3))


class Looped(nn.Module):
    """Control flow that depends on the data: neither cut nor batched."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        rows = [self.first(row) if row[0] > 0 else -self.first(row) for row in x]
        return self.head(torch.tanh(torch.stack(rows)))


def with_dropout(n_out):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, n_out))


def trained(build, *args, data=X, y=LABELS):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(build(*args).double(), data, y, n_epochs=30)


def members(build, *args, y):
    nets = [trained(build, *args, y=y) for _ in range(3)]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for net in nets:
            for p in net.parameters():
                p += 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return nets


# Temperature and slack are nats of all training rows; those of the mean loss are written down.
N_ROWS = 60
SHORT = {"n_steps": 12, "penalty_every": 4, "learning_rate": 0.02, "tol": 0.0, "batch_size": 32}

# name -> (build and its arguments, targets, arguments of QUAM, of its search)
SEARCHES = {
    "trajectory": ((dense, 3), LABELS, {}, SHORT),
    "best": ((dense, 3), LABELS, {"sampling": "best", "slack": 0.5 * N_ROWS}, SHORT),
    "gaussian": ((dense, 3), LABELS, {"sampling": "gaussian", "slack": 0.5 * N_ROWS}, SHORT),
    "two targets": ((dense, 3), LABELS, {"targets": 2}, SHORT),
    "untargeted": ((dense, 3), LABELS, {"targets": "untargeted"}, SHORT),
    "last layer": ((dense, 3), LABELS, {"parameters": "last_layer"}, SHORT),
    "bias": ((dense, 3), LABELS, {"parameters": "bias"}, SHORT),
    "lora": ((dense, 3), LABELS, {"parameters": LoRA(rank=2)}, SHORT),
    "tied": ((Residual,), LABELS, {}, SHORT),
    "loop": ((Looped,), LABELS, {}, SHORT),
    "defaults": ((dense, 3), LABELS, {}, {}),
    "temperature": (
        (dense, 3),
        LABELS,
        {"temperature": 0.3 * N_ROWS, "slack": 0.3 * N_ROWS},
        SHORT,
    ),
    "bounded": ((dense, 3), LABELS, {}, {**SHORT, "max_change": 0.3, "weight_decay": 0.01}),
    "early end": ((dense, 3), LABELS, {"slack": 1.0 * N_ROWS}, {"n_steps": 40, "tol": 0.2}),
    "profile": ((dense, 1), TARGET, {}, SHORT),
    "profile, two outputs": ((dense, 2), TWO_TARGETS, {}, SHORT),
    "profile, defaults": ((dense, 1), TARGET, {}, {}),
    "variances": ((MeanAndVariance,), TARGET, {}, SHORT),
    "trajectory of means": ((dense, 1), TARGET, {"sampling": "trajectory"}, SHORT),
    "best of means": ((dense, 1), TARGET, {"sampling": "best", "slack": 0.5 * N_ROWS}, SHORT),
    "untargeted means": ((dense, 1), TARGET, {"targets": "untargeted"}, SHORT),
}
# method -> arguments
DRAWS = {
    "Reference": {},
    "MCDropout": {"n_samples": 16},
    "Laplace": {"n_samples": 32},
    "SWAG": {"n_samples": 8, "n_epochs": 4},
    "CyclicalSGHMC": {"n_cycles": 2, "n_steps": 12, "samples_per_cycle": 2, "n_chains": 2},
    "HMC": {"n_samples": 8, "n_warmup": 6, "n_leapfrog": 4},
    "DeepEnsemble": {},
    "MixtureLaplace": {"n_samples": 32},
}
LAPLACE = {
    "full": {"structure": "full"},
    "diag": {"structure": "diag"},
    "all": {"parameters": "all"},
    "all full": {"parameters": "all", "structure": "full"},
    "all diag": {"parameters": "all", "structure": "diag"},
    "grid": {"prior_precision": "grid"},
    "probit": {"predictive": "probit"},
}


def cases(quam):
    """Yield names and functions that return an estimator, rows to fit it to, and rows to ask."""
    for name, ((build, *args), y, arguments, search) in SEARCHES.items():
        kind = f"QUAM{'Regressor' if y.dtype.kind == 'f' else 'Classifier'}"

        def make(kind=kind, build=build, args=args, y=y, arguments=arguments, search=search):
            network = trained(build, *args, y=y)
            arguments = {"parameters": "all", **arguments}
            return quam(getattr(sklearn_quam, kind), network, arguments, search)

        yield f"{kind}: {name}", make, (X, y), X_NEW
    yield (
        "QUAMClassifier: images",
        lambda: quam(
            sklearn_quam.QUAMClassifier,
            trained(convolutional, data=IMAGE_ROWS, y=LABELS),
            {"parameters": "all"},
            {**SHORT, "n_steps": 6},
        ),
        (IMAGE_ROWS, LABELS),
        IMAGE_ROWS[:3] * 1.5,
    )
    yield (
        "QUAMClassifier: weighted",
        lambda: quam(sklearn_quam.QUAMClassifier, trained(dense, 3), {"parameters": "all"}, SHORT),
        (X, LABELS, WEIGHTS),
        X_NEW,
    )
    for name, arguments in DRAWS.items():
        for task, y, n_out in (("Classifier", LABELS, 3), ("Regressor", TARGET, 1)):

            def make(name=name, task=task, y=y, n_out=n_out, arguments=arguments):
                build = with_dropout if name == "MCDropout" else dense
                more = {}
                if name in ("DeepEnsemble", "MixtureLaplace"):
                    more["estimators"] = members(dense, n_out, y=y)
                method = getattr(sklearn_quam, f"{name}{task}")
                return method(trained(build, n_out, y=y), random_state=0, **arguments, **more)

            yield f"{name}{task}", make, (X, y), X_NEW
    for name, arguments in LAPLACE.items():

        def make(arguments=arguments):
            return sklearn_quam.LaplaceClassifier(
                trained(dense, 3), random_state=0, n_samples=32, **arguments
            )

        yield f"LaplaceClassifier: {name}", make, (X, LABELS), X_NEW


def numbers(est, data, rows):
    """Return what a method says about some rows, as lists."""
    est.fit(*data)
    found = {}
    measures = [None] if est._task == "classifier" else ["entropy", "variance"]
    for setting in ("given", "expected"):
        for measure in measures:
            est.set_params(setting=setting, **({} if measure is None else {"measure": measure}))
            (_, epistemic, total), diagnostics = est.predict_uncertainty(
                rows, return_diagnostics=True
            )
            key = setting if measure is None else f"{setting} {measure}"
            found[key] = {"epistemic": epistemic, "total": total}
            if hasattr(diagnostics, "standard_error"):
                found[key]["standard_error"] = diagnostics.standard_error
        found[f"{setting} prediction"] = {"prediction": np.ravel(est.predict(rows).astype(float))}
    found["diagnostics"] = {"effective_sample_size": diagnostics.effective_sample_size}
    for name in ("n_steps", "r_hat"):
        column = getattr(diagnostics, name, None)
        if column is not None and not np.isnan(column.astype(float)).all():
            found["diagnostics"][name] = column.astype(float)
    if hasattr(est, "adversarial_models"):
        models = est.adversarial_models(rows[:2])
        for name in ("divergence", "loss_increase"):
            found["diagnostics"][f"models {name}"] = np.array(
                [m[name] for ms in models for m in ms]
            )
        traces = est.search_traces(rows[:1])[0]
        found["diagnostics"]["traces"] = np.concatenate([t["loss_increase"] for t in traces])
    return found
