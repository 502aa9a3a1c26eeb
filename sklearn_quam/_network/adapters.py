"""From a fitted estimator to a private copy of the network inside it."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeCV
from sklearn.model_selection._search import BaseSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from .._messages import shown
from .likelihood import CLASSIFIER_LINKS, REGRESSOR_LINKS
from .outputs import NETWORK_ERRORS

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
}
_SKLEARN = (MLPClassifier, LogisticRegression, MLPRegressor, LinearRegression, Ridge, RidgeCV)
# What the module of a skorch net returns that was trained with a criterion.
_LINKS: dict[Any, str] = {
    nn.GaussianNLLLoss: "mean_variance",
    (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss): "mean",
    nn.CrossEntropyLoss: "logits",
    nn.NLLLoss: "probabilities",  # skorch takes the logarithm before this loss
    nn.BCEWithLogitsLoss: "binary_logit",
    nn.BCELoss: "probability",
}
# What a network may be wrapped in, besides pipelines.
WRAPPERS = (FrozenEstimator, BaseSearchCV, TransformedTargetRegressor)


@dataclass(frozen=True)
class Network:
    """A private copy of the network in an estimator, and what the estimator says about it."""

    module: nn.Module
    # None if only its output shows it.
    link: str | None
    # Labels of its columns; whether it was trained on their numbers, so that labels are the user's.
    classes: np.ndarray | None = None
    labels_are_indices: bool = True
    # Probability of the second class above which a binary classifier predicts it.
    threshold: float = 0.5


class _Exp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


def is_torch(estimator: Any) -> bool:
    """Return whether the network takes arrays of any dimension (skorch and plain modules)."""
    final = split_pipeline(estimator)[1]
    return isinstance(final, nn.Module) or is_skorch(final)


def is_skorch(estimator: Any) -> bool:
    """Return whether something is a skorch net, without importing skorch."""
    skorch = sys.modules.get("skorch")
    return skorch is not None and isinstance(estimator, skorch.NeuralNet)


def is_quantised(part: nn.Module) -> bool:
    """Return whether a module computes with whole numbers, which have no gradients."""
    return ".quantized." in f"{type(part).__module__}."


def floating_dtype(module: nn.Module) -> torch.dtype:
    """Return the floating point type of the first parameter of a network."""
    dtypes = (p.dtype for p in module.parameters() if p.is_floating_point())
    return next(dtypes, torch.float32)


def column_of_label(classes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the position of each label among the classes, which may be in any order."""
    order = np.argsort(classes)
    return order[np.searchsorted(classes, y, sorter=order)]


def check_kind(estimator: Any, task: str) -> None:
    """Refuse an estimator that holds no network, or one for another task."""
    if isinstance(estimator, nn.Module):
        return
    name = type(estimator).__name__
    if isinstance(estimator, type):
        raise TypeError(
            f"{estimator.__name__} is a class: pass an object, {estimator.__name__}(...), which "
            "may be fitted or not."
        )
    if isinstance(estimator, CalibratedClassifierCV):
        raise TypeError(
            "CalibratedClassifierCV changes probabilities after a network has computed them, which "
            "no other weights can show. Pass the network itself, and calibrate what predict_proba "
            "returns, if need be."
        )
    if not is_skorch(estimator) and not isinstance(estimator, _SKLEARN):
        raise TypeError(
            f"{name} holds no network that is known here. estimator must be a skorch net, a "
            "torch.nn.Module, an MLPClassifier, MLPRegressor, LogisticRegression, LinearRegression "
            "or Ridge, a Pipeline that ends in one of these, or a FrozenEstimator, a grid search "
            "or a TransformedTargetRegressor of them."
        )
    for kind, own in ((ClassifierMixin, "classifier"), (RegressorMixin, "regressor")):
        if isinstance(estimator, kind) and own != task:
            raise TypeError(
                f"{name} is a {own}: use it with a method whose name ends in {own.capitalize()}."
            )


