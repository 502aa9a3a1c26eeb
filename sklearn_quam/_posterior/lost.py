"""Rows that a network cannot judge: their uncertainty is infinite, never zero and never NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .._network.inputs.rows import Inputs
from .._network.predictions import Categorical, Prediction
from .accumulate import make_posterior
from .known import KnownRange
from .results import INFINITE, KindOfDiagnostics, RowResults, Uncertainty, merge


def guarded(
    known: KnownRange,
    inputs: Inputs,
    original: Prediction,
    setting: str,
    measure: str,
    diagnostics: KindOfDiagnostics,
    ask: Callable[[Any, Prediction], tuple[RowResults, np.ndarray]],
    predictive: bool = False,
) -> RowResults:
    """Return what models say about rows; rows that cannot be judged are lost, not wrong.

    Lost are rows whose values are beyond those of the training data or whose prediction is not
    finite, which the models are not asked about; and rows whose uncertainty comes out undefined,
    infinite, or as zero although the prediction has no digits left or models were left out.

    Parameters
    ----------
    known : KnownRange
        How far the numbers of the training data go.
    inputs : Inputs
        Rows as the given network takes them.
    original : Prediction
        What it predicts for them.
    setting : {"given", "expected"}
        What models are compared with.
    measure : str
        What uncertainties are measured as.
    diagnostics : type
        The kind of diagnostics.
    ask : callable
        Takes an index of rows and what the given network predicts for them, and returns results
        and which rows all models agree about.
    predictive : bool, default=False
        Whether what all models predict together is among these.

    Returns
    -------
    RowResults
        Of all rows.
    """
    prediction, infinite = known.in_place_of_infinite(original)
    lost = (known.beyond(inputs, prediction) | infinite).cpu().numpy()
    if not lost.any():
        results, agree = ask(slice(None), prediction)
        lost = _cannot_be_told(known, results, agree, prediction, setting, measure)
        kept = ~lost
    elif lost.all():
        return results_of_lost(prediction, measure, diagnostics, predictive)
    else:
        fine = torch.as_tensor(np.flatnonzero(~lost), device=inputs.device)
        results, agree = ask(fine, prediction[fine])
        kept = ~_cannot_be_told(known, results, agree, prediction[fine], setting, measure)
        lost[~lost] = ~kept
    if not lost.any():
        return results
    index = torch.as_tensor(np.flatnonzero(lost), device=inputs.device)
    answers = results_of_lost(prediction[index], measure, diagnostics, predictive)
    return merge(results, kept, answers, lost)


def _cannot_be_told(
    known: KnownRange,
    results: RowResults,
    agree: np.ndarray,
    original: Prediction,
    setting: str,
    measure: str,
) -> np.ndarray:
    """Tell which rows have no number that could be trusted."""
    numbers = [*results.uncertainty, *results.prediction.T, results.variance.sum(axis=1)]
    fine = (np.abs(numbers) < INFINITE).all(axis=0)
    silent = (results.diagnostics.n_diverged > 0) & agree
    safe = known.looks_safe(original, results, agree, setting, measure)
    return ~fine | silent | safe.cpu().numpy()


def results_of_lost(
    prediction: Prediction,
    measure: str,
    diagnostics: KindOfDiagnostics,
    predictive: bool = False,
) -> RowResults:
    """Return an infinite uncertainty of rows, around a prediction that is finite."""
    posterior = make_posterior(prediction, measure, setting="given", standard_error=False)
    posterior.update(prediction[None])
    aleatoric = posterior.uncertainty("given").aleatoric.clip(-INFINITE, INFINITE)
    infinite = np.full_like(aleatoric, INFINITE)
    return RowResults(
        prediction.to_array(),
        Uncertainty(aleatoric, infinite, infinite.copy()),
        diagnostics._of_lost_rows(len(aleatoric)),
        np.full_like(posterior.variance("given"), INFINITE),
        _anything(prediction) if predictive else None,
    )


def _anything(prediction: Prediction) -> np.ndarray:
    """Return a predictive distribution that leaves everything possible, around a prediction."""
    mean = prediction.to_array()
    if isinstance(prediction, Categorical):
        return np.full_like(mean, 1 / mean.shape[1])
    # Next to a mean that is absurd itself, a standard deviation must not be lost in rounding.
    one_component = (np.ones_like(mean), mean, math.sqrt(INFINITE) + np.abs(mean))
    return np.stack(one_component, axis=-1)[:, :, None]
