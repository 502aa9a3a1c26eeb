"""From a fitted estimator to the network inside it.

`read_network` knows skorch nets, plain modules, scikit-learn's multi-layer perceptrons and linear
models, pipelines that end in one of these, and frozen ones. What comes out is always a private
copy: the user's model is never touched.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from ._likelihood import CLASSIFIER_LINKS, REGRESSOR_LINKS

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
}
_SUPPORTED = (
    "a skorch net, a torch.nn.Module, an MLPClassifier, MLPRegressor, LogisticRegression, "
    "LinearRegression or Ridge, a Pipeline that ends in one of these, or a FrozenEstimator of them"
)


@dataclass(frozen=True)
class Network:
    """What was found inside an estimator.

    Parameters
    ----------
    module : torch.nn.Module
        A private copy in evaluation mode whose parameters need no gradient.
    link : str or None
        What it returns; None where only its output can tell.
    classes : ndarray or None
        The labels of its columns, where the estimator knows them.
    labels_are_indices : bool
        Whether the network was trained on column indices, so that the labels are the user's.
    threshold : float
        Probability of the second class above which a binary classifier predicts it.
    """

    module: nn.Module
    link: str | None
    classes: np.ndarray | None = None
    labels_are_indices: bool = True
    threshold: float = 0.5


class _Exp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


def split_pipeline(estimator: Any) -> tuple[Pipeline | None, Any]:
    """Return the transformers that run before the network (or None) and the network's estimator.

    Parameters
    ----------
    estimator : object
        Anything a user may pass.

    Returns
    -------
    tuple
        A pipeline of transformers or None, and what is behind it; frozen estimators are opened.
    """
    if isinstance(estimator, FrozenEstimator):
        return split_pipeline(estimator.estimator)
    if not isinstance(estimator, Pipeline):
        return None, estimator
    inner, final = split_pipeline(estimator[-1])
    steps = list(estimator.steps[:-1]) + (inner.steps if inner is not None else [])
    return (Pipeline(steps) if steps else None), final


def is_given(estimator: Any) -> bool:
    """Tell whether an estimator holds a network that is to be taken as it is.

    Parameters
    ----------
    estimator : object
        Anything a user may pass.

    Returns
    -------
    bool
        True for modules and for fitted or frozen estimators. A pipeline is judged by its last
        step; behind unfitted transformers a frozen network is not ready yet.
    """
    if isinstance(estimator, nn.Module):
        return True
    if isinstance(estimator, FrozenEstimator):
        return is_given(estimator.estimator)
    if isinstance(estimator, Pipeline):
        final = estimator[-1]
        if isinstance(final, FrozenEstimator):
            return is_given(final) and _is_fitted(split_pipeline(estimator)[0])
        return is_given(final)
    return estimator is not None and _is_fitted(estimator)


def _is_fitted(estimator: Any) -> bool:
    try:
        check_is_fitted(estimator)
    except (NotFittedError, TypeError):
        return False
    return True


def is_torch(estimator: Any) -> bool:
    """Tell whether the network takes arrays of any dimension (skorch and plain modules)."""
    final = split_pipeline(estimator)[1]
    return isinstance(final, nn.Module) or is_skorch(final)


def is_skorch(estimator: Any) -> bool:
    """Tell whether something is a skorch net, without importing skorch."""
    skorch = sys.modules.get("skorch")
    return skorch is not None and isinstance(estimator, skorch.NeuralNet)


def default_network(task: str) -> Any:
    """Return the small network that is trained where the user passes none.

    Parameters
    ----------
    task : {"classifier", "regressor"}
        What it is for.

    Returns
    -------
    estimator
        An unfitted scikit-learn network.
    """
    kind = MLPClassifier if task == "classifier" else MLPRegressor
    return kind(hidden_layer_sizes=(64, 64), solver="lbfgs", max_iter=500)


def train(estimator: Any, X: Any, y: np.ndarray, *, seed: int | None, fit_params: dict) -> Any:
    """Return a fitted clone of an estimator.

    Parameters
    ----------
    estimator : estimator
        A skorch net, a scikit-learn network or a pipeline that ends in one.
    X : array-like
        Training data.
    y : ndarray
        Labels or real targets as the user gave them.
    seed : int or None
        Seeds the estimator where it leaves its own random state open.
    fit_params : dict
        Further arguments of the estimator's ``fit``.

    Returns
    -------
    estimator
        The fitted clone.
    """
    estimator = clone(estimator)
    if seed is not None:
        names = [key for key in estimator.get_params() if key.split("__")[-1] == "random_state"]
        unset = [key for key in names if estimator.get_params()[key] is None]
        estimator.set_params(**dict.fromkeys(unset, seed))
    final = split_pipeline(estimator)[1]
    if not is_skorch(final):
        return estimator.fit(X, y, **fit_params)
    if isinstance(X, np.ndarray) and X.dtype == np.float64:
        X = X.astype(np.float32)
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        return estimator.fit(X, _skorch_target(final, y), **fit_params)


def _skorch_target(net: Any, y: np.ndarray) -> np.ndarray:
    """Return the targets in the type and shape that skorch asks for."""
    import skorch

    if isinstance(net, skorch.NeuralNetRegressor):
        return y.reshape(len(y), -1).astype(np.float32)
    encoded = np.unique(y, return_inverse=True)[1]
    binary = isinstance(net, skorch.NeuralNetBinaryClassifier)
    return encoded.astype(np.float32 if binary else np.int64)


def read_network(estimator: Any, *, task: str, link: str | None = None) -> Network:
    """Return the network inside a fitted estimator.

    Parameters
    ----------
    estimator : object
        The last step of a pipeline, or what stands alone.
    task : {"classifier", "regressor"}
        What the network is to be used as.
    link : str or None
        What the user says the network returns; None leaves it to the estimator.

    Returns
    -------
    Network
        The network, independent of the estimator.
    """
    allowed = CLASSIFIER_LINKS if task == "classifier" else REGRESSOR_LINKS
    if link is not None and link not in allowed:
        raise ValueError(f"link={link!r} is not for a {task}; choose one of {allowed}.")
    if isinstance(estimator, nn.Module):
        default = "logits" if task == "classifier" else None
        return Network(copy_module(estimator), link or default)
    if is_skorch(estimator):
        return _read_skorch(estimator, task, link)
    if isinstance(estimator, (MLPClassifier, LogisticRegression)):
        _require_task(estimator, task, "classifier")
        return _read_sklearn_classifier(estimator)
    if isinstance(estimator, (MLPRegressor, LinearRegression, Ridge, RidgeCV)):
        _require_task(estimator, task, "regressor")
        return Network(_sklearn_module(estimator), "mean")
    hint = " Pass its best_estimator_." if hasattr(estimator, "best_estimator_") else ""
    raise TypeError(
        f"{type(estimator).__name__} holds no network that is known here.{hint} "
        f"estimator must be {_SUPPORTED}."
    )


def copy_module(module: nn.Module) -> nn.Module:
    """Return an independent copy in evaluation mode, in at least single precision.

    Parameters
    ----------
    module : torch.nn.Module
        The user's network; compiled and data-parallel wrappers are opened.

    Returns
    -------
    torch.nn.Module
        The copy. Half precision weights are widened to float32, which represents them exactly.
    """
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(
            module, (nn.DataParallel, nn.parallel.DistributedDataParallel)
        ):
            inner = module.module
        if inner is None:
            break
        module = inner
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        raise ValueError(
            "The network has lazy layers whose sizes are not known yet. Run one batch through it "
            "(or train it) before passing it on."
        )
    if any(p.is_meta for p in module.parameters()):
        raise ValueError("The network's parameters are on the 'meta' device: load weights first.")
    if any(p.is_complex() for p in module.parameters()):
        raise ValueError("Networks with complex parameters are not supported.")
    try:
        duplicate = copy.deepcopy(module)
    except Exception as error:
        raise ValueError(
            f"The network cannot be copied ({error}). Tensors kept as attributes must be detached; "
            "use torch.nn.utils.parametrizations for weight normalisation."
        ) from error
    duplicate.eval().requires_grad_(False)
    tensors = [*duplicate.parameters(), *duplicate.buffers()]
    if any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors):
        duplicate.float()
    return duplicate


def _require_task(estimator: Any, task: str, kind: str) -> None:
    if task != kind:
        raise TypeError(
            f"{type(estimator).__name__} is a {kind}: use it with a class whose name ends in "
            f"{kind.capitalize()}."
        )


def _read_skorch(net: Any, task: str, link: str | None) -> Network:
    import skorch

    if isinstance(net, (skorch.NeuralNetClassifier, skorch.NeuralNetBinaryClassifier)):
        _require_task(net, task, "classifier")
    elif isinstance(net, skorch.NeuralNetRegressor):
        _require_task(net, task, "regressor")
    return Network(
        copy_module(net.module_),
        _skorch_link(net, task, link),
        classes=getattr(net, "classes_", None) if task == "classifier" else None,
        threshold=getattr(net, "threshold", 0.5),
    )


def _skorch_link(net: Any, task: str, link: str | None) -> str | None:
    """Return the link that the criterion implies, if it is known to be used as usual."""
    criterion = getattr(net.criterion_, "_orig_mod", net.criterion_)
    implied = None
    if not _overrides_loss(net):
        implied = _link_of_criterion(criterion, task)
    if link is not None and implied is not None and link != implied:
        raise ValueError(
            f"link={link!r} contradicts the criterion {type(criterion).__name__} that the net was "
            f"trained with, which means {implied!r}. Leave link=None."
        )
    if link is None and callable(getattr(net, "predict_nonlinearity", None)):
        raise ValueError(
            "The net has a predict_nonlinearity of its own. Pass link= to say what its module "
            f"returns before that: one of {CLASSIFIER_LINKS}."
        )
    return link or implied


def _overrides_loss(net: Any) -> bool:
    """Tell whether the net's class brings its own loss, so that the criterion says little."""
    return not type(net).get_loss.__module__.startswith("skorch.")


