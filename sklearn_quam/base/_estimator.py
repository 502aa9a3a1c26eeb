"""What all methods share: fit, predict, predict_uncertainty.

A method is a subclass that fills in one hook, `_fit_models`: return a frozen object that hands the
plausible models for some rows to an accumulator.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from joblib import effective_n_jobs
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._network.adapters import Network, check_kind, is_pretrained, split_pipeline
from .._network.inputs.items import StoredDataset
from .._network.inputs.rows import StoredRows
from .._network.inputs.transformed import transformed
from .._network.limits import (
    Limits,
    computing,
    gradients_allowed,
    memory_in_bytes,
    short_passes,
)
from .._network.predictions import Prediction
from .._network.reference import ReferenceModel, TrainingSet, build_reference
from .._network.training import default_network, train
from .._posterior.answering import answer
from .._posterior.fitted import FittedMethod, Models, Question
from .._posterior.progress import Progress
from .._posterior.results import Diagnostics, KindOfDiagnostics, RowResults
from .._posterior.tables import index_of
from .._posterior.training_range import training_range, warn_beyond_range
from .._typing import Device, RandomState
from ._data import FitData, check_rows, check_training_data, check_weight
from ._doubt import TellsDoubt
from ._saving import Saved, identity
from ._wrapping import WrapsNetwork, changed_parameters, parameters_now
from .checks.agreement import check_agreement
from .checks.refused import (
    refuse_infinite_loss,
    refuse_multiprocessing,
    refuse_options,
    refuse_targets,
)
from .checks.seen import passed_rows
from .checks.warned import warn_about_failed_rows, warn_about_fit

# What is known of held-out rows, if fit has got any.
OF_HELD_OUT_ROWS = ("conformal_scores_", "conformal_labels_", "_known_rows", "_doubt_question")


class NetworkEstimator(WrapsNetwork):
    """Reads a network and its data; shared by methods and detectors, not to be used itself."""

    _task: ClassVar[str]
    # Members of an ensemble leave it to the ensemble to say what is odd, and to calibrate.
    _is_member = False
    # Whether transformers are those of the default network: rows are checked as without them.
    _scales_inputs = False
    # Constructor arguments that say how to answer, so that they may be changed at any time. All
    # others say what is fitted.
    _live_parameters: ClassVar[tuple[str, ...]] = ()
    _parameter_constraints: ClassVar[dict] = {
        "estimator": "no_validation",
        "output": [str, Integral, None],
        "device": [str, torch.device, None],
        "random_state": ["random_state"],
    }

    estimator: Any
    link: str | None
    output: str | int | None
    device: Device
    random_state: RandomState

    # -- fitting ---------------------------------------------------------------------------

    def _given(self, X: Any, y: Any, sample_weight: Any, fit_params: dict, **more: Any) -> FitData:
        """Validate, train if need be, and return the network with its training data."""
        # What was fitted before must not answer for what fails now.
        for name in ("_fitted", *OF_HELD_OUT_ROWS):
            self.__dict__.pop(name, None)
        passed, brings_labels = {"X": X, **more}, y is None
        refuse_targets(y, self._task)
        estimator = self._wrapped()
        # Before X is checked, which may be meant for what is inside of a wrapper.
        check_kind(split_pipeline(estimator)[1], self._task)
        if not self._is_member:
            self._scales_inputs = estimator is not self.estimator and not is_pretrained(estimator)
        X, y, source = check_training_data(self, X, y, estimator)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        if sample_weight is not None:
            sample_weight = check_weight(sample_weight, y)
        routed = self._route(estimator, sample_weight, fit_params)
        self._passed_rows, classes = passed_rows(self, estimator), None
        if not is_pretrained(estimator):
            # Only a random_state that was asked for may steer the user's estimator.
            own_seed = None if self.random_state is None else seed
            estimator, classes = train(
                estimator, X, y, task=self._task, seed=own_seed, fit_params=routed
            )
        self.estimator_ = estimator
        rows = transformed(split_pipeline(estimator)[0], X, source)
        reference, network, n_outputs = build_reference(
            estimator,
            rows,
            task=self._task,
            link=self.link,
            output=self.output,
            device=self.device,
        )
        if classes is not None:
            network = replace(network, classes=classes, labels_are_indices=False)
        elif brings_labels and network.labels_are_indices and isinstance(source, StoredDataset):
            names = source.class_names()
            network = network if names is None else replace(network, classes=names)
        inputs = reference.inputs(rows)
        if self._passed_rows is not None and not self._is_member:
            self._passed_rows.note(inputs)
        target = self._encode_target(y, network, n_outputs, reference).to(reference.device)
        weight = None
        if sample_weight is not None:
            scaled = torch.as_tensor(sample_weight / sample_weight.mean())
            weight = scaled.to(inputs.device, reference.dtype)
        check_agreement(estimator, reference, inputs)
        original: Any = reference.predict(inputs)
        reference, original = self._complete(reference, original, target, weight, **more)
        losses = reference.likelihood.negative_log_likelihood(original, target)
        training = TrainingSet(inputs, (), target, weight, losses)
        self.reference_loss_ = float(training.weighted(losses, slice(None)).mean())
        refuse_infinite_loss(self.reference_loss_)
        passed |= {"X_checked": X, "y_checked": y, "fit_params": fit_params}
        passed["sample_weight"] = sample_weight
        return FitData(reference, training, original, seed, passed)

    def _wrapped(self) -> Any:
        """Return the estimator that the network is taken from."""
        return default_network(self._task) if self.estimator is None else self.estimator

    def _encode_target(
        self, y: np.ndarray, network: Network, n_outputs: int, reference: ReferenceModel
    ) -> Tensor:
        raise NotImplementedError

    def _complete(
        self,
        reference: ReferenceModel,
        original: Prediction,
        target: Tensor,  # noqa: ARG002
        weight: Tensor | None,  # noqa: ARG002
        X_val: Any = None,  # noqa: ARG002
        y_val: Any = None,  # noqa: ARG002
    ) -> tuple[ReferenceModel, Prediction]:
        """Return the network, and its predictions, with what only the training data can tell."""
        return reference, original

    # -- predicting ------------------------------------------------------------------------

    def _check_inputs(self, X: Any) -> StoredRows:
        """Return validated rows as the network takes them."""
        check_is_fitted(self)
        self._validate_params()
        self._refuse_changed_parameters()
        return self._check_rows(X, self._fitted.reference)

    def _check_rows(self, X: Any, reference: ReferenceModel) -> StoredRows:
        return check_rows(self, X, reference)

    def _refuse_changed_parameters(self) -> None:
        """Refuse to answer with other arguments than were fitted: they would have no effect."""
        changed = changed_parameters(self._fitted_parameters, parameters_now(self))
        if changed:
            live = ", ".join(sorted(self._live_names()))
            raise ValueError(
                f"{', '.join(changed)} of this {type(self).__name__} changed after fit, which has "
                "no effect on what was fitted. Call fit again, or set the old value back."
                + (f" Only {live} may be changed at any time." if live else "")
            )

    def _live_names(self) -> set[str]:
        return set(self._live_parameters) & set(self.get_params(deep=False))

    # -- scikit-learn ----------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        for name in ("_families", "_passed_rows"):
            state.pop(name, None)
        return state


class BaseUncertaintyEstimator(TellsDoubt, Saved, NetworkEstimator):
    """Shared by classifiers and regressors; not to be used itself."""

    # Whether n_jobs spreads the rows that are to be predicted.
    _rows_in_parallel: ClassVar[bool] = False
    # Whether the method takes more than the given network: others, or further training of it.
    _trains_again: ClassVar[bool] = False
    # The argument that says how many models predict each row.
    _counts_models: ClassVar[str | None] = None
    # Whether the given network predicts in both settings.
    _given_predicts: ClassVar[bool] = False
    # What diagnostics the method has.
    _diagnostics: ClassVar[KindOfDiagnostics] = Diagnostics
    _live_parameters: ClassVar[tuple[str, ...]] = (
        "setting",
        "measure",
        "memory_limit",
        "n_jobs",
        "verbose",
    )
    _parameter_constraints: ClassVar[dict] = {
        **NetworkEstimator._parameter_constraints,
        "setting": [StrOptions({"given", "expected", "pairwise"})],
        "verbose": ["verbose", None],
    }

    setting: str
    verbose: int | None
    memory_limit: Any = None  # methods whose models are few have no such argument

    def _fit_models(self, fit: FitData) -> Models:
        """Return the plausible models, a frozen object: the one hook a method fills in.

        Parameters
        ----------
        fit : FitData
            The network and its training data.
        """
        raise NotImplementedError

    @gradients_allowed()
    def _fit(self, X: Any, y: Any, sample_weight: Any, fit_params: dict, **more: Any) -> None:
        """Read network and data, and build the object that answers for rows."""
        with short_passes(self.memory_limit):
            data = self._given(X, y, sample_weight, fit_params, **more)
            known = training_range(data.training, data.original)
            if not self._is_member:
                warn_about_fit(self, data, known)
            with computing():
                models = self._fit_models(data)
                own = identity(self, data, models)
                fitted = FittedMethod(data.reference, models, known, self._diagnostics, own)
                self._fitted = self._sized(fitted, data)
        self._fitted_parameters = parameters_now(self)
        if not self._is_member and more.get("X_val") is not None:
            self._calibrate(more["X_val"], more["y_val"])

    def _calibrate(self, X_val: Any, y_val: Any) -> None:
        """Keep how far off the targets of held-out rows are."""
        with ExitStack() as failed:
            # A fit that fails leaves nothing that answers.
            failed.callback(delattr, self, "_fitted")
            predictive = self._predictive(X_val)
            if len(predictive) != len(y_val):
                raise ValueError(f"X_val has {len(predictive)} rows, but y_val has {len(y_val)}.")
            self.conformal_scores_ = np.sort(self._conformal_scores(predictive, y_val), axis=0)
            self._keep_known_rows(X_val, len(y_val))
            failed.pop_all()

    def _predictive(self, X: Any) -> Any:
        """Return what all plausible models predict together, as `RowResults` has it."""
        return self._results(X, predictive=True).predictive

    def _conformal_scores(self, predictive: Any, y_val: Any) -> np.ndarray:
        """Return how far off targets are, by what all plausible models predict together."""
        raise NotImplementedError

    def _sized(self, fitted: FittedMethod, data: FitData) -> FittedMethod:  # noqa: ARG002
        """Return what was fitted, knowing how much memory it needs."""
        return fitted

    def _question(self, inputs: StoredRows) -> Question:
        """Return what is asked about rows, by the arguments that may change at any time."""
        device, n_workers = self._fitted.reference.device, 1
        if self._rows_in_parallel:
            n_workers = min(effective_n_jobs(getattr(self, "n_jobs", None)), len(inputs))
            refuse_multiprocessing(n_workers)
        limits = Limits(memory_in_bytes(self.memory_limit, device), device, n_workers)
        measure, given = getattr(self, "measure", "entropy"), self._given_predicts
        return Question(self.setting, measure, limits, given_predicts=given)

    @computing()
    def _results(
        self,
        X: Any,
        errors: str = "warn",
        checkpoint: str | os.PathLike | None = None,
        predictive: bool = False,
        as_known: bool = False,
    ) -> RowResults:
        """Run the method on all rows, some at a time; ``as_known`` asks as of the known ones."""
        refuse_options(errors, checkpoint)
        inputs = self._check_inputs(X)
        question = replace(self._question(inputs), predictive=predictive)
        if as_known:
            setting, measure = self._doubt_question
            question = replace(question, setting=setting, measure=measure)
        asked = self._rows_asked(X, inputs)
        options: Any = {"errors": errors, "checkpoint": checkpoint}
        with short_passes(self.memory_limit), self._progress(len(inputs)) as progress:
            results = answer(self._fitted, asked, question, progress=progress, **options)
        index = index_of(X)
        uncertainty = self._with_doubt(results, question.setting, question.measure)
        return self._warned(
            results._replace(
                prediction=self._forecast(results.prediction),
                uncertainty=uncertainty._labelled(index),
                diagnostics=results.diagnostics._labelled(index),
            )
        )

    def _rows_asked(self, X: Any, inputs: StoredRows) -> Any:  # noqa: ARG002
        """Return rows as the fitted method takes them."""
        return inputs

    def _warned(self, results: RowResults) -> RowResults:
        """Return results, with a warning if they say something that may go unseen."""
        diagnostics = results.diagnostics
        warn_about_failed_rows(diagnostics.error, diagnostics._failed)
        warn_beyond_range(results.uncertainty.beyond_range & ~diagnostics._failed)
        return results

    def _progress(self, n_rows: int) -> Progress:
        return Progress(n_rows, type(self).__name__, self.verbose, remedies=self._remedies())

    def _remedies(self) -> tuple[str, ...]:
        """Return what would make predictions quicker, the cheapest first."""
        found = []
        if self._counts_models is not None:
            number = getattr(self, self._counts_models)
            found.append(f"fit with a smaller {self._counts_models}, now {number}: fewer models")
        if getattr(self, "parameters", "last_layer") != "last_layer":
            found.append("parameters='last_layer' runs the rest of the network once for all models")
        if self._fitted.reference.device.type == "cpu" and torch.cuda.is_available():
            found.append("device='cuda' runs on an accelerator")
        first_look = "ask only for rows that a detector of sklearn_quam.ood, or the entropy, doubts"
        return (*found, first_look)[:3]

    def _predict_outputs(self, X: Any) -> np.ndarray:
        """Return probabilities or means of the setting; the given model's need no sampling."""
        if self.setting == "given" or self._given_predicts:
            return self._forecast(self._predict_reference(X).to_array())
        return self._results(X).prediction

    def _forecast(self, outputs: np.ndarray) -> np.ndarray:
        """Return what is predicted, given what the network or the average of models says."""
        return outputs

    @computing()
    def _predict_reference(self, X: Any) -> Prediction:
        """Return what the given network alone predicts."""
        inputs = self._check_inputs(X)
        prediction, beyond = self._fitted.predict(inputs)
        warn_beyond_range(beyond)
        return prediction

    def predict(self, X: Any, *, return_uncertainty: bool = False) -> Any:
        """Predict the target of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.
        return_uncertainty : bool, default=False
            Whether to return the uncertainty, too.

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

    def _decide(self, outputs: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def predict_uncertainty(
        self,
        X: Any,
        *,
        return_diagnostics: bool = False,
        errors: str = "warn",
        checkpoint: str | os.PathLike | None = None,
    ) -> Any:
        """Tell how far the prediction of each row can be trusted.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.
        return_diagnostics : bool, default=False
            Whether to return how the estimate came about, too.
        errors : {"warn", "raise"}, default="warn"
            What happens where the network raises an error for a row. "warn" answers such rows as
            unknown, with an infinite epistemic uncertainty, and names them in a warning; "raise"
            answers nothing.
        checkpoint : str or path, default=None
            A folder to keep finished rows in. If the process is killed, the same call with the
            same folder goes on where it was and gives the same result; several processes may
            share it.

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

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.

        Returns
        -------
        ndarray of shape (n_samples,)
            Scores, in scikit-learn's convention for outlier detectors.
        """
        return -self._results(X).uncertainty.epistemic
