"""What all methods share: fit, predict, predict_uncertainty.

A method is a subclass with one method of its own, `_fit_models`. It returns a frozen object that
hands the predictions of plausible models to an accumulator.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from .._documented import QUERY, documented
from .._messages import shown
from .._network.inputs.rows import StoredRows
from .._network.inputs.sources import some_rows
from .._network.limits import (
    Limits,
    computing,
    gradients_allowed,
    memory_in_bytes,
    short_passes,
)
from .._network.parameters import LoRA
from .._network.predictions import Prediction
from .._posterior.answering import answer
from .._posterior.fitted import FittedMethod, Models, Question
from .._posterior.progress import Progress
from .._posterior.results import COMPONENTS, RowResults, Uncertainty
from .._posterior.tables import index_of
from .._posterior.training_range import training_range, warn_beyond_range
from ._data import FitData, check_target
from ._doubt import MAX_KNOWN_ROWS, DoubtScale, Tail, needs_known_samples, threshold_of
from ._reading import NetworkEstimator
from ._saving import Saved, identity
from ._wrapping import parameters_now
from .checks.refused import refuse_multiprocessing, refuse_options
from .checks.seen import warn_if_seen
from .checks.warned import warn_about_failed_rows, warn_about_fit


@documented(QUERY)
class BaseUncertaintyEstimator(Saved, NetworkEstimator):
    """The common base of classifiers and regressors."""

    # Whether n_jobs spreads the samples that are predicted.
    _rows_in_parallel: ClassVar[bool] = False
    # Whether the method trains the given network further, or trains others.
    _trains_again: ClassVar[bool] = False
    # Otherwise doubt grows with the risk alone.
    _risk_is_probability: ClassVar[bool] = True
    # Whether the given network predicts in all settings.
    _given_predicts: ClassVar[bool] = False
    # Columns of diagnostics, besides those of all methods.
    _diagnostics: ClassVar[tuple[str, ...]] = ("standard_error",)
    _live_parameters = ("setting", "measure", "memory_limit", "n_jobs", "verbose")
    _parameter_constraints: ClassVar[dict] = {
        **NetworkEstimator._parameter_constraints,
        "setting": [StrOptions({"given", "expected", "pairwise"})],
        "verbose": ["verbose", None],
    }
    # Of methods that change weights of the network.
    _weight_constraints: ClassVar[dict] = {
        "parameters": [str, Interval(Integral, 1, None, closed="left"), list, callable, LoRA],
        "memory_limit": [Interval(Real, 0, None, closed="neither"), str, None],
    }

    # What classifiers and regressors fill in: labels or values, given probabilities or means; how
    # far targets are from the average prediction; the risk of each prediction.
    _decide: Callable[[np.ndarray], np.ndarray]
    _conformal_scores: Callable[[Any, Any], np.ndarray]
    _risk: Callable[[RowResults], np.ndarray]

    setting: str
    verbose: int | None
    _fitted: FittedMethod[Any]
    memory_limit: Any = None  # methods with few models have no such argument

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        **fit_params: Any,
    ) -> Any:
        """Take over the network and its training data; train the network if it is not fitted.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data: of the given network, or to train it on.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Labels of any kind, or the values of a regressor.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples in the loss on the training data. They are scaled to mean one:
            only ratios count. An estimator that is trained gets them, too.
        X_val : array-like of shape (n_val, ...), default=None
            Held-out samples, which the network was not trained on. They calibrate ``predict_set``
            and, in ``setting="expected"``, ``predict_proba``, or ``predict_interval`` of a
            regressor. Where a regressor has to measure the noise variance, a random half of them
            does that, and the other half calibrates.
        y_val : array-like of shape (n_val,) or (n_val, n_outputs), default=None
            Their targets.
        **fit_params : dict
            Further arguments for the ``fit`` of the wrapped estimator.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        if (X_val is None) != (y_val is None):
            raise ValueError("X_val and y_val go together: pass both or neither.")
        if y_val is not None:
            y_val = check_target(self._task, y_val, "y_val")
        with gradients_allowed(), short_passes(self.memory_limit):
            data = self._given(X, y, sample_weight, fit_params, X_val, y_val)
            known = training_range(data.training, data.original)
            if not self._is_member:
                warn_about_fit(self, data, known)
            with computing():
                models = self._fit_models(data)
                own = identity(self, data, models)
                self._fitted = FittedMethod(data.reference, models, known, self._diagnostics, own)
        self._fitted_parameters = parameters_now(self)
        if X_val is not None and not self._is_member:
            try:
                self._calibrate(X_val, y_val)
            finally:
                if not hasattr(self, "_known_rows"):
                    del self._fitted  # a fit that fails leaves nothing that answers
        return self

    def _fit_models(self, fit: FitData) -> Models:
        """Return the plausible models, a frozen object: a method fills this in."""
        raise NotImplementedError

    def _limits(self, fit: FitData) -> Limits:
        """Return the memory that fitting may use."""
        device = fit.reference.device
        return Limits(memory_in_bytes(self.memory_limit, device), device)

    def _calibrate(self, X_val: Any, y_val: Any) -> None:
        """Keep conformal scores and uncertainties of held-out samples."""
        predictive = self._predictive(X_val)
        if len(predictive) != len(y_val):
            raise ValueError(f"X_val has {len(predictive)} rows, but y_val has {len(y_val)}.")
        self.conformal_scores_ = np.sort(self._conformal_scores(predictive, y_val), axis=0)
        self._keep_known_rows(X_val, len(y_val))

    def _predictive(self, X: Any) -> Any:
        """Return the average prediction of all plausible models."""
        return self._results(X, predictive=True).predictive

    def _question(self, inputs: StoredRows) -> Question:
        """Return what is asked, by the arguments that may change after `fit`."""
        device, n_workers = self._fitted.reference.device, 1
        if self._rows_in_parallel:
            n_workers = min(effective_n_jobs(getattr(self, "n_jobs", None)), len(inputs))
            refuse_multiprocessing(n_workers)
        limits = Limits(memory_in_bytes(self.memory_limit, device), device, n_workers)
        measure = getattr(self, "measure", "entropy")
        return Question(self.setting, measure, limits, given_predicts=self._given_predicts)

    @computing()
    def _results(
        self,
        X: Any,
        errors: str = "warn",
        checkpoint: str | os.PathLike | None = None,
        predictive: bool = False,
        as_known: bool = False,
    ) -> RowResults:
        """Answer for all samples; ``as_known`` asks as `fit` asked about held-out ones."""
        refuse_options(errors, checkpoint)
        inputs = self._check_inputs(X)
        question = replace(self._question(inputs), predictive=predictive)
        if as_known:
            setting, measure = self._doubt_question
            question = replace(question, setting=setting, measure=measure)
        asked = self._rows_asked(X, inputs)
        how: Any = {"errors": errors, "checkpoint": checkpoint}
        progress = Progress(len(inputs), type(self).__name__, self.verbose)
        with short_passes(self.memory_limit), progress:
            results = answer(self._fitted, asked, question, progress=progress, **how)
        self._warn_about(results)
        index = index_of(X)
        uncertainty = self._with_doubt(results, question.setting, question.measure)
        return results._replace(
            prediction=self._forecast(results.prediction),
            uncertainty=uncertainty._labelled(index),
            diagnostics=results.diagnostics._labelled(index),
        )

    def _rows_asked(self, X: Any, inputs: StoredRows) -> Any:  # noqa: ARG002
        """Return samples as the fitted method takes them."""
        return inputs

    def _warn_about(self, results: RowResults) -> None:
        diagnostics = results.diagnostics
        warn_about_failed_rows(diagnostics.error, diagnostics._failed)
        warn_beyond_range(results.uncertainty.beyond_range & ~diagnostics._failed)

    def _predict_outputs(self, X: Any) -> np.ndarray:
        """Return probabilities or means; those of the given network need no other models."""
        if self.setting == "given" or self._given_predicts:
            return self._forecast(self._predict_given(X)[0].to_array())
        return self._results(X).prediction

    def _forecast(self, outputs: np.ndarray) -> np.ndarray:
        """Return what is predicted, given the output of the network or the average of models."""
        return outputs

    @computing()
    def _predict_given(self, X: Any) -> tuple[Prediction, np.ndarray]:
        """Return what the given network predicts, and which samples are beyond the range."""
        inputs = self._check_inputs(X)
        prediction, beyond = self._fitted.predict(inputs)
        warn_beyond_range(beyond)
        return prediction, beyond

    def predict(self, X: Any, *, return_uncertainty: bool = False) -> Any:
        """Predict the target of each sample.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Labels or values: the given model's in ``setting="given"``, those of the average
            prediction of all plausible models in ``setting="expected"``.
        uncertainty : Uncertainty
            Only with ``return_uncertainty=True``.
        """
        if not return_uncertainty:
            return self._decide(self._predict_outputs(X))
        results = self._results(X)
        return self._decide(results.prediction), results.uncertainty

    def predict_uncertainty(
        self,
        X: Any,
        *,
        return_diagnostics: bool = False,
        errors: str = "warn",
        checkpoint: str | os.PathLike | None = None,
    ) -> Any:
        """Predict how far the prediction of each sample can be trusted.

        Parameters
        ----------
        return_diagnostics : bool, default=False
            Whether to return details of the estimate, too.
        errors : {"warn", "raise"}, default="warn"
            What to do if the network raises an error for a sample. "warn" gives it an infinite
            epistemic uncertainty and names it in a warning; "raise" raises the error.
        checkpoint : str or path, default=None
            Folder for finished samples. After an interruption, the same call with the same folder
            continues and gives the same result; several processes may share it.

        Returns
        -------
        uncertainty : Uncertainty
            Aleatoric, epistemic and total uncertainty: a table with these columns, which keeps the
            index of a frame.
        diagnostics : Diagnostics
            Only with ``return_diagnostics=True``.
        """
        results = self._results(X, errors, checkpoint)
        if return_diagnostics:
            return results.uncertainty, results.diagnostics
        return results.uncertainty

    def score_samples(self, X: Any) -> np.ndarray:
        """Return minus the epistemic uncertainty: the higher, the more normal.

        Returns
        -------
        ndarray of shape (n_samples,)
            Scores, in scikit-learn's convention for outlier detectors.
        """
        return -self._results(X).uncertainty.epistemic

    def _most_known_rows(self) -> int:
        """Return the largest number of held-out samples that measure doubt."""
        return MAX_KNOWN_ROWS

    def _keep_known_rows(self, X_val: Any, n_rows: int) -> None:
        """Keep risk, aleatoric and epistemic uncertainty of held-out samples."""
        some = np.random.default_rng(0).permutation(n_rows)[: self._most_known_rows()]
        results = self._results(some_rows(X_val, np.sort(some)))
        self._doubt_question = [self.setting, getattr(self, "measure", "entropy")]
        parts = (results.uncertainty.aleatoric, results.uncertainty.epistemic)
        self._known_rows = np.column_stack([self._risk(results), *parts])

    def _with_doubt(self, results: RowResults, *question: str) -> Uncertainty:
        """Return uncertainties, with doubt if known samples were asked the same question."""
        uncertainty = results.uncertainty
        if not hasattr(self, "_known_rows") or [*question] != self._doubt_question:
            return uncertainty
        return replace(uncertainty, doubt=self._share(self._risk(results), uncertainty.epistemic))

    def _share(self, risk: np.ndarray, epistemic: np.ndarray) -> np.ndarray:
        known_risk, _, known_epistemic = self._known_rows.T
        if self._risk_is_probability:
            return DoubtScale.fit(known_risk, known_epistemic).share(risk, epistemic)
        return Tail.fit(known_risk).share(risk)

    def _check_known_rows(self) -> None:
        check_is_fitted(self)
        if not hasattr(self, "_known_rows"):
            raise needs_known_samples("X_val and y_val")

    def predict_doubt(self, X: Any) -> np.ndarray:
        """Predict doubt: one number from 0 to 1 for mistakes and unknown samples together.

        It is the share of known samples that are less doubtful: of new samples like the known ones,
        5 % have a doubt above 0.95. A classifier's doubt grows with the risk of a mistake, 1 - max
        p, and with the epistemic uncertainty where that is larger than for two thirds of known
        samples. A regressor's doubt grows with the standard deviation of its prediction.

        Returns
        -------
        ndarray of shape (n_samples,)
            From 0 to 1. Known samples are up to 1000 of the ``X_val`` that was passed to ``fit``,
            drawn at random. ``setting`` and ``measure`` are those of ``fit``.
        """
        self._check_known_rows()
        return self._results(X, as_known=True).uncertainty._part("doubt")

    def threshold(self, coverage: float = 0.95, *, component: str = "doubt") -> float:
        """Return a threshold that a share of known samples does not exceed.

        Parameters
        ----------
        coverage : float, default=0.95
            The share: a new sample like the known ones is at or below the threshold with a
            probability of at least this. A share of c takes at least c / (1 - c) known samples.
        component : {"aleatoric", "epistemic", "total", "doubt"}, default="doubt"
            Which uncertainty, in the ``setting`` and ``measure`` at the time of ``fit``.

        Returns
        -------
        float
            The threshold. Known samples are those of the ``X_val`` that was passed to ``fit``.
        """
        self._check_known_rows()
        risk, aleatoric, epistemic = self._known_rows.T
        values = {"aleatoric": aleatoric, "epistemic": epistemic, "total": aleatoric + epistemic}
        values["doubt"] = self._share(risk, epistemic)
        if component not in values:
            raise ValueError(f"component must be one of {COMPONENTS}; got {shown(component)}.")
        return threshold_of(values[component], coverage)


@documented(QUERY)
class ScoresUnseen:
    """Scores like scikit-learn's mixin behind it, and warns about scores of training data."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the mean accuracy, or R^2 of a regressor, best on held-out samples.

        Parameters
        ----------
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples.

        Returns
        -------
        float
            The score of ``predict(X)``. A `SeenRowsWarning` follows if a given network is scored on
            samples that were passed to ``fit``.
        """
        found: float = super().score(X, y, sample_weight)  # type: ignore[misc]
        warn_if_seen(self, X)
        return found
