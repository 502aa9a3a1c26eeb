"""Fitted estimators as plain values and arrays of declared names; nothing of it is code."""

from __future__ import annotations

import hashlib
import io
import os
import uuid
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._network.adapters import is_torch, split_pipeline
from .._network.parameters import LoRA
from .._network.stored import GivenNetworks, instead, present, stored_module
from .._posterior.checkpoint import digest_of_rows
from .._search.natural.arguments import LinearSearch, NaturalSearch
from .._search.penalty.arguments import PenaltySearch
from .._storing.files import Arrays, package_version, read, write, write_file
from .._storing.schema import Plain, read_as, write_as
from ..exceptions import UnreadableFileError
from ._wrapping import parameters_now

FORMAT = 3
_PACKAGE = __name__.split(".")[0]
# Arguments that hold networks: they are passed to `load`.
NETWORKS = ("estimator", "estimators")
Search = NaturalSearch | LinearSearch | PenaltySearch
Argument = Plain | LoRA | Search
# Attributes of fitted estimators, all of them, and what they hold.
ATTRIBUTES: dict[str, Any] = {
    "n_features_in_": int,
    "feature_names_in_": np.ndarray,
    "classes_": np.ndarray,
    "n_outputs_": int,
    "_single_output": bool,
    "noise_variance_": np.ndarray,
    "reference_loss_": float,
    "conformal_scores_": np.ndarray,
    "conformal_labels_": np.ndarray,
    "logit_scale_": float,
    "_known_rows": np.ndarray,
    "_doubt_question": list[str],
    "parameter_names_": list[str],
    "n_parameters_searched_": int,
    "n_training_rows_": int,
    "search_": Search,
    "search_reason_": str,
    "temperature_": float,
    "slack_": float,
    "cut_": str,
    "execution_": str,
    "p_": float | None,
    "prior_precision_": float,
    "log_marginal_likelihood_": float,
    "step_size_": float,
    "acceptance_rate_": float,
    "r_hat_": float,
    "offset_": float,
    "norm_": float | None,
}
# Errors of code that gets parts which do not fit each other.
_UNFIT = (AttributeError, AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


class Saved:
    """An estimator that can be stored without code."""

    _task: ClassVar[str]
    # The kind of `_fitted`.
    _fitted_kind: ClassVar[Any]

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted estimator to a file, without the code of its network.

        Parameters
        ----------
        path : str or path
            The file. `sklearn_quam.load` reads it, given a network of the same structure. It holds
            arrays and plain values in the layout of safetensors, and what ``fit`` keeps of the
            training data.
        """
        check_is_fitted(self)
        try:
            header, arrays = stored(self)
        except TypeError as error:
            raise TypeError(
                f"{type(self).__name__} cannot be saved without pickle: {error} Pass names instead "
                "of a function as parameters= or metric=, a number as random_state=, a search of "
                "this package, and labels that are texts or numbers."
            ) from error
        beside = Path(path).with_name(f".{uuid.uuid4().hex}.part")
        try:
            write_file(Path(path), header, arrays, beside)
        finally:
            beside.unlink(missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        networks = _networks_of(state)
        if "_fitted" not in state or any(is_torch(split_pipeline(one)[1]) for one in networks):
            return state
        # Tools that store estimators without pickle know scikit-learn and numpy only.
        file = io.BytesIO()
        try:
            write(file, *stored(self))
        except TypeError:
            # Labels and arguments may be of any kind.
            return state
        return {**state, "_fitted": np.frombuffer(file.getvalue(), dtype=np.uint8)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state.get("_fitted")
        if isinstance(packed, np.ndarray):
            content = np.ascontiguousarray(packed).tobytes()
            header, arrays = read(io.BytesIO(content), len(content))
            given = GivenNetworks(_networks_of(state), self._task)
            fitted = restored(type(self), header, arrays, given)["fitted"]
            state = {**state, "_fitted": fitted}
        elif isinstance(packed, (dict, list, tuple, str, bytes)):
            raise UnreadableFileError("The fitted state was not written by this package.")
        super().__setstate__(state)  # type: ignore[misc]


def stored(estimator: Any) -> tuple[dict[str, Any], Arrays]:
    """Return header and arrays of a fitted estimator."""
    cls = type(estimator)
    if not hasattr(cls, "_fitted_kind") or cls.__module__.split(".")[0] != _PACKAGE:
        raise TypeError(f"{cls.__name__} is no method of {_PACKAGE}.")
    kept = {name for name in vars(estimator) if name.endswith("_") or name in ATTRIBUTES}
    names = sorted(kept - {"estimator_", "estimators_"})
    if unknown := set(names) - ATTRIBUTES.keys():
        raise TypeError(f"{min(unknown)} is not known.")
    arguments = {
        name: str(value) if isinstance(value, torch.device) else value
        for name, value in estimator.get_params(deep=False).items()
    }
    attributes = {name: getattr(estimator, name) for name in names}
    content = {"fitted": estimator._fitted, "arguments": arguments, "attributes": attributes}
    tree, arrays = write_as(_kind_of(cls, names), content, instead())
    if undefined := _undefined(arrays):
        raise TypeError(f"{undefined[0]} holds NaN.")
    header = {"format": FORMAT, "made_by": package_version(), "method": cls.__name__}
    return {**header, "device": str(estimator._fitted.device), "content": tree}, arrays


def restored(
    cls: type, header: dict[str, Any], arrays: Arrays, given: GivenNetworks
) -> dict[str, Any]:
    """Return what `stored` has written for a class: what was fitted, arguments and attributes."""
    tree, device = header.get("content"), header.get("device")
    if undefined := _undefined(arrays):
        raise UnreadableFileError(f"{undefined[0]} holds NaN")
    attributes = tree.get("attributes") if isinstance(tree, dict) else None
    if not isinstance(attributes, dict) or not isinstance(device, str):
        raise UnreadableFileError("it was not written by save")
    if not attributes.keys() <= ATTRIBUTES.keys():
        raise UnreadableFileError("it has attributes that are not known")
    try:
        return read_as(_kind_of(cls, attributes), tree, arrays, instead(given), present(device))
    except UnreadableFileError:
        raise
    except _UNFIT as error:
        # The code that `fit` runs puts the stored parts together.
        raise UnreadableFileError(
            f"its parts do not fit each other, or the network that was passed ({error})"
        ) from error


def _kind_of(cls: Any, attributes: Any) -> dict[str, Any]:
    """Return the kind of the stored parts of an estimator, by names of the package."""
    arguments = [name for name in cls._get_param_names() if name not in NETWORKS]
    return {
        "fitted": cls._fitted_kind,
        "arguments": dict.fromkeys(arguments, Argument),
        "attributes": {name: ATTRIBUTES[name] for name in attributes},
    }


def _undefined(arrays: Arrays) -> list[str]:
    """Return the arrays that hold NaN, which only weights of a network may."""
    checked = {name: a for name, a in arrays.items() if ".weights." not in name}
    return [n for n, a in checked.items() if a.is_floating_point() and bool(a.isnan().any())]


def _networks_of(state: dict[str, Any]) -> list[Any]:
    """Return the networks that a user would pass to `load`."""
    if state.get("estimators") is not None:
        return list(state["estimators"])
    return [state["estimator_"]] if "estimator_" in state else []


def identity(estimator: Any, data: Any, models: Any) -> str:
    """Return a digest of network, training data, arguments and seed.

    Nothing that was computed from them is part of it: memory and threads change its last digits.
    """
    reference, training = data.reference, data.training
    rows = digest_of_rows(training.inputs)
    module, likelihood = stored_module(reference.module), reference.likelihood
    digest = hashlib.sha256()
    for array in (*module.weights.values(), training.target, training.weight):
        digest.update(b"" if array is None else _bytes_of(array))
    arguments = {
        name: _as_text(value)
        for name, value in parameters_now(estimator).items()
        if not name.startswith("estimator") and name not in ("random_state", "device")
    }
    # A noise that was measured is a sum.
    noise = np.ravel(getattr(estimator, "noise_variance_", ()))
    units = [part.tolist() for part in getattr(likelihood, "units", None) or ()]
    made_of = (
        [type(estimator).__name__, sorted(arguments.items()), data.seed, rows],
        [module.values, module.named, sorted(module.weights)],
        [likelihood.link, likelihood.output, units, reference.device.type, reference.threshold],
        [f"{value:.4g}" for value in noise],
        list(getattr(estimator, "parameter_names_", ())),
        [method.identity for method in getattr(models, "methods", ())],
    )
    digest.update(repr(made_of).encode())
    return digest.hexdigest()


def _as_text(value: Any) -> str:
    """Return an argument as text; functions are known by what they chose."""
    if isinstance(value, (list, tuple, np.ndarray, np.generic)):
        return repr(np.asarray(value).tolist())
    # Those of nested objects are arguments themselves.
    return type(value).__name__ if hasattr(value, "get_params") or callable(value) else repr(value)


def _bytes_of(array: Tensor) -> bytes:
    tensor = array.detach().cpu()
    tensor = tensor if tensor.dtype.itemsize > 2 else tensor.float()
    return f"{array.dtype}{tuple(array.shape)}".encode() + tensor.numpy().tobytes()
