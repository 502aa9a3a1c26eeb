"""From a fitted estimator to searches, and from what they found to an answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from ._contexts import computing
from ._free_network import WeightChanging, draw_batches, probe_rows
from ._likelihood import expected_values, map_prediction
from ._memory import memory_in_bytes
from ._objective import Schedule, choose_targets
from ._reference import slices
from ._sampling import REGRESSION_SAMPLERS, SAMPLERS, ModelKeeper, Sampler, TraceKeeper
from ._search import Problem, bytes_per_search, run_searches

# Rows that the loss of a found model is measured on.
_MAX_EVALUATION_ROWS = 1024
# More searches at once than this no longer pay on a CPU: their values leave the caches.
_MAX_SEARCHES_ON_CPU = 160
# learning_rate="auto": for a tensor with one input, and where a single layer is searched.
_AUTO_LEARNING_RATE = 0.1
_AUTO_SINGLE_LAYER = 0.005
# The size of the first displacement of an untargeted search, relative to the weights.
_NUDGE = 1e-3


class AdversarialSearch(WeightChanging):
    """What QUAM's classifier and regressor share."""

    # Times the temperature of the Bayesian posterior, one over the number of training rows.
    _auto_temperature: ClassVar[float]
    # The slack, where it is left to us, in units of the temperature.
    _auto_slack: ClassVar[float]
    # See `Problem.adam_eps`.
    _adam_eps: ClassVar[float]
    _rows_in_parallel = True
    _made_again = ("_free_network_", "_prepared")
    _search_constraints: ClassVar[dict] = {
        **WeightChanging._weight_constraints,
        "n_steps": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "learning_rate_decay": [Interval(Real, 1, None, closed="left")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "penalty": [Interval(Real, 0, None, closed="left")],
        "penalty_growth": [Interval(Real, 1, None, closed="left")],
        "penalty_every": [Interval(Integral, 1, None, closed="left")],
        "slack": [Interval(Real, 0, None, closed="left"), None],
        "temperature": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "sampling": [StrOptions(set(SAMPLERS))],
        "max_change": [Interval(Real, 0, None, closed="neither"), None],
        "tol": [Interval(Real, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "optimizer": [StrOptions({"adam", "sgd"})],
        "n_jobs": [Integral, None],
    }

    targets: Any
    n_steps: int
    learning_rate: float | str
    learning_rate_decay: float
    weight_decay: float
    penalty: float
    penalty_growth: float
    penalty_every: int
    slack: float | None
    temperature: float | str
    sampling: str
    max_change: float | None
    tol: float
    batch_size: int
    optimizer: str
    n_jobs: int | None

    @computing()
    def _finish_fit(self) -> None:
        """Prepare the searches, so that whatever is wrong shows now."""
        self.temperature_ = self._temperature()
        self.slack_ = self._auto_slack * self.temperature_ if self.slack is None else self.slack
        self._n_workers, self._max_searches = 1, sys.maxsize
        self._note_parameters()
        self._prepared = self._make_problem()
        self.frozen_part_cached_ = self._network().split.cached
        self.execution_ = self._network().executor.name

    def _temperature(self) -> float:
        if self.temperature != "auto":
            return float(self.temperature)
        return self._auto_temperature / len(self._inputs)

    def _prepare(self) -> tuple[Problem, int]:
        """Return the problem and the bytes that a search needs; made once."""
        if not hasattr(self, "_prepared"):
            self._prepared = self._make_problem()
        return self._prepared

    def _make_problem(self) -> tuple[Problem, int]:
        network, device = self._network(), self._inputs.device
        n_rows, probe = len(self._inputs), probe_rows(self._inputs)
        generator = torch.Generator().manual_seed(self._seed)
        problem = Problem(
            network.free,
            network.executor,
            self._training_set(),
            draw_batches(n_rows, self.batch_size, self.n_steps + 1, generator).to(device),
            torch.randperm(n_rows, generator=generator)[:_MAX_EVALUATION_ROWS].to(device),
            Schedule(
                _AUTO_LEARNING_RATE if self.learning_rate == "auto" else float(self.learning_rate),
                self.learning_rate_decay,
                self.penalty,
                self.penalty_growth,
                self.penalty_every,
            ),
            choose_targets(self._reference.predict(probe), self.targets),
            self.slack_,
            self._scale_of_steps(),
            optimizer=self.optimizer,
            adam_eps=self._adam_eps,
            weight_decay=self.weight_decay,
            max_change=self.max_change,
            # Until every row has been seen, or the schedule has changed.
            window=min(self.penalty_every, -(-n_rows // self.batch_size)),
            tolerance=self.tol,
            nudge=_NUDGE if self.targets == "untargeted" else 0.0,
            given_on_training=(
                self._reference.predict(self._inputs) if self.sampling == "profile" else None
            ),
        )
        return problem, bytes_per_search(problem, network.at_cut(probe))

    def _scale_of_steps(self) -> dict[str, float]:
        """Return factors with which a step changes what each layer computes about alike."""
        free = self._network().free
        if self.learning_rate != "auto":
            return dict.fromkeys(free.start, 1.0)
        # A model that is linear in what is searched is easily overshot.
        if len({name.rpartition(".")[0] for name in free.names}) == 1:
            return dict.fromkeys(free.start, _AUTO_SINGLE_LAYER / _AUTO_LEARNING_RATE)
        return {name: number**-0.5 for name, number in free.n_inputs.items()}

    # -- searching -------------------------------------------------------------------------

    def _searches_at_once(self) -> int:
        """Return how many searches fit the memory limit, which all workers share."""
        limit = memory_in_bytes(self.memory_limit, self._reference.device) // self._n_workers
        number = max(1, limit // self._prepare()[1])
        if self._reference.device.type == "cpu":
            number = min(number, _MAX_SEARCHES_ON_CPU)
        return min(number, self._max_searches)

    def _use_less_memory(self) -> bool:
        self._max_searches = self._searches_at_once() // 2
        return self._max_searches > 0

    def _for_thread(self) -> Any:
        problem, size = self._prepare()
        duplicate = super()._for_thread()
        # Made again, it would be traced, which disturbs other threads.
        duplicate._free_network_ = self._network()
        duplicate._prepared = replace(problem, executor=problem.executor.for_thread()), size
        return duplicate

    def _chunks(self, inputs: Tensor) -> Iterator[slice]:
        given = self._reference.predict(inputs[:1])
        n_targets = self._prepare()[0].targets.choose(given, self.targets).shape[1]
        n_rows = max(1, self._searches_at_once() // n_targets)
        # Every worker should get something to do.
        n_rows = min(n_rows, -(-len(inputs) // self._n_workers))
        return slices(len(inputs), n_rows)

    def _sample_models(self, inputs: Tensor, given: Any, posterior: Any) -> dict[str, np.ndarray]:
        samplers = [
            self._search(inputs, given, targets, REGRESSION_SAMPLERS[self.sampling], posterior)
            for targets in self._target_groups(given, len(inputs))
        ]
        return self._diagnose(samplers, given)

    def _target_groups(self, given: Any, n_rows: int) -> Iterator[Tensor]:
        """Yield targets (n_rows, n_targets), as many together as memory allows."""
        targets = self._prepare()[0].targets.choose(given, self.targets)
        size = max(1, self._searches_at_once() // n_rows)
        yield from targets.split(size, dim=1)

    def _search(
        self,
        inputs: Tensor,
        given: Any,
        targets: Tensor,
        kind: type[Sampler],
        posterior: Any,
    ) -> Sampler:
        """Run the searches of some rows for some targets."""
        problem, n_targets = self._prepare()[0], targets.shape[1]
        at_cut = self._network().split.at_cut(inputs)
        own = tuple(part.repeat_interleave(n_targets, dim=0) for part in at_cut)
        repeated = map_prediction(lambda part: part.repeat_interleave(n_targets, dim=0), given)
        sampler = kind(
            problem, posterior, own, repeated, targets.flatten(), n_targets, self.temperature_
        )
        run_searches(
            problem,
            own,
            repeated,
            targets.flatten(),
            on_visit=sampler.on_visit,
            on_checkpoint=sampler.on_checkpoint,
        )
        sampler.finish()
        return sampler

    def _diagnose(self, samplers: list[Sampler], given: Any) -> dict[str, np.ndarray]:
        """Return what the searches of each row have come to."""

        def table(name: str) -> Tensor:
            parts = [getattr(s, name).unflatten(0, (-1, s.n_targets)) for s in samplers]
            return torch.cat(parts, dim=1)

        increase, cheapest = table("rival_increase").min(dim=1)
        rivals = map_prediction(
            lambda *parts: torch.cat(
                [p.unflatten(0, (-1, s.n_targets)) for p, s in zip(parts, samplers, strict=True)],
                dim=1,
            )[torch.arange(len(cheapest), device=cheapest.device), cheapest],
            *[s.rival for s in samplers],
        )
        found = torch.isfinite(increase).cpu().numpy()
        names = self._rival_names(rivals, given)
        return {
            "rival": np.where(found, names, np.array(None)),
            "loss_increase": np.where(found, increase.cpu().double().numpy(), np.nan),
            "feasible": found & (increase <= self.slack_).cpu().numpy(),
            "n_steps": table("steps").sum(dim=1).cpu().numpy(),
            "n_diverged": table("diverged").sum(dim=1).cpu().numpy(),
            "cached": np.full(len(found), self._network().split.cached),
        }

    def _rival_names(self, rivals: Any, given: Any) -> np.ndarray:
        raise NotImplementedError

    @computing()
    def adversarial_models(self, x: Any) -> list[list[dict[str, Any]]]:
        """Return the rival models that were found for a few points.

        Parameters
        ----------
        x : array-like of shape (n_samples, ...)
            A few rows like those of the training data.

        Returns
        -------
        list of list of dict
            For each row a list of models, the most divergent first; for each model its
            ``state_dict`` (to be loaded into a copy of the module; that of a scikit-learn network
            has the names "0.weight", "0.bias", "2.weight", ...), its ``prediction`` for the row
            (probabilities or means), the ``target`` of its search (a label, "up", "down", or None
            if untargeted), its ``divergence`` KL(given || found) in nats, its ``loss_increase`` on
            up to 1024 training rows, and whether it is ``feasible``. A search that found no
            feasible model contributes the given network itself.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn_quam import QUAMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y), n_steps=20)
        >>> models, = est.fit(X, y).adversarial_models(X[77:78])
        >>> len(models)
        3
        """
        inputs = self._check_inputs(x)
        return [self._models_of_row(inputs[row : row + 1]) for row in range(len(inputs))]

    @computing()
    def search_traces(self, x: Any) -> list[list[dict[str, Any]]]:
        """Return every step of the searches of a few points, which is not kept otherwise.

        Parameters
        ----------
        x : array-like of shape (n_samples, ...)
            A few rows like those of the training data.

        Returns
        -------
        list of list of dict
            For each row a list of searches; for each search its ``target``, and arrays with an
            entry for each of the n_steps + 1 models met, the given network first (next to it if
            ``targets="untargeted"``): ``prediction`` for the row, ``divergence`` from the given
            network in nats, and ``loss_increase``, the mean over the mini-batches of the last few
            steps. A search that ended early repeats its last model.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn_quam import QUAMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y), n_steps=20)
        >>> (to_first_class, *_), = est.fit(X, y).search_traces(X[77:78])
        >>> to_first_class["divergence"].shape
        (21,)
        """
        inputs = self._check_inputs(x)
        return [self._traces_of_row(inputs[row : row + 1]) for row in range(len(inputs))]

    def _searches_of_row(
        self, inputs: Tensor, kind: type[Sampler]
    ) -> Iterator[tuple[Any, int, int]]:
        """Search a single row; yield for each search who watched it, its number and its target."""
        given = self._reference.predict(inputs)
        for targets in self._target_groups(given, 1):
            keeper = self._search(inputs, given, targets, kind, None)
            for number, target in enumerate(targets[0].tolist()):
                yield keeper, number, target

    def _traces_of_row(self, inputs: Tensor) -> list[dict[str, Any]]:
        return [self._trace(*search) for search in self._searches_of_row(inputs, TraceKeeper)]

    def _trace(self, keeper: TraceKeeper, number: int, target: int) -> dict[str, Any]:
        def own(prediction: Any) -> Any:
            return map_prediction(lambda part: part[number : number + 1], prediction)

        predictions = [own(visit.prediction) for visit in keeper.visits]
        divergence = keeper.problem.targets.divergence
        given = own(keeper.given)
        return {
            "target": self._target_name(target),
            "prediction": np.concatenate([_as_array(p) for p in predictions]),
            "divergence": np.array([float(divergence(given, p)) for p in predictions]),
            "loss_increase": np.array([float(v.loss_increase[number]) for v in keeper.visits]),
        }

    def _models_of_row(self, inputs: Tensor) -> list[dict[str, Any]]:
        searches = self._searches_of_row(inputs, ModelKeeper)
        models = [self._describe(*search) for search in searches]
        return sorted(models, key=lambda model: -model["divergence"])

    def _describe(self, keeper: ModelKeeper, number: int, target: int) -> dict[str, Any]:
        free = {name: value[number] for name, value in keeper.models.items()}
        weights = self._prepare()[0].free.weights(free)
        state = {k: v.detach().clone() for k, v in self._reference.module.state_dict().items()}
        # Tied weights have several names.
        named = dict(self._reference.module.named_parameters(remove_duplicate=False))
        for name, weight in weights.items():
            for alias, parameter in named.items():
                if parameter is named[name]:
                    state[alias] = weight.detach().clone()
        best = map_prediction(lambda part: part[number], keeper.best)
        return {
            "state_dict": state,
            "prediction": _as_array(best),
            "target": self._target_name(target),
            "divergence": float(keeper.best_divergence[number]),
            "loss_increase": float(keeper.best_increase[number]),
            "feasible": bool(keeper.found[number]),
        }

    def _target_name(self, target: int) -> Any:
        raise NotImplementedError


def _as_array(prediction: Any) -> np.ndarray:
    return expected_values(prediction).cpu().double().numpy()
