"""What users say about natural and linear search."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from ..._curvature.preconditioner import make_preconditioner
from ..._network.executors import ChainExecutor
from ..._network.free import FreeNetwork
from ..._network.limits import Limits, slices
from ..._network.predictions import Categorical
from ...exceptions import CurvatureError, NetworkError
from ..problem import Problem
from .chains import ChainSteps, chain_steps
from .general import general_steps
from .linear import LinearSteps
from .path import NaturalSteps, default_precision

# What "auto" means for classes, and for real-valued outputs.
_AUTO: dict[str, tuple[Any, Any]] = {"n_corrections": (0, 8)}
# Training rows that tell what models cost: several layers bend further than one. Other networks
# than chains take longer for other things, and less can be said about which rows matter.
_N_ROWS_OF_HEAD, _N_ROWS_OF_CHAIN, _N_ROWS = 16, 32, 128
# How unsure a network counts as being of a training row at least.
_LEAST_UNSURE = 0.01
_ROWS_AT_ONCE = 4096
# Log-odds whose rounding in single precision is too coarse for what small changes cost.
_LARGE_LOG_ODDS = 100.0


class NaturalSearch(BaseEstimator):
    """Adversarial model search by natural gradients: the default of QUAM.

    For every row and class, the network is changed step by step until it is sure of the class. Each
    step is the change that costs the training data the least, to first order, for an equal share of
    the way: the gradient of the class's log-odds at the one row, times the inverse curvature of the
    training loss. The curvature (Kronecker factors of each layer) is measured once, by ``fit``; no
    step needs a gradient of the training loss, a learning rate or a schedule. What each model on
    the way costs is measured on the training rows where it is likely to cost most, which are those
    that it moves and that the network is unsure of, and on a weighted sample of the others. Pass
    it as ``search`` of QUAM; its arguments are tuned as ``search__n_rows``, ....

    Parameters
    ----------
    n_steps : int, default=5
        Steps of each search. More of them follow the way more closely.
    n_corrections : int or "auto", default="auto"
        Steps after each of these that make the model cheaper without a change of its target's
        score: closer to the cheapest model there is, and slower. "auto" is 0 for classifiers, whose
        rows are ranked as well without, and 8 for regressors that are no linear models.
    goal : float, default=32.0
        Log-odds of the class that a search goes to. Regressors go to five standard deviations that
        the mean has in a linear model, whatever this says.
    damping : float or "auto", default="auto"
        What is added to the curvature of the whole training data: the precision of a prior around
        the given network. The smaller it is, the further searches go along directions that the
        training data say nothing about, and the less these cost. "auto" is 0.01 for each class, and
        0.1 for regressors.
    n_rows : int or "auto", default="auto"
        Training rows that tell what the models for a row cost: three quarters of them those that
        are likely to cost most, the rest drawn from all others. All are taken if there are no
        more. "auto" is 32 where linear layers at the end of a network are searched, 16 where it
        is a single one (its cost is known to second order for all training rows, and these rows
        tell the rest), and 128 elsewhere.

    See Also
    --------
    LinearSearch : The first step alone, in closed form.
    PenaltySearch : The paper's algorithm.

    Examples
    --------
    >>> from sklearn_quam import NaturalSearch, QUAMClassifier
    >>> est = QUAMClassifier(search=NaturalSearch(n_rows=64))
    >>> est.set_params(search__n_steps=10).search
    NaturalSearch(n_rows=64, n_steps=10)
    """

    _parameter_constraints: ClassVar[dict] = {
        "n_steps": [Interval(Integral, 1, None, closed="left")],
        "n_corrections": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "goal": [Interval(Real, 0, None, closed="neither")],
        "damping": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "n_rows": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    }

    def __init__(
        self,
        *,
        n_steps: int = 5,
        n_corrections: int | str = "auto",
        goal: float = 32.0,
        damping: float | str = "auto",
        n_rows: int | str = "auto",
    ) -> None:
        self.n_steps = n_steps
        self.n_corrections = n_corrections
        self.goal = goal
        self.damping = damping
        self.n_rows = n_rows

    def _needs_double(self, on_training: Any) -> bool:
        """Tell whether rounding would show: corrections amplify it, and large log-odds have it."""
        if not isinstance(on_training, Categorical):
            return bool(_chosen(self, "n_corrections", 1))
        if _chosen(self, "n_corrections", 0):
            return True
        return bool((on_training.log_proba < -_LARGE_LOG_ODDS).any())

    def _steps(self, problem: Problem, generator: torch.Generator, limits: Limits) -> NaturalSteps:
        """Return the steps of a search."""
        precision = prior_precision(self, problem)
        return _natural_steps(self, problem, generator, limits, precision)[0]


class LinearSearch(BaseEstimator):
    """Adversarial models in closed form: the network taken as linear in its parameters.

    A rival class costs half the squared distance of its log-odds over their variance, which comes
    from the inverse curvature of the training loss. No training row is looked at, and nothing is
    searched: much faster than `NaturalSearch`, and less exact. It is the default of regressors,
    whose means then have a Gaussian posterior. Pass it as ``search`` of QUAM.

    Parameters
    ----------
    goal : float, default=32.0
        Log-odds of the class up to which models count; see `NaturalSearch`.
    damping : float or "auto", default="auto"
        What is added to the curvature of the whole training data; see `NaturalSearch`. "auto" is
        0.01 for each class, and for regressors the precision that makes the training data most
        likely (the marginal likelihood), so that bands have about the right width whatever the
        size of the network.

    See Also
    --------
    NaturalSearch : Follows the network where it is not linear.

    Examples
    --------
    >>> from sklearn_quam import LinearSearch, QUAMClassifier
    >>> QUAMClassifier(search=LinearSearch(damping=0.1)).search
    LinearSearch(damping=0.1)
    """

    _parameter_constraints: ClassVar[dict] = {
        "goal": NaturalSearch._parameter_constraints["goal"],
        "damping": NaturalSearch._parameter_constraints["damping"],
    }

    def __init__(self, *, goal: float = 32.0, damping: float | str = "auto") -> None:
        self.goal = goal
        self.damping = damping

    def _steps(self, problem: Problem, generator: torch.Generator, limits: Limits) -> LinearSteps:
        """Return the steps of a search."""
        precision = prior_precision(self, problem)
        search = NaturalSearch(goal=self.goal, n_corrections=0)
        path: Any
        # The bands of values are to have the width that the prior gives them.
        factored = _task(problem) == 0
        path, preconditioner = _natural_steps(
            search, problem, generator, limits, precision, factored
        )
        # No training row is looked at.
        path = replace(path, influence=None)
        return LinearSteps(path, preconditioner, problem.n_training_rows)


def is_linear(network: FreeNetwork) -> bool:
    """Tell whether all that is searched is a single linear layer."""
    executor = network.executor
    return isinstance(executor, ChainExecutor) and len(executor.steps[1]) == 1


def prior_precision(search: Any, problem: Problem) -> float | None:
    """Return the precision of the prior around the given network; None is the most likely one."""
    if search.damping != "auto":
        return float(search.damping)
    if isinstance(search, LinearSearch) and _task(problem):
        return None
    return default_precision(problem)


def _task(problem: Problem) -> int:
    """Return 0 for classes and 1 for real-valued outputs."""
    return int(problem.network.executor.likelihood.kind is not Categorical)


def _chosen(search: NaturalSearch, name: str, task: int) -> Any:
    """Return an argument, or what "auto" means for it."""
    value = getattr(search, name)
    return _AUTO[name][task] if value == "auto" else value


def _sensitivity(weight: Tensor | None, original: Any) -> Tensor | None:
    """Return about what it costs to move the outputs for each training row by the same.

    For classes that is how unsure the given network is: a small change of the logits for a row that
    it is sure of costs next to nothing. A large one does cost, so that no row counts as free.
    """
    if not isinstance(original, Categorical):
        return weight
    found = original.log_proba.new_empty(len(original.log_proba))
    for rows in slices(len(found), _ROWS_AT_ONCE):
        found[rows] = 1 - original.log_proba[rows].exp().square().sum(dim=-1) + _LEAST_UNSURE
    return found if weight is None else found * weight


def _natural_steps(
    search: NaturalSearch,
    problem: Problem,
    generator: torch.Generator,
    limits: Limits,
    precision: float | None,
    factored: bool = True,
) -> tuple[NaturalSteps, Any]:
    """Return steps of a search that goes by the curvature, and the inverse of that."""
    try:
        return _measured_steps(search, problem, generator, limits, precision, factored)
    except NetworkError as error:
        raise CurvatureError(str(error.__cause__ or error)) from error


def _measured_steps(
    search: NaturalSearch,
    problem: Problem,
    generator: torch.Generator,
    limits: Limits,
    precision: float | None,
    factored: bool = True,
) -> tuple[NaturalSteps, Any]:
    network, training = problem.network, problem.training
    if problem.targets.untargeted:
        raise ValueError(
            "targets='untargeted' has no class or direction to go to, which natural and linear "
            "search need: pass search='penalty', or other targets."
        )
    assert problem.original_on_training is not None
    task = _task(problem)
    n_corrections = _chosen(search, "n_corrections", task)
    preconditioner = make_preconditioner(
        network,
        training,
        problem.original_on_training,
        limits,
        precision=precision,
        factored=factored,
        n_training_rows=problem.n_training_rows,
        generator=generator,
    )
    start = float(torch.rand((), generator=generator))
    wanted: Any = search.n_rows
    if wanted == "auto":
        wanted = _N_ROWS_OF_CHAIN if isinstance(network.executor, ChainExecutor) else _N_ROWS
        wanted = _N_ROWS_OF_HEAD if is_linear(network) and not task else wanted
    n_rows = min(wanted, len(training))
    ways: Any = {"n_steps": search.n_steps, "goal": search.goal, "n_rows": n_rows, "start": start}
    ways["precision"] = precision or 0.0
    ways["sensitivity"] = _sensitivity(training.weight, problem.original_on_training)
    # The path of a linear regression is the cheapest one.
    if is_linear(network) and search.n_corrections == "auto":
        n_corrections = 0
    # Corrections need gradients of what training rows cost, which the chain does without.
    steps: ChainSteps | None = None
    if not n_corrections:
        steps = chain_steps(network, training, preconditioner, **ways)
    if steps is not None:
        return steps, preconditioner
    ways["n_corrections"] = n_corrections
    return general_steps(network, training, preconditioner, **ways), preconditioner
