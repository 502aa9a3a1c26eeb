"""What all methods share: fit, predict, predict_uncertainty.

A method is a subclass that fills in one hook, `_sample_models`: hand sampled models with their
weights for these rows to the accumulator.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from joblib import effective_n_jobs
from sklearn import get_config
from sklearn.base import BaseEstimator, clone
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
    validate_data,
)
from torch import Tensor
from tqdm.auto import tqdm

from ._adapters import Network, is_given, is_torch, split_pipeline
from ._contexts import computing, gradients_allowed
from ._measures import Diagnostics
from ._parallel import results_of_workers
from ._posterior import CategoricalPosterior, GaussianPosterior
from ._reference import batches, build_reference
from ._rows import RowResults, from_tensor, join, prediction_array, transform
from ._training import default_network, train

# What scikit-learn's clone carries over besides the constructor's arguments.
_CLONED_ATTRIBUTES = ("_metadata_request", "_sklearn_output_config", "_skl_callbacks")


class BaseUncertaintyEstimator(BaseEstimator):
    """Shared by classifiers and regressors; not to be used itself."""

    _task: ClassVar[str]
    # Whether n_jobs spreads the rows that are to be predicted.
    _rows_in_parallel: ClassVar[bool] = False
    # Attributes that can be made again from the fitted state: they are not stored.
    _made_again: ClassVar[tuple[str, ...]] = ()
    _parameter_constraints: ClassVar[dict] = {
        "estimator": "no_validation",
        "setting": [StrOptions({"given", "expected"})],
        "device": [str, torch.device, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    estimator: Any
    link: str | None
    setting: str
    device: str | torch.device | None
    n_jobs: int | None
    random_state: Any
    verbose: int

    # -- fitting ---------------------------------------------------------------------------

    @gradients_allowed()
    def _fit(self, X: Any, y: Any, sample_weight: Any, fit_params: dict) -> Network:
        """Validate, train if need be, and keep the reference model and the training data."""
        estimator = self._wrapped()
        original = X
        X, y = self._check_training_data(X, y, estimator)
        self._seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
            if not sample_weight.any():
                raise ValueError("sample_weight is zero for every row.")
        routed = self._route(estimator, sample_weight, fit_params)
        classes = None
        if not is_given(estimator):
            # Only a random_state that was asked for may steer the user's estimator.
            seed = None if self.random_state is None else self._seed
            estimator, classes = train(
                estimator, X, y, task=self._task, seed=seed, fit_params=routed
            )
        self.estimator_ = estimator
        rows = transform(split_pipeline(estimator)[0], X)
        self._reference, network, n_outputs = build_reference(
            estimator, rows, task=self._task, link=self.link, device=self.device
        )
        if classes is not None:
            network = replace(network, classes=classes, labels_are_indices=False)
        inputs = self._reference.inputs(rows)
        target = self._encode_target(y, network, n_outputs).to(self._reference.device)
        self._keep_training_data(inputs, target, sample_weight)
        self._fit_more(original, X, y, sample_weight, fit_params)
        return network

    def _wrapped(self) -> Any:
        """Return the estimator that the network is taken from."""
        return default_network(self._task) if self.estimator is None else self.estimator

    def _fit_more(
        self, original: Any, X: Any, y: Any, sample_weight: Any, fit_params: dict
    ) -> None:
        """Take over the data as the user passed it and validated; for several networks."""

    def _check_training_data(self, X: Any, y: Any, estimator: Any) -> tuple[Any, np.ndarray]:
        X, y = from_tensor(X), from_tensor(y)
        regression = self._task == "regressor"
        if split_pipeline(estimator)[0] is None:
            X, y = validate_data(
                self,
                X,
                y,
                allow_nd=is_torch(estimator),
                multi_output=regression,
                y_numeric=regression,
            )
        else:
            # The transformers know best what they accept: text, missing values, categories.
            validate_data(self, X, y, skip_check_array=True)
            check_consistent_length(X, y)
            if regression:
                y = check_array(y, ensure_2d=False, input_name="y")
            else:
                y = column_or_1d(y, warn=True)
        if not regression:
            check_classification_targets(y)
        return X, y

    def _route(self, estimator: Any, sample_weight: Any, fit_params: dict) -> dict:
        """Return what the wrapped estimator's fit is to be called with."""
        if is_given(estimator):
            if fit_params:
                raise TypeError(
                    f"fit got {sorted(fit_params)}, but the network is already fitted and is not "
                    "trained again. Pass an unfitted estimator to have it trained."
                )
            return {}
        if get_config()["enable_metadata_routing"]:
            if self.estimator is None:
                return fit_params | (
                    {} if sample_weight is None else {"sample_weight": sample_weight}
                )
            return process_routing(
                self, "fit", sample_weight=sample_weight, **fit_params
            ).estimator.fit
        if sample_weight is None:
            return fit_params
        final = split_pipeline(estimator)[1]
        if not has_fit_parameter(final, "sample_weight"):
            raise ValueError(
                f"{type(final).__name__}.fit takes no sample_weight. Train it yourself and pass it "
                "fitted; the weights then count in the loss on the training data only."
            )
        prefix, step = "", estimator
        while isinstance(step, Pipeline):
            prefix, step = f"{prefix}{step.steps[-1][0]}__", step[-1]
        return {**fit_params, f"{prefix}sample_weight": sample_weight}

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the routing of metadata: ``sample_weight`` may go to the wrapped estimator too.

        Returns
        -------
        MetadataRouter
            The router.
        """
        router = MetadataRouter(owner=self).add_self_request(self)
        if hasattr(self.estimator, "get_metadata_routing") and not is_given(self.estimator):
            mapping = MethodMapping().add(caller="fit", callee="fit")
            router.add(estimator=self.estimator, method_mapping=mapping)
        return router

    def _keep_training_data(self, inputs: Tensor, target: Tensor, sample_weight: Any) -> None:
        """Remember what the network was, or is now, trained on."""
        self._inputs, self._target = inputs, target
        if sample_weight is None:
            self._sample_weight = None
        else:
            weight = torch.as_tensor(sample_weight / sample_weight.mean())
            self._sample_weight = weight.to(inputs.device, self._reference.dtype)

    def _measure_reference_loss(self) -> None:
        prediction = self._reference.predict(self._inputs)
        losses = self._reference.likelihood.negative_log_likelihood(prediction, self._target)
        self._given_losses = losses
        if self._sample_weight is not None:
            losses = losses * self._sample_weight
        self.reference_loss_ = float(losses.mean())
        if not np.isfinite(self.reference_loss_):
            raise ValueError(
                f"The network's loss on the training data is {self.reference_loss_}. Check its "
                "weights, and whether X is scaled and y encoded as they were for training."
            )

    def _finish_fit(self) -> None:
        """Prepare whatever a method needs besides the reference model; a second, optional hook."""

    def _encode_target(self, y: np.ndarray, network: Network, n_outputs: int) -> Tensor:
        raise NotImplementedError

    # -- predicting ------------------------------------------------------------------------

    def _sample_models(
        self,
        inputs: Tensor,
        given: Any,
        posterior: CategoricalPosterior | GaussianPosterior,
    ) -> dict[str, np.ndarray]:
        """Hand sampled models to the accumulator: the one hook a method fills in.

        Parameters
        ----------
        inputs : Tensor of shape (n_samples, ...)
            Rows as the network takes them.
        given : Tensor or Gaussian
            The given network's prediction for them.
        posterior : CategoricalPosterior or GaussianPosterior
            Its ``update`` takes predictions (n_models, n_samples, n_outputs) and log weights
            (n_models, n_samples), as often as needed.

        Returns
        -------
        dict of ndarray
            Columns of `Diagnostics` that the method knows.
        """
        raise NotImplementedError

    def _chunks(self, inputs: Tensor) -> Iterator[slice]:
        """Yield the rows that are worked on together."""
        return batches(inputs)

    def _posterior(self, given: Any) -> CategoricalPosterior | GaussianPosterior:
        raise NotImplementedError

    def _check_inputs(self, X: Any) -> Tensor:
        """Return validated rows as the network takes them."""
        check_is_fitted(self)
        X = from_tensor(X)
        if self._reference.transformers is None:
            X = validate_data(self, X, reset=False, allow_nd=is_torch(self.estimator_))
        else:
            validate_data(self, X, reset=False, skip_check_array=True)
        return self._reference.inputs(transform(self._reference.transformers, X))

    @computing()
    def _results(self, X: Any) -> RowResults:
        """Run the method on all rows, some at a time."""
        inputs = self._check_inputs(X)
        self._n_workers = 1
        if self._rows_in_parallel:
            self._n_workers = min(effective_n_jobs(self.n_jobs), len(inputs))
        chunks = list(self._chunks(inputs))
        parts = []
        with self._progress_bar(len(inputs)) as bar:
            for done in self._results_of_chunks(inputs, chunks):
                parts += done
                bar.update(sum(len(part.prediction) for part in done))
        return join(parts)

    def _progress_bar(self, n_rows: int) -> tqdm:
        return tqdm(total=n_rows, unit="point", disable=not self.verbose, desc=type(self).__name__)

    def _results_of_chunks(self, inputs: Tensor, chunks: list[slice]) -> Iterator[list[RowResults]]:
        if self._n_workers > 1 and len(chunks) > 1:
            yield from results_of_workers(self, inputs, chunks, self._n_workers)
        else:
            for rows in chunks:
                yield [self._results_within_memory(inputs[rows])]

    def _results_within_memory(self, inputs: Tensor) -> RowResults:
        """Work on rows together, or on fewer where an accelerator runs out of memory."""
        try:
            return self._results_of_rows(inputs)
        except torch.OutOfMemoryError:
            if not self._use_less_memory():
                raise
        halves = [half for half in inputs.tensor_split(2) if len(half)]
        return join([self._results_within_memory(half) for half in halves])

    def _for_thread(self) -> Any:
        """Return a copy that may run beside others of its kind."""
        return copy.copy(self)

    def _use_less_memory(self) -> bool:
        """Tell whether the next try will need less memory."""
        return False

    def _results_of_rows(self, inputs: Tensor) -> RowResults:
        given = self._reference.predict(inputs)
        posterior = self._posterior(given)
        found = self._sample_models(inputs, given, posterior)
        return self._summarise(posterior, found, len(inputs))

    def _summarise(self, posterior: Any, found: dict[str, np.ndarray], n_rows: int) -> RowResults:
        """Return what the models say about some rows, with what the method knows besides."""
        columns = {
            "standard_error": posterior.standard_error(self.setting),
            "effective_sample_size": posterior.effective_sample_size(),
            "rival": np.full(n_rows, None, dtype=object),
            "loss_increase": np.full(n_rows, np.nan),
            "feasible": np.zeros(n_rows, dtype=bool),
            "n_steps": np.zeros(n_rows, dtype=int),
            "n_diverged": np.zeros(n_rows, dtype=int),
            "cached": np.zeros(n_rows, dtype=bool),
            "r_hat": np.full(n_rows, np.nan),
            **found,
        }
        return RowResults(
            prediction_array(posterior.prediction(self.setting)),
            posterior.uncertainty(self.setting),
            Diagnostics(**columns),
            posterior.variance(self.setting),
        )

    def _predict_outputs(self, X: Any) -> np.ndarray:
        """Return probabilities or means of the setting; the given model's need no sampling."""
        if self.setting == "given":
            inputs = self._check_inputs(X)
            return prediction_array(self._reference.predict(inputs))
        return self._results(X).prediction

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

    def predict_uncertainty(self, X: Any, *, return_diagnostics: bool = False) -> Any:
        """Tell how far the prediction of each row can be trusted.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.
        return_diagnostics : bool, default=False
            Whether to return how the estimate came about, too.

        Returns
        -------
        uncertainty : Uncertainty
            Aleatoric, epistemic and total uncertainty, three arrays of shape (n_samples,).
        diagnostics : Diagnostics
            Only with ``return_diagnostics=True``.
        """
        results = self._results(X)
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

    # -- scikit-learn ----------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        for name in self._made_again:
            state.pop(name, None)
        return state

    def __sklearn_clone__(self) -> BaseUncertaintyEstimator:
        # A given network goes along as it is: cloning a fitted net would forget its weights.
        params = self.get_params(deep=False)
        copies = {k: v if _is_kept(k, v) else clone(v, safe=False) for k, v in params.items()}
        duplicate = type(self)(**copies)
        for name in _CLONED_ATTRIBUTES:
            if hasattr(self, name):
                setattr(duplicate, name, getattr(self, name))
        return duplicate

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments.

        Parameters
        ----------
        deep : bool, default=True
            Whether to include the wrapped estimator's own, as ``estimator__name``. A given
            network has none: it stays as it is.

        Returns
        -------
        dict
            Names and values.
        """
        return super().get_params(deep=deep and not is_given(self.estimator))

    def set_params(self, **params: Any) -> BaseUncertaintyEstimator:
        """Set constructor arguments.

        Parameters
        ----------
        **params : dict
            Names and values.

        Returns
        -------
        self : object
            The estimator itself.
        """
        given = is_given(params.get("estimator", self.estimator))
        nested = [name for name in params if name.startswith("estimator__")]
        if given and nested:
            raise ValueError(
                f"Cannot set {nested}: the network is already fitted and stays as it is. Pass an "
                "unfitted estimator, such as clone(net), to tune its own parameters."
            )
        return super().set_params(**params)


def _is_kept(name: str, value: Any) -> bool:
    """Tell whether an argument holds given networks, which survive cloning as they are."""
    return (name == "estimator" and is_given(value)) or (name == "estimators" and value is not None)
