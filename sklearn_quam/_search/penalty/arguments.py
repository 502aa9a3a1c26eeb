"""Penalty search as users describe it."""

from __future__ import annotations

from dataclasses import fields
from numbers import Real
from typing import Any

import torch
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from ..._arguments import allowed, arguments, integer, real
from ..._network.free import draw_batches
from ..._network.limits import Limits
from ..problem import DEFAULT_PRECISION, Problem
from ..targets import TARGETS
from .adam import PenaltySteps
from .engine import PenaltyEngine

# learning_rate="by_layer": for a tensor with one input, and where a single layer is searched.
_RATE_OF_ONE_INPUT = 0.1
_RATE_OF_ONE_LAYER = 0.005
# The size of the first displacement of an untargeted search, relative to the weights.
_PERTURBATION = 1e-3
# What "auto" means for classes, and for real-valued outputs.
_AUTO: dict[str, tuple[Any, Any]] = {
    "learning_rate": ("by_layer", 2e-2),
    "penalty": (6.0, 0.3),
    "penalty_growth": (1.9, 2.2),
    "adam_epsilon": (0.1, 1e-8),
    "sampling": ("trajectory", "profile"),
}
_WORD = StrOptions({"auto"})
# Training samples that the loss of a found model is measured on.
_MAX_EVALUATION_ROWS = 1024
# Of classifiers and of regressors: the best one to rank samples, and that of the posterior.
_TEMPERATURES = (10.0, 1.0)


