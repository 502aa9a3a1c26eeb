"""Rows that a network cannot judge: their uncertainty is infinite, never zero and never NaN."""

from __future__ import annotations

import math

import numpy as np

from .._network.predictions import Categorical, Prediction
from .accumulate import make_posterior
from .known import KnownRange
from .results import INFINITE, KindOfDiagnostics, RowResults, Uncertainty


def cannot_be_told(
    known: KnownRange,
    results: RowResults,
    agree: np.ndarray,
    original: Prediction,
    setting: str,
    measure: str,
) -> np.ndarray:
    """Tell which rows have no number that could be trusted.

    Their uncertainty comes out undefined, infinite, or as zero although the prediction has no
    digits left or models were left out.

    Parameters
    ----------
    known : KnownRange
        How far the numbers of the training data go.
    results : RowResults
        What models say about rows.
    agree : ndarray of shape (n_rows,), dtype bool
        Which rows all models agree about.
    original : Prediction
        What the given network predicts for the rows.
    setting : {"given", "expected", "pairwise"}
        What models are compared with.
    measure : str
        What uncertainties are measured as.

    Returns
    -------
    ndarray of shape (n_rows,)
        Of bools.
    """
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
