"""Wrap another estimator: parameters, clones and metadata routing."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn import get_config
from sklearn.base import BaseEstimator, clone
from sklearn.utils._param_validation import Interval
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing

from .._messages import ShortMessages, shown
from .._network.adapters import is_pretrained, is_torch, split_pipeline
from .._network.training import sample_weight_argument
from .checks.seen import Families

# Attributes that clone keeps.
_CLONED_ATTRIBUTES = ("_metadata_request", "_sklearn_output_config", "_skl_callbacks")

# Allowed values of n_jobs, without zero.
N_JOBS = [Interval(Integral, None, -1, closed="right"), Interval(Integral, 1, None, closed="left")]

_PLAIN = (bool, int, float, str, type(None))


class WrapsNetwork(ShortMessages, BaseEstimator):
    """Parameters, clones and metadata of an estimator that may hold a given network."""

    estimator: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        transformers, final = split_pipeline(self.estimator)
        # Networks of scikit-learn take sparse tables, and so do some transformers.
        tags.input_tags.sparse = transformers is not None or not is_torch(final)
        return tags

    def __sklearn_clone__(self) -> Any:
        # A given network stays as it is: a clone of it would forget its weights.
        params = self.get_params(deep=False)
        copies = {k: v if _is_kept(k, v) else clone(v, safe=False) for k, v in params.items()}
        duplicate = type(self)(**copies)
        for name in _CLONED_ATTRIBUTES:
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


def _is_kept(name: str, value: Any) -> bool:
    """Return whether an argument holds given networks, which are not cloned."""
    if name == "estimators":
        return value is not None
    return name == "estimator" and is_pretrained(value)


def parameters_now(estimator: Any) -> dict[str, Any]:
    """Return all arguments that determine a fit, with those of nested objects.

    Of the wrapped estimator's own, only plain values: some estimators make objects anew each time.
    """
    return {
        name: value
        for name, value in estimator.get_params().items()
        if name not in estimator._live_parameters
        and (not name.startswith("estimator__") or isinstance(value, _PLAIN))
    }


def changed_parameters(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of arguments that have changed.

    An object whose own arguments are listed is compared by these. A wrapped estimator that was
    trained in between does not list its own any more, which is no change.
    """
    listed = {name.rpartition("__")[0] for name in now}
    return [
        name
        for name in sorted(before.keys() & now.keys())
        if not _same(before[name], now[name], name in listed)
    ]


def _same(old: Any, new: Any, listed: bool = False) -> bool:
    if old is new:
        return True
    if listed:
        return type(old) is type(new)
    if isinstance(old, torch.nn.Module) or hasattr(old, "get_params"):
        return False
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, float) and isinstance(new, float):
        # A NaN argument is another object after unpickling.
        return old == new or bool(np.isnan([old, new]).all())
    return bool(np.array_equal(old, new))
