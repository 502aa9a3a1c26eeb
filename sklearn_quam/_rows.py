"""Rows on their way in and out: what a network gets to see, and what was found out about them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils import check_array
from torch import Tensor

from ._likelihood import Gaussian
from ._measures import Diagnostics, Uncertainty


class RowResults(NamedTuple):
    """Everything that was found out about some rows.

    Parameters
    ----------
    prediction : ndarray of shape (n_samples, n_outputs)
        Probabilities, or means.
    uncertainty : Uncertainty
        The measures.
    diagnostics : Diagnostics
        How they came about.
    variance : ndarray of shape (n_samples, n_outputs)
        Total variance of each output of a regressor; a classifier has none, and no columns.
    """

    prediction: np.ndarray
    uncertainty: Uncertainty
    diagnostics: Diagnostics
    variance: np.ndarray


def join(parts: list[RowResults]) -> RowResults:
    """Return the results of consecutive rows as one."""
    prediction, uncertainty, diagnostics, variance = zip(*parts, strict=True)
    return RowResults(
        np.concatenate(prediction),
        Uncertainty(*map(np.concatenate, zip(*uncertainty, strict=True))),
        Diagnostics(*map(np.concatenate, zip(*diagnostics, strict=True))),
        np.concatenate(variance),
    )


def from_tensor(values: Any) -> Any:
    """Return tensors as arrays on the host; leave everything else to the usual validation."""
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def transform(transformers: Any, X: Any) -> np.ndarray:
    """Return what the network gets to see of X."""
    if transformers is None:
        return X
    rows = transformers.transform(X)
    if issparse(rows):
        rows = rows.toarray()
    return check_array(rows, allow_nd=True, input_name="the output of the pipeline's transformers")


def prediction_array(prediction: Any) -> np.ndarray:
    """Return probabilities or means as float64."""
    if isinstance(prediction, Gaussian):
        return prediction.mean.cpu().double().numpy()
    return torch.softmax(prediction.cpu().double(), dim=-1).numpy()