def read_network(estimator: Any, *, task: str, link: str | None = None) -> Network:
    """Return the network inside a fitted estimator."""
    is_classifier = task == "classifier"
    allowed = CLASSIFIER_LINKS if is_classifier else REGRESSOR_LINKS
    if link is not None and link not in allowed:
        raise ValueError(f"link={shown(link)} is not for a {task}; choose one of {allowed}.")
    check_kind(estimator, task)
    if isinstance(estimator, nn.Module):
        if not is_classifier:
            return Network(copy_module(estimator), link)
        return Network(copy_module(estimator), link or "logits", _names_of_columns(estimator))
    classes = getattr(estimator, "classes_", None) if is_classifier else None
    if is_skorch(estimator):
        return Network(
            copy_module(estimator.module_),
            _skorch_link(estimator, allowed, link),
            classes,
            threshold=getattr(estimator, "threshold", 0.5),
        )
    module, own = _sklearn_module(estimator), "mean"
    if is_classifier:
        n_outputs: Any = module[-1].out_features
        own = "logits" if n_outputs > 1 else "binary_logit"
        if own == "logits" and getattr(estimator, "out_activation_", None) == "logistic":
            raise ValueError(
                "This MLPClassifier predicts several labels a row. Wrap the estimator: "
                "sklearn_quam.multioutput.MultiLabelClassifier(estimator)."
            )
    if link not in (None, own):
        raise ValueError(
            f"link={shown(link)} is not what {type(estimator).__name__} returns: leave link=None."
        )
    return Network(module, own, classes, labels_are_indices=False)


def copy_module(module: nn.Module) -> nn.Module:
    """Return an independent copy in evaluation mode, in at least single precision."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while hasattr(module, "_orig_mod") or isinstance(module, parallel):
        module = module.module if isinstance(module, parallel) else module._orig_mod  # type: ignore[assignment]
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
        with torch.no_grad():  # compiled modules record the copy otherwise
            duplicate = copy.deepcopy(module)
    except (*NETWORK_ERRORS, copy.Error, pickle.PickleError) as error:
        raise ValueError(
            f"The network cannot be copied ({error}). Tensors kept as attributes must be detached; "
            "use torch.nn.utils.parametrizations for weight normalisation."
        ) from error
    duplicate.eval()
    _fix_computed_weights(duplicate)
    for parameter in duplicate.parameters():
        parameter.requires_grad_(False)
    tensors = [*duplicate.parameters(), *duplicate.buffers()]
    if any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors):
        duplicate.float()
    return duplicate


def module_of(estimator: Any) -> nn.Module:
    """Return a private copy of the module in an estimator for dense or multi-label targets."""
    if isinstance(estimator, nn.Module):
        return copy_module(estimator)
    if is_skorch(estimator) and hasattr(estimator, "module_"):
        return copy_module(estimator.module_)
    if isinstance(estimator, MLPClassifier) and hasattr(estimator, "coefs_"):
        return _sklearn_module(estimator)
    raise TypeError(
        f"{type(estimator).__name__} holds no trained network that is known here. Pass a trained "
        "torch.nn.Module, a fitted skorch net or a fitted MLPClassifier."
    )


@torch.enable_grad()
def _fix_computed_weights(module: nn.Module) -> None:
    """Make plain parameters of weights that weight or spectral normalisation computes."""
    for part in list(module.modules()):
        if parametrize.is_parametrized(part):
            # A weight that needs no gradient would not become a parameter.
            part.requires_grad_()
            for name in list(part.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(part, name)
        for hook in list(part._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                remove_weight_norm(part, hook.name)
            elif isinstance(hook, SpectralNorm):
                remove_spectral_norm(part, hook.name)


def _names_of_columns(module: nn.Module) -> np.ndarray | None:
    """Return what a network of transformers calls its classes, in the order of its columns."""
    names = getattr(getattr(module, "config", None), "id2label", None)
    if not isinstance(names, Mapping) or not all(isinstance(n, str) for n in names.values()):
        return None
    return np.array([names[number] for number in sorted(names, key=int)])


def _skorch_link(net: Any, allowed: tuple[str, ...], link: str | None) -> str | None:
    """Return the link that the criterion implies, if it is used as usual."""
    criterion = getattr(net.criterion_, "_orig_mod", net.criterion_)
    implied = None
    # A loss of the net's own class says more than the criterion.
    if type(net).get_loss.__module__.startswith("skorch."):
        known = (link for kinds, link in _LINKS.items() if isinstance(criterion, kinds))
        implied = next((link for link in known if link in allowed), None)
    if (link, implied) == ("log_probabilities", "logits"):
        return link  # a softmax changes nothing about log-probabilities
    if link is not None and implied is not None and link != implied:
        raise ValueError(
            f"link={shown(link)} contradicts the criterion {type(criterion).__name__} that the net "
            f"was trained with, which means {implied!r}. Leave link=None."
        )
    if link is None and callable(getattr(net, "predict_nonlinearity", None)):
        raise ValueError(
            "The net has a predict_nonlinearity of its own. Pass link= to say what its module "
            f"returns before that: one of {CLASSIFIER_LINKS}."
        )
    return link or implied


def _sklearn_module(estimator: Any) -> nn.Sequential:
    """Return the layers of a scikit-learn network or linear model, in their own precision."""
    if hasattr(estimator, "coefs_"):
        weights, biases = [coef.T for coef in estimator.coefs_], estimator.intercepts_
    else:
        weights = [np.atleast_2d(estimator.coef_)]
        biases = [np.broadcast_to(estimator.intercept_, len(weights[0]))]
    layers: list[nn.Module] = []
    for weight, bias in zip(weights, biases, strict=True):
        if layers:
            layers.append(_ACTIVATIONS[estimator.activation]())
        # "meta" draws no initial weights: the global random state stays as it is.
        layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        layer.weight = nn.Parameter(torch.tensor(np.ascontiguousarray(weight)))
        layer.bias = nn.Parameter(torch.tensor(np.ascontiguousarray(bias)).to(layer.weight.dtype))
        layers.append(layer)
    if getattr(estimator, "out_activation_", None) == "exp":
        layers.append(_Exp())
    return nn.Sequential(*layers).eval().requires_grad_(False)


def inside(wrapper: Any) -> Any:
    """Return the wrapped estimator, the fitted one if there is one."""
    if isinstance(wrapper, FrozenEstimator):
        return wrapper.estimator
    if isinstance(wrapper, BaseSearchCV):
        if hasattr(wrapper, "cv_results_") and not hasattr(wrapper, "best_estimator_"):
            raise TypeError(
                f"This {type(wrapper).__name__} was fitted with refit=False, so that it holds no "
                "network. Fit it with refit=True, or pass a network that has the best parameters."
            )
        return getattr(wrapper, "best_estimator_", wrapper.estimator)
    default = LinearRegression() if wrapper.regressor is None else wrapper.regressor
    return getattr(wrapper, "regressor_", default)


def split_pipeline(estimator: Any) -> tuple[Pipeline | None, Any]:
    """Return the transformers that run before the network (or None) and the network's estimator."""
    if isinstance(estimator, WRAPPERS):
        return split_pipeline(inside(estimator))
    if not isinstance(estimator, Pipeline):
        return None, estimator
    inner, final = split_pipeline(estimator[-1])
    steps = list(estimator.steps[:-1]) + (inner.steps if inner is not None else [])
    return (Pipeline(steps) if steps else None), final


