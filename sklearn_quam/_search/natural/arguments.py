"""Natural and linear search as users describe them."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import torch
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from ..._arguments import allowed, arguments, integer, real
from ..._curvature.influence import make_influence
from ..._curvature.preconditioner import LayerInverse, Preconditioner, make_preconditioner
from ..._network.executors import ChainExecutor
from ..._network.limits import Limits, batches, slices
from ..._network.predictions import Categorical
from ...exceptions import CurvatureError, NetworkError
from ..problem import Problem
from ..targets import TARGETS
from .chain import ChainSteps, HeadSteps, inputs_of_layers, returns_logits
from .engine import NaturalEngine
from .gaussian import MANY_CLASSES, gaussian_head
from .general import GeneralSteps, general_steps, is_linear_throughout
from .linear import LinearSteps

# Steps that make each model of a regression cheaper, unless it is linear.
_N_CORRECTIONS = 8
# Training samples on which costs are measured: several layers bend further than one. Networks that
# are no chains take longer for other things, and less can be said about which samples matter.
_N_ROWS_OF_HEAD, _N_ROWS_OF_CHAIN, _N_ROWS = 16, 64, 128
# How unsure a network counts as being of a training sample at least.
_LEAST_UNSURE = 0.01
_ROWS_AT_ONCE = 4096
# Log-odds whose rounding in single precision is too coarse for what small changes cost.
_LARGE_LOG_ODDS = 100.0
# Of classifiers and of regressors: the best one to rank samples, and that of the posterior.
_TEMPERATURES = (20.0, 1.0)
_AUTO = StrOptions({"auto"})
# Largest cost of a model that explains the training data, in nats.
SLACK = 10.0


@arguments
class _CurvatureSearch(BaseEstimator):
    """Searches that follow the inverse curvature of the training loss."""

    goal: float = real(default=32.0)
    prior_precision: float | str = allowed(
        Interval(Real, 0, None, closed="neither"), _AUTO, default="auto"
    )
    targets: Any = allowed(*TARGETS, default="auto")

    def _engine(
        self,
        problem: Problem,
        temperature: float | None,
        generator: torch.Generator,
        limits: Limits,
    ) -> NaturalEngine:
        """Return the engine of the searches."""
        is_auto, gaussian = self.prior_precision == "auto", None
        try:
            inverse = make_preconditioner(
                problem.network,
                problem.training,
                problem.original_on_training,
                limits,
                precision=problem.default_precision() if is_auto else float(self.prior_precision),
                # Intervals of values are to have the width that the prior gives them.
                factored=problem.is_classification,
                n_training_rows=problem.n_training_rows,
                generator=generator,
            )
            inverses = _inverses_of_chain(problem, inverse)
            head = _head(problem, inverses)
            steps: Any
            if isinstance(self, NaturalSearch) and (
                head is None or len(head.outputs) <= MANY_CLASSES
            ):
                steps = _steps(self, problem, inverse, inverses, generator)
            else:
                steps = LinearSteps(self.goal, inverse, inverses)
                gaussian = None if head is None else gaussian_head(head, generator)
        except NetworkError as error:
            raise CurvatureError(str(error.__cause__ or error)) from error
        if temperature is None and gaussian is not None:
            temperature = gaussian.temperature(problem)
        temperature = temperature or _TEMPERATURES[not problem.is_classification]
        return NaturalEngine(steps, temperature, SLACK, inverse, gaussian)


@arguments
class NaturalSearch(_CurvatureSearch):
    """Adversarial model search by natural gradients: the default of QUAM.

    For every sample and class, the network is changed step by step until it is sure of the class.
    Each step changes the training loss the least, to first order, for an equal share of the
    distance: the gradient of the class's log-odds at the sample, times the inverse curvature of
    the training loss, which ``fit`` measures once. The cost of a model is the sum of
    KL(given || model) over the training data plus half the prior precision times the squared
    distance of the weights, in nats. It is measured on the most influential training samples and
    on a weighted sample of the others. A single linear layer that returns logits of more than 64
    classes is not searched: its logits have a Gaussian posterior, as in `LinearSearch`. Pass it
    as ``search`` of QUAM; its arguments are tuned as ``search__n_rows``, ....

    Parameters
    ----------
    goal : float, default=32.0
        Log-odds of the class that a search goes to. Regressors go to five standard deviations that
        the mean has in a linear model, whatever this says.
    prior_precision : float or "auto", default="auto"
        Precision of a Gaussian prior around the given network. "auto" is 0.0003 * n_classes ** 1.5
        times the number of searched parameters for each training sample (at most 10); for
        regressors it is the precision of the largest marginal likelihood.
    targets : "auto", "all" or int, default="auto"
        A search for each class, or for the N most probable ones. "auto" is all classes if there are
        at most 20, else the most probable one and its ten likeliest rivals. Regressors have two
        searches for each output, up and down.
    n_steps : int, default=5
        Steps of each search. A search ends early when its model weighs less than exp(-12).
    n_corrections : int or "auto", default="auto"
        Steps after each of these that make the model cheaper without a change of its target's
        score. "auto" is 0 for classifiers, and 8 for regressors that are no linear models.
    n_rows : int or "auto", default="auto"
        Training samples on which the cost of a model is measured: three quarters are the most
        influential ones, the rest is drawn from all others. "auto" is 64 where linear layers at
        the end of a network are searched, 16 where it is a single one (its cost is known to second
        order for all training samples), and 128 elsewhere.

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

    n_steps: int = integer(default=5)
    n_corrections: int | str = allowed(
        Interval(Integral, 0, None, closed="left"), _AUTO, default="auto"
    )
    n_rows: int | str = allowed(Interval(Integral, 1, None, closed="left"), _AUTO, default="auto")

    def _needs_double(self, on_training: Any) -> bool:
        """Return whether rounding would show: by corrections, or of large log-odds."""
        if not isinstance(on_training, Categorical):
            return self.n_corrections != 0
        if self.n_corrections not in ("auto", 0):
            return True
        return bool((on_training.log_proba < -_LARGE_LOG_ODDS).any())


