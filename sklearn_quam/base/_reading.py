"""What methods and detectors share: read a network and its training data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn import get_config
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .._messages import ShortMessages, shown
from .._network.adapters import check_kind, is_pretrained, is_torch, split_pipeline
from .._network.free import free_network
from .._network.inputs.items import StoredDataset
from .._network.inputs.rows import Inputs, StoredRows
from .._network.inputs.sources import transformed
from .._network.predictions import Gaussian, Prediction
from .._network.reference import ReferenceModel, TrainingSet, build_reference
from .._network.training import default_network, sample_weight_argument, train
from .._typing import Device, Parameters, RandomState
from ._data import FitData, Passed, check_rows, check_training_data, check_weight
from ._wrapping import CLONED_ATTRIBUTES, changed_parameters, is_kept, parameters_now
from .checks.agreement import check_agreement
from .checks.refused import refuse_infinite_loss
from .checks.seen import Families, passed_rows

# Fitted attributes that exist only if `fit` was given held-out samples.
_OF_HELD_OUT_ROWS = ("conformal_scores_", "conformal_labels_", "_known_rows", "_doubt_question")


class NetworkEstimator(ShortMessages, BaseEstimator):
    """Reads a network and its data; the common base of methods and detectors."""

    _task: ClassVar[str]
    # A member of an ensemble neither warns nor calibrates: the ensemble does.
    _is_member = False
    # Whether the transformers are those of the default network: X is checked as without them.
    _scales_inputs = False
    # Whether models differ from the given network in its weights, which `parameters` names.
    _changes_weights: ClassVar[bool] = False
    # Arguments that may be changed after `fit`.
    _live_parameters: ClassVar[tuple[str, ...]] = ()
    _parameter_constraints: ClassVar[dict] = {
        "estimator": "no_validation",
        "output": [str, Integral, None],
        "device": [str, torch.device, None],
        "random_state": ["random_state"],
    }

    # What subclasses fill in: targets as the likelihood takes them; an error for held-out targets
    # that are not like those of the training data; the noise variance that a network lacks.
    _encode_target: Callable[..., Tensor]
    _check_held_out: Callable[[np.ndarray], None]
    _with_noise: Callable[..., tuple[ReferenceModel, Prediction]]

    estimator: Any
    link: str | None
    output: str | int | None
    parameters: Parameters
    device: Device
    random_state: RandomState

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        transformers, final = split_pipeline(self.estimator)
        # Networks of scikit-learn take sparse tables, and so do some transformers.
        tags.input_tags.sparse = transformers is not None or not is_torch(final)
        return tags

    def __sklearn_clone__(self) -> Any:
        # A given network stays as it is: a clone of it would forget its weights.
        params = self.get_params(deep=False)
        copies = {k: v if is_kept(k, v) else clone(v, safe=False) for k, v in params.items()}
        duplicate = type(self)(**copies)
        for name in CLONED_ATTRIBUTES:
            if hasattr(self, name):
                setattr(duplicate, name, getattr(self, name))
        # Clones share the record of samples that were passed to fit.
        duplicate._families = self.__dict__.setdefault("_families", Families())
        return duplicate

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        # A given network stays as it is: it has no arguments to set.
        if not deep or not is_pretrained(self.estimator):
            return super().get_params(deep=deep)
        params = super().get_params(deep=False)
        for name, value in list(params.items()):
            if name != "estimator" and hasattr(value, "get_params"):
                own = value.get_params()
                params |= {f"{name}__{key}": nested for key, nested in own.items()}
        return params

    def set_params(self, **params: Any) -> Any:
        pretrained = is_pretrained(params.get("estimator", self.estimator))
        nested = [name for name in params if name.startswith("estimator__")]
        if pretrained and nested:
            raise ValueError(
                f"Cannot set {shown(nested)}: the network is already fitted and stays as it is. "
                "Pass an unfitted estimator, such as clone(net), to tune its own parameters."
            )
        return super().set_params(**params)

    get_params.__doc__ = BaseEstimator.get_params.__doc__
    set_params.__doc__ = BaseEstimator.set_params.__doc__

    def _route(self, estimator: Any, sample_weight: Any, fit_params: dict) -> dict:
        """Return the arguments for the fit of the wrapped estimator."""
        if is_pretrained(estimator):
            if fit_params:
                raise TypeError(
                    f"fit got {shown(sorted(fit_params))}, but the network is already fitted and "
                    "is not trained again. Pass an unfitted estimator to have it trained."
                )
            return {}
        if get_config()["enable_metadata_routing"]:
            if self.estimator is None:
                weight = {} if sample_weight is None else {"sample_weight": sample_weight}
                return fit_params | weight
            return process_routing(
                self, "fit", sample_weight=sample_weight, **fit_params
            ).estimator.fit
        if sample_weight is None:
            return fit_params
        if self.estimator is None:
            # Rows that do not count are not to scale the inputs, either.
            weights = {f"{name}__sample_weight": sample_weight for name, _ in estimator.steps}
            return {**fit_params, **weights}
        return {**fit_params, sample_weight_argument(estimator): sample_weight}

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the routing of metadata: ``sample_weight`` may go to the wrapped estimator too.

        Returns
        -------
        MetadataRouter
            The router.
        """
        router = MetadataRouter(owner=self).add_self_request(self)
        if hasattr(self.estimator, "get_metadata_routing") and not is_pretrained(self.estimator):
            mapping = MethodMapping().add(caller="fit", callee="fit")
            router.add(estimator=self.estimator, method_mapping=mapping)
        return router

    def _given(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        fit_params: dict,
        X_val: Any = None,
        y_val: Any = None,
    ) -> FitData:
        """Check the data, train the network if it is not fitted, and return both."""
        # An earlier fit must not answer if this one fails.
        for name in ("_fitted", *_OF_HELD_OUT_ROWS):
            self.__dict__.pop(name, None)
        estimator = self._wrapped()
        check_kind(split_pipeline(estimator)[1], self._task)
        if not self._is_member:
            self._scales_inputs = estimator is not self.estimator and not is_pretrained(estimator)
        X_checked, y_checked, source = check_training_data(self, X, y, estimator)
        if sample_weight is not None:
            sample_weight = check_weight(sample_weight, y_checked)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        routed = self._route(estimator, sample_weight, fit_params)

        self._passed_rows, classes = passed_rows(self, estimator), None
        if not is_pretrained(estimator):
            # Without a random_state of ours, the user's estimator keeps its own.
            own_seed = None if self.random_state is None else seed
            estimator, classes = train(
                estimator, X_checked, y_checked, task=self._task, seed=own_seed, fit_params=routed
            )
        self.estimator_ = estimator
        rows = transformed(split_pipeline(estimator)[0], X_checked, source)
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
        elif y is None and network.labels_are_indices and isinstance(source, StoredDataset):
            names = source.class_names()
            network = network if names is None else replace(network, classes=names)

        inputs = reference.inputs(rows)
        if self._passed_rows is not None and not self._is_member:
            self._passed_rows.note(inputs)
        target = self._encode_target(y_checked, network, n_outputs, reference)
        target = target.to(reference.device)
        if y_val is not None:
            self._check_held_out(y_val)
        weight = None
        if sample_weight is not None:
            scaled = torch.as_tensor(sample_weight / sample_weight.mean())
            weight = scaled.to(inputs.device, reference.dtype)
        check_agreement(estimator, reference, inputs)
        free, at_cut = self._free_network(reference, inputs, seed), Inputs(())
        original: Any
        if free is None:
            original = reference.predict(inputs)
        else:
            at_cut, original = free.given(inputs)
        if isinstance(original, Gaussian):
            reference, original = self._with_noise(
                reference, original, target, weight, X_val, y_val
            )
            free = None if free is None else free.with_likelihood(reference.likelihood)
        losses = reference.likelihood.negative_log_likelihood(original, target)
        training = TrainingSet(at_cut.parts, target, weight, losses, inputs)
        self.reference_loss_ = float(training.weighted(losses, slice(None)).mean())
        refuse_infinite_loss(self.reference_loss_)
        passed = Passed(X, X_checked, y_checked, sample_weight, fit_params, X_val, y_val)
        return FitData(reference, training, original, free, seed, passed)

    def _free_network(self, reference: ReferenceModel, inputs: StoredRows, seed: int) -> Any:
        """Return the network as a function of its free parameters; set their names and number."""
        if not self._changes_weights:
            return None
        network = free_network(reference, self.parameters, inputs, seed)
        self.parameter_names_ = list(network.free.names)
        self.n_parameters_searched_ = network.free.size
        return network

    def _wrapped(self) -> Any:
        """Return the estimator that the network is taken from."""
        return default_network(self._task) if self.estimator is None else self.estimator

    def _check_inputs(self, X: Any) -> StoredRows:
        """Return checked samples as the network takes them."""
        check_is_fitted(self)
        self._validate_params()
        self._refuse_changed_parameters()
        return self._check_rows(X, self._fitted.reference)

    def _refuse_changed_parameters(self) -> None:
        """Refuse to predict with other arguments than were fitted: they would have no effect."""
        changed = changed_parameters(self._fitted_parameters, parameters_now(self))
        if changed:
            live = ", ".join(sorted(set(self._live_parameters) & set(self.get_params(deep=False))))
            raise ValueError(
                f"{', '.join(changed)} of this {type(self).__name__} changed after fit, which has "
                "no effect on what was fitted. Call fit again, or set the old value back."
                + (f" Only {live} may be changed at any time." if live else "")
            )

    def _check_rows(self, X: Any, reference: ReferenceModel) -> StoredRows:
        return check_rows(self, X, reference)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        for name in ("_families", "_passed_rows"):
            state.pop(name, None)
        return state
