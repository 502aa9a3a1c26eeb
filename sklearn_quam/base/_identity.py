"""What makes two fitted methods the same: not a number that was computed, but what it is made of.

Memory, threads and the size of batches change the last digits of what is computed, and nothing of
what is asked.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from torch import Tensor

from .._network.stored import stored_module
from ._wrapping import parameters_now

_NETWORKS = ("estimator", "estimators", "random_state", "device")


def identity(estimator: Any, data: Any, known: Any, models: Any) -> str:
    """Return what is the same where network, training data, arguments and seed are.

    Parameters
    ----------
    estimator : BaseUncertaintyEstimator
        The method.
    data : FitData
        The network and its training data.
    known : KnownRange
        Knows the training rows.
    models : Models
        The plausible models, members of an ensemble among them.

    Returns
    -------
    str
        A digest.
    """
    reference, training = data.reference, data.training
    module, likelihood = stored_module(reference.module), reference.likelihood
    digest = hashlib.sha256()
    for array in (*module.weights.values(), training.target, training.weight):
        digest.update(b"" if array is None else _bytes_of(array))
    arguments = {
        name: _told(value)
        for name, value in parameters_now(estimator).items()
        if not name.startswith("estimator") and name not in _NETWORKS
    }
    # A noise that was measured is a sum.
    noise = np.ravel(getattr(estimator, "noise_variance_", ()))
    made_of = (
        [type(estimator).__name__, sorted(arguments.items()), data.seed, known.rows],
        [module.layers, module.values, module.named, sorted(module.weights)],
        [likelihood.link, likelihood.output, reference.device.type, reference.threshold],
        [f"{value:.4g}" for value in noise],
        list(getattr(estimator, "parameter_names_", ())),
        [method.identity for method in getattr(models, "methods", ())],
    )
    digest.update(repr(made_of).encode())
    return digest.hexdigest()


def _told(value: Any) -> str:
    """Return an argument as text; functions are known by what they chose."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    if isinstance(value, (list, tuple, np.ndarray, np.generic)):
        return repr(np.asarray(value).tolist())
    # Those of nested objects are arguments themselves.
    return type(value).__name__ if hasattr(value, "get_params") or callable(value) else repr(value)


def _bytes_of(array: Tensor) -> bytes:
    tensor = array.detach().cpu()
    tensor = tensor if tensor.dtype.itemsize > 2 else tensor.float()
    return f"{array.dtype}{tuple(array.shape)}".encode() + tensor.numpy().tobytes()
