"""Several networks: each is judged by a method of its own, and all of them are plausible."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn import config_context
from sklearn.utils._param_validation import Interval
from sklearn.utils.parallel import Parallel, delayed
from tqdm.auto import tqdm

from .._adapters import is_given
from .._contexts import computing
from .._regression import BaseUncertaintyRegressor
from .._rows import RowResults, join
from .._training import train, untrained
from ..base import BaseUncertaintyEstimator


class Ensemble(BaseUncertaintyEstimator):
    """Trains or takes over several networks; shared by the methods that look at them."""

    _ensemble_constraints: ClassVar[dict] = {
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "estimators": [list, tuple, None],
        "n_jobs": [Integral, None],
    }
    # The method that judges a single member, and arguments that it shares with the ensemble.
    _member_type: ClassVar[Any]
    _member_arguments: ClassVar[tuple[str, ...]] = ("link", "device")

    n_estimators: int
    estimators: Any

    # -- fitting ---------------------------------------------------------------------------

    def _wrapped(self) -> Any:
        if self.estimators is None:
            return super()._wrapped()
        unfitted = [net for net in self.estimators if not is_given(net)]
        if unfitted or not len(self.estimators):
            raise ValueError(
                f"estimators= takes fitted networks, but {unfitted or 'nothing'} was passed. Pass "
                "an unfitted one as estimator= to have n_estimators of them trained."
            )
        return self.estimators[0] if self.estimator is None else self.estimator

    def _fit_more(
        self, original: Any, X: Any, y: Any, sample_weight: Any, fit_params: dict
    ) -> None:
        if self.estimators is None:
            more = self._train_members(X, y, sample_weight, fit_params)
            self.estimators_ = [self.estimator_, *more]
        else:
            self.estimators_ = list(self.estimators)
        self._member_data = {"X": original, "y": y, "sample_weight": sample_weight}

    def _train_members(self, X: Any, y: Any, sample_weight: Any, fit_params: dict) -> list[Any]:
        """Return all members but the first, trained as the first was, with seeds of their own."""
        if self.n_estimators == 1:
            return []
        estimator = untrained(self._wrapped())
        # There is nothing to be routed to an estimator that was passed fitted.
        routing = {"enable_metadata_routing": False} if is_given(self.estimator) else {}
        seeds = np.random.SeedSequence(self._seed).generate_state(self.n_estimators - 1) // 2
        # The workers of scikit-learn's Parallel have the configuration that holds here.
        with config_context(**routing):
            routed = self._route(estimator, sample_weight, fit_params)
            tasks = [
                delayed(train)(
                    estimator, X, y, task=self._task, seed=int(seed), fit_params=routed, anew=True
                )
                for seed in seeds
            ]
            trained = Parallel(n_jobs=self.n_jobs, return_as="generator")(tasks)
        bar = tqdm(trained, total=len(tasks), unit="net", disable=not self.verbose, desc="Training")
        return [net for net, _ in bar]

    @computing()
    def _finish_fit(self) -> None:
        data = self.__dict__.pop("_member_data")
        arguments = {name: getattr(self, name) for name in self._member_arguments}
        self._members = []
        for number, net in enumerate(self.estimators_):
            member = self._member_type(net, random_state=self._seed + number, **arguments)
            self._members.append(member.fit(**data))
            self._check_member(member)
            self._share_data(member)

    def _share_data(self, member: Any) -> None:
        """Let a member hold the same tensors, so that they are neither kept nor stored twice."""
        for name in ("_inputs", "_target", "_sample_weight"):
            own, other = getattr(self, name), getattr(member, name)
            if own is None or own.dtype != other.dtype or own.device != other.device:
                continue
            if torch.equal(own, other):
                setattr(member, name, own)

    def _check_member(self, member: Any) -> None:
        """Refuse a network that predicts something else than the reference."""
        for name in ("classes_", "n_outputs_"):
            own, other = getattr(self, name, ()), getattr(member, name, ())
            if not np.array_equal(own, other):
                raise ValueError(
                    f"The networks do not predict the same: {name} is {own} for the reference and "
                    f"{other} for {type(member.estimator).__name__}."
                )

    # -- predicting ------------------------------------------------------------------------

    @computing()
    def _results(self, X: Any) -> RowResults:
        """Ask all members about all rows, each behind transformers of its own."""
        inputs = self._check_inputs(X)
        of_members = [member._check_inputs(X) for member in self._members]
        parts = []
        with self._progress_bar(len(inputs)) as bar:
            for rows in self._members[0]._chunks(of_members[0]):
                posterior: Any = self._posterior(self._reference.predict(inputs[rows]))
                found = []
                for member, own in zip(self._members, of_members, strict=True):
                    given = member._reference.predict(own[rows])
                    found.append(member._sample_models(own[rows], given, posterior))
                n_rows = len(inputs[rows])
                cached = all(part.get("cached", np.False_).all() for part in found)
                columns = {"cached": np.full(n_rows, cached)}
                parts.append(self._summarise(posterior, columns, n_rows))
                bar.update(n_rows)
        return join(parts)


class RegressionEnsemble(Ensemble, BaseUncertaintyRegressor):
    """Several networks for regression: each has a noise of its own."""

    _member_arguments: ClassVar[tuple[str, ...]] = ("link", "device", "measure", "noise_variance")

    def _set_noise_variance(self, X_val: Any, y_val: Any) -> None:
        super()._set_noise_variance(X_val, y_val)
        self._member_data |= {"X_val": X_val, "y_val": y_val}