@arguments
class LinearSearch(_CurvatureSearch):
    """Adversarial models in closed form: the network taken as linear in its parameters.

    A rival class costs half the squared distance of its log-odds over their variance, which comes
    from the inverse curvature of the training loss. No training sample is looked at, and nothing is
    searched: much faster than `NaturalSearch`, and less exact. It is the default of regressors,
    whose means then have a Gaussian posterior. Pass it as ``search`` of QUAM.

    Parameters
    ----------
    goal : float, default=32.0
        Log-odds of the class up to which models count; see `NaturalSearch`.
    prior_precision : float or "auto", default="auto"
        Precision of a Gaussian prior around the given network; see `NaturalSearch`.
    targets : "auto", "all" or int, default="auto"
        Which classes are rivals; see `NaturalSearch`.

    See Also
    --------
    NaturalSearch : Follows the network where it is not linear.

    Examples
    --------
    >>> from sklearn_quam import LinearSearch, QUAMClassifier
    >>> QUAMClassifier(search=LinearSearch(prior_precision=0.1)).search
    LinearSearch(prior_precision=0.1)
    """


def _inverses_of_chain(problem: Problem, inverse: Preconditioner) -> list[Any] | None:
    """Return the inverse of each layer, if the searched parameters are a chain of linear layers."""
    executor, free = problem.network.executor, problem.network.free
    if not isinstance(executor, ChainExecutor) or free.updates:
        return None
    names, layers, _ = executor.steps
    needed = [weight for weight, _ in names]
    biases = [bias for (_, bias), one in zip(names, layers, strict=True) if one.bias is not None]
    if sorted(needed + biases) != sorted(free.start):
        return None
    found = [inverse.of_layer(name) for name in needed]
    return None if any(block is None for block in found) else found


def _head(problem: Problem, inverses: list[Any] | None) -> LayerInverse | None:
    """Return the inverse of the single searched layer, if its outputs are logits."""
    if inverses is None or len(inverses) > 1 or not isinstance(inverses[0], LayerInverse):
        return None
    return inverses[0] if returns_logits(problem.network.executor) else None


def _steps(
    search: NaturalSearch,
    problem: Problem,
    inverse: Preconditioner,
    inverses: list[Any] | None,
    generator: torch.Generator,
) -> HeadSteps | ChainSteps | GeneralSteps:
    """Return how searches move: in a head, through a chain, or through any network."""
    start = float(torch.rand((), generator=generator))
    sensitivity = _sensitivity(problem)
    is_classification, n_corrections = problem.is_classification, search.n_corrections
    if isinstance(n_corrections, str):
        # The path of a linear regression is the cheapest one.
        is_linear = inverses is not None and len(inverses) == 1
        n_corrections = 0 if is_classification or is_linear else _N_CORRECTIONS

    def common(auto: int) -> tuple[int, float, int, float]:
        # Steps, goal, training samples on which costs are measured, precision
        n_rows = auto if search.n_rows == "auto" else int(search.n_rows)
        n_rows = min(n_rows, len(problem.training))
        return search.n_steps, search.goal, n_rows, inverse.precision

    # Corrections need gradients of the cost, which chains do without.
    if inverses is None or n_corrections or not is_classification:
        # The same function has the same numbers, however it is written.
        is_chain = is_classification and is_linear_throughout(problem, inverse)
        shared = common(_N_ROWS_OF_CHAIN if is_chain else _N_ROWS)
        return general_steps(problem, inverse, n_corrections, start, sensitivity, shared)
    features = _features_of_chain(problem)
    inputs = [one.inputs for one in inverses]
    if _head(problem, inverses) is not None:
        # Samples that are not moved as far count in the quadratic form alone: none is drawn.
        influence = make_influence(features, inputs, sensitivity, start, share=0.0)
        return HeadSteps(*common(_N_ROWS_OF_HEAD), influence, inverses)
    influence = make_influence(features, inputs, sensitivity, start)
    return ChainSteps(*common(_N_ROWS_OF_CHAIN), influence, inverses)


def _features_of_chain(problem: Problem) -> list[Tensor]:
    """Return the inputs of each layer for all training samples."""
    executor: Any = problem.network.executor
    layers, (rows,) = executor.chain.layers, problem.training.rows
    # The first ones are the samples at the cut themselves: not another copy of them.
    widths = [layer.weight.shape[1] for layer in layers[1:]]
    features = [rows, *(rows.new_empty(len(rows), width) for width in widths)]
    for chunk in batches(rows):
        values = inputs_of_layers(layers, rows[chunk])
        for whole, part in zip(features[1:], values[1:], strict=True):
            whole[chunk] = part
    return features


def _sensitivity(problem: Problem) -> Tensor | None:
    """Return the approximate cost of an equal change of the outputs of each training sample.

    For classes it is the Gini impurity of the prediction: a small change of the logits of a
    confident prediction costs next to nothing. A large one does cost, so that none counts as free.
    """
    given = problem.original_on_training
    if not isinstance(given, Categorical):
        return problem.training.weight
    found = given.log_proba.new_empty(len(given.log_proba))
    for rows in slices(len(found), _ROWS_AT_ONCE):
        found[rows] = 1 - given.log_proba[rows].exp().square().sum(dim=-1) + _LEAST_UNSURE
    return problem.training.weighted(found, slice(None))
