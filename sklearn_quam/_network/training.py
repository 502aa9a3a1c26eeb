"""Networks that are not fitted yet: trained as their own estimators train them."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from sklearn import get_config
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import has_fit_parameter
from torch import nn
from torch.nn.utils import parametrize

from .._messages import shown
from ..exceptions import NetworkError
from .adapters import check_kind, column_of_label, floating_dtype, is_skorch, split_pipeline
from .outputs import NetworkErrors

# torch's random state belongs to all threads: of those that seed it, one trains at a time.
_SEEDED = threading.RLock()


def default_network(task: str) -> Any:
    """Return the small network, unfitted, that is trained where the user passes none."""
    # Its inputs are scaled: columns may be of any unit.
    kind = MLPClassifier if task == "classifier" else MLPRegressor
    network = kind(hidden_layer_sizes=(64, 64), solver="lbfgs", max_iter=500)
    pipeline = Pipeline([("scaler", StandardScaler()), ("network", network)])
    if get_config()["enable_metadata_routing"]:
        for _, step in pipeline.steps:
            step.set_fit_request(sample_weight=True)
    return pipeline


def untrained(estimator: Any) -> Any:
    """Return an unfitted clone of whatever trains its network, also of a frozen estimator."""
    if isinstance(estimator, FrozenEstimator):
        return untrained(estimator.estimator)
    if isinstance(estimator, Pipeline):
        last = untrained(estimator[-1])
        duplicate = clone(estimator)
        duplicate.steps[-1] = (estimator.steps[-1][0], last)
        return duplicate
    if isinstance(estimator, nn.Module):
        raise TypeError(
            "A torch module does not say how it is trained, so that no further networks can be "
            "trained like it. Pass them as estimators=[...], or wrap the module in skorch."
        )
    return clone(estimator)


def sample_weight_argument(estimator: Any) -> str:
    """Return what ``sample_weight`` is called in the ``fit`` of an estimator or pipeline."""
    final = split_pipeline(estimator)[1]
    if not has_fit_parameter(final, "sample_weight"):
        raise ValueError(
            f"{type(final).__name__}.fit takes no sample_weight. Train it yourself and pass it "
            "fitted; the weights then count in the loss on the training data only."
        )
    prefix, step = "", estimator
    while isinstance(step, Pipeline):
        prefix, step = f"{prefix}{step.steps[-1][0]}__", step[-1]
    return f"{prefix}sample_weight"


def train(
    estimator: Any,
    X: Any,
    y: np.ndarray,
    *,
    task: str,
    seed: int | None,
    fit_params: dict,
    anew: bool = False,
) -> tuple[Any, np.ndarray | None]:
    """Return a fitted clone, and the labels of its columns where they became column indices.

    The seed is for estimators that leave their random state open. ``anew`` replaces one that is
    set, too, and draws the weights again of a module that was passed to skorch ready-made.
    """
    transformers, final = split_pipeline(estimator)
    check_kind(final, task)
    if isinstance(final, nn.Module):
        fitted = clone(transformers).fit(X, y, **fit_params)
        return Pipeline([*fitted.steps, ("network", final)]), None
    estimator = clone(estimator)
    if seed is not None:
        names = [key for key in estimator.get_params() if key.split("__")[-1] == "random_state"]
        unset = [key for key in names if anew or estimator.get_params()[key] is None]
        estimator.set_params(**dict.fromkeys(unset, seed))
    if not is_skorch(final):
        return estimator.fit(X, y, **fit_params), None
    with _SEEDED:
        X, target, classes = _skorch_data(final, X, y, task, probe=transformers is None)
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            if anew:
                _draw_weights(split_pipeline(estimator)[1].module)
            return estimator.fit(X, target, **fit_params), classes


def _draw_weights(module: Any) -> None:
    """Initialise a module again; a class is initialised by skorch itself."""
    if not isinstance(module, nn.Module):
        return
    # Parts first: what contains them may initialise them in a way of its own.
    for part in reversed(list(module.modules())):
        reset = getattr(part, "reset_parameters", getattr(part, "_reset_parameters", None))
        if reset is None:
            continue
        # A weight that is computed from others (weight normalisation) is drawn, then set.
        computed = getattr(part, "parametrizations", {})
        with parametrize.cached():
            drawn = {name: getattr(part, name) for name in computed}
            reset()
        for name, value in drawn.items():
            setattr(part, name, value.detach())


def _skorch_data(
    net: Any, X: Any, y: np.ndarray, task: str, *, probe: bool
) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """Return data and targets in the types and shapes that a net is trained on."""
    import skorch

    with torch.random.fork_rng():
        module = clone(net).initialize().module_
    precision = np.float64 if floating_dtype(module) == torch.float64 else np.float32
    X = _in_precision(X, precision)
    shape: tuple[int, ...] = ()
    if probe:
        device = next(module.parameters(), torch.empty(0)).device
        # It may not take rows as they are.
        with suppress(NetworkError), torch.no_grad(), NetworkErrors():
            shape = module.eval()(torch.tensor(X[:2]).to(device)).shape
    if task == "regressor":
        return X, y.reshape(-1 if len(shape) == 1 else (len(y), -1)).astype(precision), None
    labels = np.unique(y)
    known = getattr(net, "classes", None)
    if known is not None and len(known):
        classes = np.asarray(known)
        if not np.isin(labels, classes).all():
            raise ValueError(
                f"y has labels that are not among the net's classes {shown(list(known))}."
            )
    else:
        columns = np.arange(shape[1] if len(shape) == 2 else 0)
        are_columns = labels.dtype.kind in "iu" and np.isin(labels, columns).all()
        classes = columns if are_columns else labels
    binary = isinstance(net, skorch.NeuralNetBinaryClassifier)
    target = column_of_label(classes, y)
    return X, target.astype(np.float32 if binary else np.int64), classes


def _in_precision(X: Any, dtype: type) -> Any:
    """Return a copy whose floating point columns are of the network's precision."""
    if hasattr(X, "dtypes"):
        return X.astype({name: dtype for name, kind in X.dtypes.items() if kind == np.float64})
    if isinstance(X, np.ndarray) and X.dtype.kind == "f":
        return X.astype(dtype)
    return X