@arguments
class PenaltySearch(BaseEstimator):
    """Adversarial model search by gradients and a growing penalty: the paper's algorithm.

    A search minimises the loss of its target at the sample plus a penalty times the loss of a
    mini-batch of the training data. The penalty grows and the step size falls: first the model is
    led away from the given one, then it has to explain the training data again. Pass it as
    ``search`` of QUAM; its arguments are tuned as ``search__n_steps``, ....

    Parameters
    ----------
    n_steps : int, default=100
        Steps of each search.
    learning_rate : float, "by_layer" or "auto", default="auto"
        Step size at the beginning. "by_layer" is 0.1 over the square root of the number of inputs
        of each layer, and 0.005 where a single layer is searched. "auto" is "by_layer" for
        classifiers and 0.02 for regressors.
    learning_rate_decay : float, default=1.4
        Divides the step size every `penalty_every` steps.
    penalty : float or "auto", default="auto"
        Weight of the training loss (c_0 in the paper) at the beginning. The loss of a target is the
        cross-entropy of its class, or minus the shift of the mean in standard deviations. "auto" is
        6 for classifiers and 0.3 for regressors.
    penalty_growth : float or "auto", default="auto"
        Multiplies the weight every `penalty_every` steps (eta in the paper). "auto" is 1.9 for
        classifiers and 2.2 for regressors.
    penalty_every : int, default=7
        Steps between two changes of step size and penalty.
    batch_size : int, default=256
        Training samples of a step; the same for all searches. The loss increase of a model is
        the mean over the last `penalty_every` steps, or over fewer if these see all samples.
    adam_epsilon : float or "auto", default="auto"
        Epsilon of the Adam steps: a parameter whose gradient is well below it hardly moves. "auto"
        is 0.1 for classifiers and 1e-8 for regressors.
    weight_decay : float, default=0.0
        Pull of the searched parameters towards zero.
    max_change : float, default=None
        Bound on the Euclidean norm of the change of the searched parameters (delta in the paper).
    tol : float, default=1e-3
        A search ends early when its model is feasible and its prediction (probabilities, or means
        in standard deviations) has changed by less than this within `penalty_every` steps, twice in
        a row. 0 never ends early.
    slack : float, default=10.0
        Largest cost of a feasible model (gamma in the paper), in nats of the whole training set.
    targets : "auto", "all", int or "untargeted", default="auto"
        A search for each class, for the N most probable ones, or a single search that raises the
        divergence itself, which finds less. "auto" is all classes if there are at most 20, else the
        most probable one and its ten likeliest rivals. Regressors have two searches for each
        output, up and down, or a single "untargeted" one.
    sampling : {"auto", "trajectory", "best", "gaussian", "profile"}, default="auto"
        Which models count, besides the given network. "trajectory": all that a search meets.
        "best": the most divergent feasible one of each search. "gaussian": this one and draws
        around it. "profile", for regressors only: for every shift of the mean the cheapest one,
        which has the scale of a posterior; the others only rank samples. "auto" is "trajectory" for
        classifiers and "profile" for regressors.

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

    n_steps: int = integer(default=100)
    learning_rate: float | str = allowed(
        Interval(Real, 0, None, closed="neither"),
        StrOptions({"auto", "by_layer"}),
        default="auto",
    )
    learning_rate_decay: float = allowed(Interval(Real, 1, None, closed="left"), default=1.4)
    penalty: float | str = allowed(Interval(Real, 0, None, closed="left"), _WORD, default="auto")
    penalty_growth: float | str = allowed(
        Interval(Real, 1, None, closed="left"), _WORD, default="auto"
    )
    penalty_every: int = integer(default=7)
    batch_size: int = integer(default=256)
    adam_epsilon: float | str = allowed(
        Interval(Real, 0, None, closed="neither"), _WORD, default="auto"
    )
    weight_decay: float = real(default=0.0, closed="left")
    max_change: float | None = allowed(
        Interval(Real, 0, None, closed="neither"), None, default=None
    )
    tol: float = real(default=1e-3, closed="left")
    slack: float = real(default=10.0, closed="left")
    targets: Any = allowed(*TARGETS, StrOptions({"untargeted"}), default="auto")
    sampling: str = allowed(
        StrOptions({"auto", "trajectory", "best", "gaussian", "profile"}), default="auto"
    )

    def _engine(
        self,
        problem: Problem,
        temperature: float | None,
        generator: torch.Generator,
        limits: Limits,  # noqa: ARG002
    ) -> PenaltyEngine:
        """Return the engine of the searches, with mini-batches that a generator draws."""
        n_rows, task = len(problem.training), int(not problem.is_classification)
        chosen = self.get_params()
        for name, values in _AUTO.items():
            chosen[name] = values[task] if chosen[name] == "auto" else chosen[name]
        if chosen["sampling"] == "profile" and not task:
            raise ValueError("sampling='profile' of penalty search is for regressors only.")
        by_layer = chosen["learning_rate"] == "by_layer"
        if by_layer:
            chosen["learning_rate"] = _RATE_OF_ONE_INPUT
        batches = draw_batches(n_rows, self.batch_size, self.n_steps + 1, generator)
        evaluation = torch.randperm(n_rows, generator=generator)[:_MAX_EVALUATION_ROWS]
        device = problem.training.target.device
        steps = PenaltySteps(
            **{f.name: chosen[f.name] for f in fields(PenaltySteps) if f.name in chosen},
            batches=batches.to(device),
            scale=_scale_of_layers(problem) if by_layer else {},
            # Until every sample has been seen, or the schedule has changed.
            window=min(self.penalty_every, -(-n_rows // self.batch_size)),
            perturbation=_PERTURBATION if problem.targets.untargeted else 0.0,
        )
        # The cost of a search itself has no prior.
        precision = problem.default_precision() or DEFAULT_PRECISION
        if temperature is None:
            temperature = _TEMPERATURES[task]
        return PenaltyEngine(
            steps, temperature, precision, chosen["sampling"], evaluation.to(device)
        )


def _scale_of_layers(problem: Problem) -> dict[str, float]:
    """Return factors with which a step changes the outputs of each layer about equally."""
    free = problem.network.free
    # A model that is linear in the searched parameters is easily overshot.
    if len({name.rpartition(".")[0] for name in free.names}) == 1:
        scale = _RATE_OF_ONE_LAYER / _RATE_OF_ONE_INPUT
        return dict.fromkeys(free.start, scale)
    return {name: number**-0.5 for name, number in free.n_inputs.items()}