def is_pretrained(estimator: Any) -> bool:
    """Return whether an estimator holds a network that is not trained again.

    A pipeline is judged by its last step; its transformers must be fitted, too.
    """
    if isinstance(estimator, nn.Module):
        return True
    last, frozen = estimator, False
    while isinstance(last, (Pipeline, *WRAPPERS)):
        if isinstance(last, (BaseSearchCV, TransformedTargetRegressor)):
            return is_fitted(last)
        frozen = frozen or isinstance(last, FrozenEstimator)
        last = last.estimator if isinstance(last, FrozenEstimator) else last[-1]
    if frozen and isinstance(estimator, Pipeline):
        transformers = split_pipeline(estimator)[0]
        if transformers is not None and not all(is_fitted(step) for _, step in transformers.steps):
            return False
    return isinstance(last, nn.Module) or is_fitted(last)


def is_fitted(estimator: Any) -> bool:
    """Return whether an estimator is fitted."""
    if estimator is None or isinstance(estimator, str):  # a step may be "passthrough"
        return estimator is not None
    try:
        check_is_fitted(estimator)
    except (NotFittedError, TypeError):
        return False
    return True


def target_scale(estimator: Any, n_outputs: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return factors and shifts from what the network predicts to the target; None for neither."""
    scale, shift, found = np.ones(n_outputs), np.zeros(n_outputs), False
    while isinstance(estimator, (*WRAPPERS, Pipeline)):
        if isinstance(estimator, TransformedTargetRegressor):
            own_scale, own_shift = _affine(estimator.transformer_, n_outputs)
            # The outermost transformation is undone last.
            scale, shift, found = scale * own_scale, shift + scale * own_shift, True
        estimator = estimator[-1] if isinstance(estimator, Pipeline) else inside(estimator)
    return (scale, shift) if found else None


def _affine(transformer: Any, n_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return factors and shifts of a transformer's inverse; refuse other transformers."""
    points = np.array([[-3.0], [-1.0], [0.0], [1.0], [3.0], [10.0]]) * np.ones(n_outputs)
    with np.errstate(all="ignore"):
        values = np.asarray(transformer.inverse_transform(points), float)
    shift = values[2]
    scale = values[3] - shift
    if not np.allclose(values, points * scale + shift, rtol=1e-6) or not (scale != 0).all():
        raise ValueError(
            "The TransformedTargetRegressor transforms the target by more than a factor and a "
            "shift, so that Gaussians around what the network predicts are none around the target. "
            "Pass the network itself (its regressor_) with the transformed target as y."
        )
    return scale, shift