def _link_of_criterion(criterion: nn.Module, task: str) -> str | None:
    if task == "regressor":
        known = {
            nn.GaussianNLLLoss: "mean_variance",
            nn.MSELoss: "mean",
            nn.L1Loss: "mean",
            nn.SmoothL1Loss: "mean",
            nn.HuberLoss: "mean",
        }
    else:
        known = {
            nn.CrossEntropyLoss: "logits",
            nn.NLLLoss: "probabilities",  # skorch takes the logarithm before this loss
            nn.BCEWithLogitsLoss: "binary_logit",
            nn.BCELoss: "probabilities",
        }
    for kind, link in known.items():
        if isinstance(criterion, kind):
            return link
    return None


def _read_sklearn_classifier(estimator: Any) -> Network:
    if isinstance(estimator, MLPClassifier):
        binary = estimator.out_activation_ == "logistic"
        if binary and estimator.n_outputs_ > 1:
            raise ValueError(
                "Multilabel MLPClassifier is not supported: fit one net for each label."
            )
    else:
        binary = len(estimator.coef_) == 1
        scheme = getattr(estimator, "multi_class", "auto")
        one_vs_rest = not binary and (scheme == "ovr" or estimator.solver == "liblinear")
        if one_vs_rest or (binary and scheme == "multinomial"):
            raise ValueError(
                "This LogisticRegression is neither a plain binary nor a multinomial one. Fit it "
                "with another solver and without multi_class."
            )
    return Network(
        _sklearn_module(estimator),
        "binary_logit" if binary else "logits",
        classes=estimator.classes_,
        labels_are_indices=False,
    )


def _sklearn_module(estimator: Any) -> nn.Module:
    """Return the layers of a scikit-learn network or linear model, in their own precision."""
    if not hasattr(estimator, "coefs_"):
        weight = np.atleast_2d(estimator.coef_)
        bias = np.broadcast_to(estimator.intercept_, len(weight))
        return nn.Sequential(_linear(weight, bias)).eval().requires_grad_(False)
    layers: list[nn.Module] = []
    for coef, intercept in zip(estimator.coefs_, estimator.intercepts_, strict=True):
        if layers:
            layers.append(_ACTIVATIONS[estimator.activation]())
        layers.append(_linear(coef.T, intercept))
    if estimator.out_activation_ == "exp":
        layers.append(_Exp())
    return nn.Sequential(*layers).eval().requires_grad_(False)


def _linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    # "meta" draws no initial weights: the global random state stays as it is.
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight = nn.Parameter(torch.tensor(np.ascontiguousarray(weight)))
    layer.bias = nn.Parameter(torch.tensor(np.ascontiguousarray(bias), dtype=layer.weight.dtype))
    return layer
