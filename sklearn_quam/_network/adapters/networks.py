"""From a fitted estimator to the network inside it.

`read_network` knows skorch nets, plain modules, scikit-learn's multi-layer perceptrons and linear
models, pipelines that end in one of these, and frozen ones. What comes out is always a private
copy: the user's model is never touched.
"""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from torch import Tensor, nn
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from ..._messages import shown
from ..likelihood import CLASSIFIER_LINKS, REGRESSOR_LINKS
from ..outputs import NETWORK_ERRORS
from .opened import split_pipeline

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
}
_SKLEARN_CLASSIFIERS = (MLPClassifier, LogisticRegression)
_SKLEARN_REGRESSORS = (MLPRegressor, LinearRegression, Ridge, RidgeCV)
_SUPPORTED = (
    "a skorch net, a torch.nn.Module, an MLPClassifier, MLPRegressor, LogisticRegression, "
    "LinearRegression or Ridge, a Pipeline that ends in one of these, or a FrozenEstimator, a grid "
    "search or a TransformedTargetRegressor of them"
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


@dataclass(frozen=True)
class NetworkKind:
    """A kind of estimator that a network can be taken out of.

    Parameters
    ----------
    matches : callable
        Tells whether an estimator is of this kind.
    task : callable
        Returns what an estimator is: "classifier", "regressor", or None if it may be either.
    read : callable
        Takes the estimator, the task and the user's link, and returns a `Network`.
    any_ndim : bool
        Whether the network takes rows of any number of dimensions, or only vectors.
    """

    matches: Callable[[Any], bool]
    task: Callable[[Any], str | None]
    read: Callable[[Any, str, str | None], Network]
    any_ndim: bool


class _Exp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


def is_torch(estimator: Any) -> bool:
    """Tell whether the network takes arrays of any dimension (skorch and plain modules)."""
    final = split_pipeline(estimator)[1]
    return any(kind.any_ndim and kind.matches(final) for kind in KINDS)


def is_skorch(estimator: Any) -> bool:
    """Tell whether something is a skorch net, without importing skorch."""
    skorch = sys.modules.get("skorch")
    return skorch is not None and isinstance(estimator, skorch.NeuralNet)


def is_quantised(part: nn.Module) -> bool:
    """Tell whether a module computes with whole numbers, which have no gradients."""
    return ".quantized." in f"{type(part).__module__}."


def floating_dtype(module: nn.Module) -> torch.dtype:
    """Return the floating point type of a network, which its first parameter tells."""
    dtypes = (p.dtype for p in module.parameters() if p.is_floating_point())
    return next(dtypes, torch.float32)


def column_of_label(classes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the position of each label among the classes, which may be in any order."""
    order = np.argsort(classes)
    return order[np.searchsorted(classes, y, sorter=order)]


def check_kind(estimator: Any, task: str) -> NetworkKind:
    """Return the kind of network in an estimator; refuse what is unknown or for another task.

    Parameters
    ----------
    estimator : object
        The last step of a pipeline, or what stands alone.
    task : {"classifier", "regressor"}
        What it is to be used as.

    Returns
    -------
    NetworkKind
        How the network is taken out of it.
    """
    if isinstance(estimator, type):
        raise TypeError(
            f"{estimator.__name__} is a class: pass an object, {estimator.__name__}(...), which "
            "may be fitted or not."
        )
    kind = next((kind for kind in KINDS if kind.matches(estimator)), None)
    if kind is None:
        raise _unknown(estimator)
    if kind.task(estimator) not in (None, task):
        raise TypeError(
            f"{type(estimator).__name__} is a {kind.task(estimator)}: use it with a class whose "
            f"name ends in {str(kind.task(estimator)).capitalize()}."
        )
    return kind


def _unknown(estimator: Any) -> TypeError:
    """Return an error that says what to pass instead of an estimator."""
    if isinstance(estimator, CalibratedClassifierCV):
        return TypeError(
            "CalibratedClassifierCV changes probabilities after a network has computed them, which "
            "no other weights can show. Pass the network itself, and calibrate what predict_proba "
            "returns, if need be."
        )
    return TypeError(
        f"{type(estimator).__name__} holds no network that is known here. estimator must be "
        f"{_SUPPORTED}."
    )


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
        raise ValueError(f"link={shown(link)} is not for a {task}; choose one of {allowed}.")
    return check_kind(estimator, task).read(estimator, task, link)


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
        with torch.no_grad():  # compiled modules copy theirs as if it were a step of a network
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
    """Return a private copy of the module in something whose targets are no single labels.

    Parameters
    ----------
    estimator : object
        A trained module, a fitted skorch net, or a fitted MLPClassifier of several labels.

    Returns
    -------
    torch.nn.Module
        The copy.
    """
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
    """Make plain parameters of weights that are computed, as by weight or spectral normalisation.

    What a network may be is a question of the weights that it computes with.
    """
    for part in list(module.modules()):
        if parametrize.is_parametrized(part):
            # What needs no gradient would be no parameter afterwards.
            part.requires_grad_()
            for name in list(part.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(part, name)
        for hook in list(part._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                remove_weight_norm(part, hook.name)
            elif isinstance(hook, SpectralNorm):
                remove_spectral_norm(part, hook.name)


def _read_module(module: nn.Module, task: str, link: str | None) -> Network:
    if task == "regressor":
        return Network(copy_module(module), link)
    return Network(copy_module(module), link or "logits", classes=_names_of_columns(module))


def _names_of_columns(module: nn.Module) -> np.ndarray | None:
    """Return what a network of transformers calls its classes, in the order of its columns."""
    names = getattr(getattr(module, "config", None), "id2label", None)
    if not isinstance(names, Mapping) or not all(isinstance(n, str) for n in names.values()):
        return None
    return np.array([names[number] for number in sorted(names, key=int)])


def _skorch_task(net: Any) -> str | None:
    import skorch

    if isinstance(net, (skorch.NeuralNetClassifier, skorch.NeuralNetBinaryClassifier)):
        return "classifier"
    return "regressor" if isinstance(net, skorch.NeuralNetRegressor) else None


def _read_skorch(net: Any, task: str, link: str | None) -> Network:
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
            nn.BCELoss: "probability",
        }
    for kind, link in known.items():
        if isinstance(criterion, kind):
            return link
    return None


def _read_sklearn(estimator: Any, task: str, link: str | None) -> Network:
    if task == "classifier":
        network = _read_sklearn_classifier(estimator)
    else:
        network = Network(_sklearn_module(estimator), "mean")
    if link not in (None, network.link):
        raise ValueError(
            f"link={shown(link)} is not what {type(estimator).__name__} returns: leave link=None."
        )
    return network


def _read_sklearn_classifier(estimator: Any) -> Network:
    if isinstance(estimator, MLPClassifier):
        binary = estimator.out_activation_ == "logistic"
        if binary and estimator.n_outputs_ > 1:
            raise ValueError(
                "This MLPClassifier predicts several labels a row. Wrap the estimator: "
                "sklearn_quam.multioutput.MultiLabelClassifier(estimator)."
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


# The first kind that matches is taken. A new kind of network is one more line.
KINDS = (
    NetworkKind(lambda e: isinstance(e, nn.Module), lambda _: None, _read_module, any_ndim=True),
    NetworkKind(is_skorch, _skorch_task, _read_skorch, any_ndim=True),
    NetworkKind(
        lambda e: isinstance(e, _SKLEARN_CLASSIFIERS),
        lambda _: "classifier",
        _read_sklearn,
        any_ndim=False,
    ),
    NetworkKind(
        lambda e: isinstance(e, _SKLEARN_REGRESSORS),
        lambda _: "regressor",
        _read_sklearn,
        any_ndim=False,
    ),
)
