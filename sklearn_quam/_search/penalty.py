"""Penalty search, the algorithm of the paper: gradients of a target and of the training loss."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor
from torch.optim.adam import adam

from .._network.free import Free, draw_batches
from .._network.limits import Limits
from .._network.outputs import NetworkErrors
from .._network.predictions import Categorical, Prediction
from .._network.reference import Rows
from .problem import Problem
from .schedule import Schedule
from .steps import BatchedSteps, Drawn, Evaluation, State

# learning_rate="by_layer": for a tensor with one input, and where a single layer is searched.
_LEARNING_RATE_OF_ONE_INPUT = 0.1
_LEARNING_RATE_OF_ONE_LAYER = 0.005
# The size of the first displacement of an untargeted search, relative to the weights.
_PERTURBATION = 1e-3
# What "auto" means for classes, and for real-valued outputs.
_AUTO: dict[str, tuple[Any, Any]] = {
    "learning_rate": ("by_layer", 2e-2),
    "penalty": (6.0, 0.3),
    "penalty_growth": (1.9, 2.2),
    "adam_epsilon": (0.1, 1e-8),
}


class PenaltySearch(BaseEstimator):
    """Adversarial model search by gradients and a growing penalty: the paper's algorithm.

    A search minimises the loss of its target at the row plus a penalty times the loss of a
    mini-batch of the training data. The penalty grows and the step size falls: first the model is
    led away from the given one, then it has to explain the training data again. Pass it as
    ``search`` of QUAM; its arguments are tuned as ``search__n_steps``, ....

    Parameters
    ----------
    n_steps : int, default=100
        Steps of each search.
    learning_rate : float, "by_layer" or "auto", default="auto"
        Step size of the search at its beginning. "by_layer" is 0.1 over the square root of the
        number of inputs of each layer, so that what layers compute changes at about the same pace,
        and 0.005 where a single layer is searched: a linear model, or ``parameters="last_layer"``.
        "auto" is "by_layer" for classifiers and 0.02 for regressors.
    learning_rate_decay : float, default=1.4
        What the step size is divided by every `penalty_every` steps.
    penalty : float or "auto", default="auto"
        Weight of the training loss (c_0 in the paper) at the beginning. The loss of a target is the
        cross-entropy of its class, or minus the shift of the mean in standard deviations. "auto" is
        6 for classifiers and 0.3 for regressors.
    penalty_growth : float or "auto", default="auto"
        What the weight is multiplied by every `penalty_every` steps (eta in the paper). "auto" is
        1.9 for classifiers and 2.2 for regressors.
    penalty_every : int, default=7
        Steps between two changes of step size and penalty.
    batch_size : int, default=256
        Training rows that a step sees; the same for all searches. The loss increase of a model is
        the mean over the last `penalty_every` steps, or over fewer if these see all rows.
    adam_epsilon : float or "auto", default="auto"
        Epsilon of the Adam steps. Adam moves every parameter alike, also those whose gradient is
        next to nothing, which costs training loss and gains nothing; a parameter whose gradient is
        well below this hardly moves. "auto" is 0.1 for classifiers and 1e-8 for regressors.
    weight_decay : float, default=0.0
        Pull of the searched parameters towards zero.
    max_change : float, default=None
        Bound on the Euclidean norm of the change of the searched parameters (delta in the paper).
        Use it where rivals must stay close to the given network, whatever they cost.
    tol : float, default=1e-3
        A search ends early when its model is feasible and its prediction (probabilities, or means
        in standard deviations) has changed by less than this within `penalty_every` steps, twice in
        a row. 0 never ends early.

    References
    ----------
    K. Schweighofer, L. Aichberger, M. Ielanskyi, G. Klambauer, S. Hochreiter, "Quantification of
    Uncertainty with Adversarial Models", NeurIPS 2023.

    Examples
    --------
    >>> from sklearn_quam import PenaltySearch, QUAMClassifier
    >>> est = QUAMClassifier(search=PenaltySearch(n_steps=50))
    >>> est.set_params(search__batch_size=64).search
    PenaltySearch(batch_size=64, n_steps=50)
    """

    _parameter_constraints: ClassVar[dict] = {
        "n_steps": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"auto", "by_layer"}),
        ],
        "learning_rate_decay": [Interval(Real, 1, None, closed="left")],
        "penalty": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "penalty_growth": [Interval(Real, 1, None, closed="left"), StrOptions({"auto"})],
        "penalty_every": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "adam_epsilon": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "max_change": [Interval(Real, 0, None, closed="neither"), None],
        "tol": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        *,
        n_steps: int = 100,
        learning_rate: float | str = "auto",
        learning_rate_decay: float = 1.4,
        penalty: float | str = "auto",
        penalty_growth: float | str = "auto",
        penalty_every: int = 7,
        batch_size: int = 256,
        adam_epsilon: float | str = "auto",
        weight_decay: float = 0.0,
        max_change: float | None = None,
        tol: float = 1e-3,
    ) -> None:
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.learning_rate_decay = learning_rate_decay
        self.penalty = penalty
        self.penalty_growth = penalty_growth
        self.penalty_every = penalty_every
        self.batch_size = batch_size
        self.adam_epsilon = adam_epsilon
        self.weight_decay = weight_decay
        self.max_change = max_change
        self.tol = tol

    def _steps(
        self,
        problem: Problem,
        generator: torch.Generator,
        limits: Limits,  # noqa: ARG002
    ) -> PenaltySteps:
        """Return the steps of a search, with mini-batches that a generator draws."""
        n_rows = len(problem.training)
        drawn = Drawn(n_rows, self.batch_size, self.n_steps + 1, generator.get_state())
        batches = draw_batches(n_rows, self.batch_size, self.n_steps + 1, generator)
        task = int(problem.network.executor.likelihood.kind is not Categorical)
        chosen = {
            name: values[task] if getattr(self, name) == "auto" else getattr(self, name)
            for name, values in _AUTO.items()
        }
        by_layer = chosen["learning_rate"] == "by_layer"
        return PenaltySteps(
            batches=batches.to(problem.training.target.device),
            drawn=drawn,
            schedule=Schedule(
                _LEARNING_RATE_OF_ONE_INPUT if by_layer else float(chosen["learning_rate"]),
                self.learning_rate_decay,
                chosen["penalty"],
                chosen["penalty_growth"],
                self.penalty_every,
            ),
            scale=_scale_of_layers(problem) if by_layer else {},
            adam_epsilon=chosen["adam_epsilon"],
            weight_decay=self.weight_decay,
            max_change=self.max_change,
            # Until every row has been seen, or the schedule has changed.
            window=min(self.penalty_every, -(-n_rows // self.batch_size)),
            tolerance=self.tol,
            perturbation=_PERTURBATION if problem.targets.untargeted else 0.0,
        )


def _scale_of_layers(problem: Problem) -> dict[str, float]:
    """Return factors with which a step changes what each layer computes about alike."""
    free = problem.network.free
    # A model that is linear in what is searched is easily overshot.
    if len({name.rpartition(".")[0] for name in free.names}) == 1:
        scale = _LEARNING_RATE_OF_ONE_LAYER / _LEARNING_RATE_OF_ONE_INPUT
        return dict.fromkeys(free.start, scale)
    return {name: number**-0.5 for name, number in free.n_inputs.items()}


@dataclass(frozen=True, eq=False)
class PenaltyState(State):
    """Searches with the moments of their gradients, and what their last steps have cost.

    Parameters
    ----------
    free, query, original, target
        See `State`.
    first, second : dict of Tensor of shape (n_searches, ...)
        Running means of gradients and of their squares.
    count : dict of Tensor
        Steps that each free tensor has been moved by.
    last_increases : Tensor of shape (window, n_searches)
        Loss increases on the mini-batches of the last steps.
    """

    first: Free
    second: Free
    count: Free
    last_increases: Tensor


@dataclass(frozen=True, eq=False)
class PenaltyEvaluation(Evaluation):
    """An evaluation that can be differentiated; see `Evaluation`.

    Parameters
    ----------
    at_query, loss_increase, expected_increase
        See `Evaluation`; the loss increase is the mean over the last mini-batches.
    batch_loss : Tensor of shape (n_searches,)
        Loss on the mini-batch of the step.
    last_increases : Tensor of shape (window, n_searches)
        Loss increases on the last mini-batches, this one among them.
    """

    batch_loss: Tensor
    last_increases: Tensor


@dataclass(frozen=True, eq=False)
class PenaltySteps(BatchedSteps):
    """Adam steps down the loss of the target and a penalty on the training loss.

    Parameters
    ----------
    batches, drawn
        See `BatchedSteps`; a mini-batch for each step, and for the last model.
    schedule : Schedule
        Learning rate and penalty of each step.
    scale : dict of float
        What the learning rate of a free tensor is multiplied by, if not one.
    adam_epsilon, weight_decay, max_change
        See `PenaltySearch`.
    window : int
        Number of the last mini-batches over which loss increases are averaged: a single one may be
        lucky, and weights would pick the lucky ones.
    tolerance : float
        See `PenaltySearch`, ``tol``.
    perturbation : float
        Size of a random first displacement, relative to the free parameters.
    """

    schedule: Schedule
    scale: dict[str, float]
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_change: float | None = None
    window: int = 1
    tolerance: float = 0.0
    perturbation: float = 0.0
    measures_all = False
    drops_ended = True
    # The values of more leave the caches.
    at_once_on_cpu = 160

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return len(self.batches) - 1

    @property
    def every(self) -> int:
        """Steps from one change of the schedule to the next."""
        return self.schedule.every

    @property
    def rows_at_once(self) -> int:
        """Training rows of one pass."""
        return self.batches.shape[1]

    def init(
        self,
        problem: Problem,
        query: Rows,
        original: Prediction,
        target: Tensor,
        n_targets: int,  # noqa: ARG002
    ) -> Any:
        """Return the state of searches that start at, or next to, the given network."""
        n_searches, start = len(target), problem.network.free.start
        free = {
            name: _perturbed(value, self.perturbation, seed)
            .expand(n_searches, *value.shape)
            .clone()
            .requires_grad_()
            for seed, (name, value) in enumerate(start.items())
        }
        return PenaltyState(
            free,
            query,
            original,
            target,
            first={name: torch.zeros_like(v, requires_grad=False) for name, v in free.items()},
            second={name: torch.zeros_like(v, requires_grad=False) for name, v in free.items()},
            count={name: torch.zeros((), device=value.device) for name, value in free.items()},
            last_increases=problem.training.losses.new_zeros(self.window, n_searches),
        )

    def evaluate(self, problem: Problem, state: PenaltyState, step: int) -> PenaltyEvaluation:
        """Return predictions at query rows, and losses on the step's mini-batch."""
        index, training = self.batches[step], problem.training
        on_batch, at_query = problem.predict(state.free, index, state.query)
        batch_loss = training.mean_loss(problem.losses(on_batch, index), index)
        # The start, which costs nothing, must not make the first steps look cheaper: step 1 takes
        # its place.
        n_moved = max(step, 1)
        slot = torch.tensor([(n_moved - 1) % self.window], device=batch_loss.device)
        increase = batch_loss.detach() - training.mean_loss(training.losses[index], index)
        last = state.last_increases.index_copy(0, slot, increase[None])
        return PenaltyEvaluation(
            at_query,
            last.sum(dim=0) / min(n_moved, self.window),
            problem.expected_increase(on_batch, index),
            batch_loss,
            last,
        )

    def update(
        self, problem: Problem, state: PenaltyState, evaluation: PenaltyEvaluation, step: int
    ) -> PenaltyState:
        """Take a step down the objective, every search by itself, in the memory of the state."""
        targets: Any = problem.targets
        loss = targets.loss(evaluation.at_query, state.original, state.target)
        objective = loss + self.schedule.penalty_at(step) * evaluation.batch_loss
        with NetworkErrors():
            gradients = torch.autograd.grad(
                objective.sum(), list(state.free.values()), allow_unused=True
            )
        # Parameters that the network does not use do not move, and may hold anything.
        # The fused steps walk memory in order: a transposed gradient would be misread.
        moving = {
            name: gradient.contiguous()
            for name, gradient in zip(state.free, gradients, strict=True)
            if gradient is not None
        }
        self._adam(state, moving, self.schedule.learning_rate_at(step))
        if self.max_change is not None:
            _bound_change(state.free, problem.network.free.start, list(moving), self.max_change)
        return dataclasses.replace(state, last_increases=evaluation.last_increases)

    @torch.no_grad()
    def _adam(self, state: PenaltyState, gradients: Free, learning_rate: float) -> None:
        # The fewer groups, the fewer calls.
        groups: dict[float, list[str]] = {}
        for name in gradients:
            groups.setdefault(self.scale.get(name, 1.0), []).append(name)
        for scale, names in groups.items():
            values = [state.free[name] for name in names]
            adam(
                values,
                [gradients[name] for name in names],
                [state.first[name] for name in names],
                [state.second[name] for name in names],
                [],
                [state.count[name] for name in names],
                fused=values[0].device.type in ("cpu", "cuda"),
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=scale * learning_rate,
                weight_decay=self.weight_decay,
                eps=self.adam_epsilon,
                maximize=False,
            )

    @torch.no_grad()
    def keep(self, state: PenaltyState, index: Tensor) -> PenaltyState:
        """Return the state of some of the searches."""
        return PenaltyState(
            {name: value[index].clone().requires_grad_() for name, value in state.free.items()},
            tuple(rows[index] for rows in state.query),
            state.original[index],
            state.target[index],
            first={name: value[index] for name, value in state.first.items()},
            second={name: value[index] for name, value in state.second.items()},
            count={name: value.clone() for name, value in state.count.items()},
            last_increases=state.last_increases[:, index],
        )

    def free(self, problem: Problem, state: PenaltyState, index: Tensor) -> Free:  # noqa: ARG002
        """Return the free parameters of some of the models."""
        return {name: value.detach()[index] for name, value in state.free.items()}

    def shortened(self) -> PenaltySteps:
        """Return the same with a single step, to find out how much memory it takes."""
        return dataclasses.replace(self, batches=self.batches[:2])


def _perturbed(start: Tensor, size: float, seed: int) -> Tensor:
    if size == 0:
        return start
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(start.shape, generator=generator).to(start)
    return start + size * start.square().mean().sqrt() * noise


@torch.no_grad()
def _bound_change(free: Free, start: Free, moved: list[str], max_change: float) -> None:
    """Shorten changes of parameters to the largest Euclidean norm, in place."""
    squares = sum(
        ((free[name] - start[name]) ** 2).reshape(len(free[name]), -1).sum(dim=1) for name in moved
    )
    factor = (max_change / torch.as_tensor(squares).sqrt()).clamp(max=1.0)
    for name in moved:
        value = free[name]
        scale = factor.reshape(-1, *[1] * (value.ndim - 1))
        value.copy_(torch.where(scale < 1, start[name] + scale * (value - start[name]), value))
