"""The frozen object that `fit` builds: it answers for samples, and can be stored and copied.

It holds the given network and the plausible models of a method, and nothing of the estimator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from .._network.inputs.rows import Inputs, StoredRows
from .._network.limits import Limits, batches, slices
from .._network.outputs import is_out_of_memory
from .._network.predictions import Prediction
from .._network.reference import ReferenceModel
from ..exceptions import NetworkError
from .accumulate import Posterior, make_posterior
from .results import Diagnostics, RowResults, join
from .training_range import TrainingRange, results_beyond_range


@dataclass(frozen=True)
class Question:
    """The measures that are wanted for samples, and the limits of computing them."""

    # "given", "expected" or "pairwise"
    setting: str
    # "entropy", "variance", "brier" or "zero_one"
    measure: str
    limits: Limits
    # Whether what all models predict together is wanted, too
    predictive: bool = False
    # Whether the prediction is the given network's, whatever the setting
    given_predicts: bool = False


class Models(Protocol):
    """The plausible models of a fitted method: all in which methods differ.

    Models that begin behind a cut of the network have a function ``given``: it returns the values
    of samples at the cut, which ``sample`` gets, and what the given network predicts for them, so
    that the part before the cut runs once. Those that can do with less memory have
    ``smaller_limits``, models that threads cannot share have ``for_thread``.
    """

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:
        """Return how many samples of this kind are worked on together."""

    def sample(
        self, inputs: Inputs, original: Prediction, posterior: Posterior, question: Question
    ) -> dict[str, np.ndarray]:
        """Hand sampled models to the accumulator, and return the method's own diagnostics.

        Its ``update`` takes predictions (n_models, n_rows) and their log weights, as often as
        needed. ``original`` is what the given network predicts.
        """


AnyModels = TypeVar("AnyModels", bound=Any)


@dataclass(frozen=True)
class FittedMethod(Generic[AnyModels]):
    """A method, fitted: the given network, and the models that are as plausible."""

    reference: ReferenceModel
    models: AnyModels
    known: TrainingRange
    # Columns of diagnostics, besides those of all methods
    diagnostics: tuple[str, ...] = ()
    # The same where network, training data, arguments and seed are
    identity: str = ""

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self.reference.device

    def for_thread(self) -> FittedMethod:
        """Return one that may run beside this one in another thread."""
        if not hasattr(self.models, "for_thread"):
            return self
        return replace(self, models=self.models.for_thread())

    def chunks(self, inputs: Any, limits: Limits) -> list[slice]:
        """Return the samples that are worked on together; every worker gets some."""
        for_each_worker = -(-len(inputs) // limits.n_workers)
        size = min(self.models.rows_at_once(inputs, limits), for_each_worker)
        return list(slices(len(inputs), size))

    def results_of_chunk(self, inputs: Any, question: Question) -> tuple[RowResults, Limits]:
        """Return the results of samples, in smaller pieces where memory runs out or some fail.

        With the limits that were small enough, so that the next chunk need not try again.
        """
        limits, parts = question.limits, []
        size = self.models.rows_at_once(inputs, limits)
        pieces = [inputs[rows] for rows in slices(len(inputs), size)][::-1]
        while pieces:
            piece = pieces.pop()
            try:
                parts.append(self.results(piece, replace(question, limits=limits)))
                continue
            except NetworkError as error:
                if len(piece) == 1:
                    parts.append(self._failed(error, question))
                    continue
            except (MemoryError, RuntimeError) as error:
                if not (is_out_of_memory(error) and hasattr(self.models, "smaller_limits")):
                    raise
                smaller = self.models.smaller_limits(len(piece), limits)
                if smaller is None:
                    raise
                limits = smaller
            middle = len(piece) // 2
            pieces += [half for half in (piece[middle:], piece[:middle]) if len(half)]
        return join(parts), limits

    def results(self, inputs: Any, question: Question) -> RowResults:
        """Return what the models predict for samples, all of them together.

        Samples beyond the range of the training data are answered without them.
        """
        rows, original, beyond = self.checked(inputs)
        parts = []
        if not beyond.all():
            within = ~beyond
            index = torch.as_tensor(np.flatnonzero(within), device=original.device)
            results, saturated = self._sampled(rows[index], original[index], question)
            parts.append(results.some(~saturated))
            beyond[within] = saturated
        if beyond.any():
            index = torch.as_tensor(np.flatnonzero(beyond), device=original.device)
            parts.append(results_beyond_range(original[index], question, self.diagnostics))
        return join(parts).some(np.argsort(np.argsort(beyond, kind="stable")))

    def _sampled(
        self, rows: Any, original: Prediction, question: Question
    ) -> tuple[RowResults, np.ndarray]:
        """Return the results of samples within the range, and for which numbers saturate."""
        setting, has_error = question.setting, "standard_error" in self.diagnostics
        posterior = make_posterior(
            original,
            setting,
            question.measure,
            predictive=question.predictive,
            standard_error=has_error,
        )
        found = self.models.sample(rows, original, posterior, question)
        columns = {"effective_sample_size": posterior.effective_sample_size(), **found}
        columns["n_diverged"] = posterior.n_diverged() + found.get("n_diverged", 0)
        columns["error"] = np.full(len(original), None)
        if has_error and "standard_error" not in found:
            columns["standard_error"] = posterior.standard_error()
        predicted = posterior.given if question.given_predicts else posterior.prediction()
        results = RowResults(
            predicted.to_array(),
            posterior.uncertainty(),
            Diagnostics(**columns),
            posterior.variance(),
            posterior.predictive() if question.predictive else None,
        )
        agree = posterior.all_agree()
        return results, self.known.saturated(results, agree, original, setting, question.measure)

    def _failed(self, error: NetworkError, question: Question) -> RowResults:
        """Return the results of a sample for which the network raises an error."""
        results = results_beyond_range(self.known.constant, question, self.diagnostics)
        cause = error.__cause__ or error
        words = np.array([f"{type(cause).__name__}: {cause}"], dtype=object)
        return results._replace(diagnostics=replace(results.diagnostics, error=words))

    def given(self, inputs: Any) -> tuple[Any, Prediction]:
        """Return samples as the models take them, and what the given network predicts."""
        if hasattr(self.models, "given"):
            return self.models.given(inputs)
        return inputs, self.reference.predict(_own(inputs))

    def checked(self, inputs: Any) -> tuple[Any, Any, np.ndarray]:
        """Return samples, finite predictions, and which samples are beyond the range."""
        rows, original = self.given(inputs)
        return rows, *self.known.checked(_own(inputs), original)

    def seen(self, inputs: Any, start: int = 0) -> tuple[Any, Any, np.ndarray]:
        """Return what `checked` does; errors name the sample, of which the first is ``start``."""
        return _naming_row(self.checked, inputs, start)

    def predict(self, inputs: StoredRows) -> tuple[Prediction, np.ndarray]:
        """Return what the given network predicts, and which samples are beyond the range."""

        def given(rows: Inputs) -> tuple[Prediction, np.ndarray]:
            return self.known.checked(rows, self.reference.predict(rows))

        found = [_naming_row(given, inputs[rows], rows.start) for rows in batches(inputs)]
        predictions, beyond = zip(*found, strict=True)
        return self.reference.likelihood.kind.cat(predictions), np.concatenate(beyond)


def _own(inputs: Any) -> Any:
    """Return samples as the given network takes them: ensembles have some for each network."""
    return getattr(inputs, "reference", inputs)


def _naming_row(run: Callable[[Any], Any], inputs: Any, start: int) -> Any:
    """Run a network for samples; an error names the first one that it is about."""
    try:
        return run(inputs)
    except NetworkError as error:
        if len(inputs) == 1:
            raise NetworkError(f"The network cannot process row {start} of X: {error}") from error
        for row in range(len(inputs)):
            _naming_row(run, inputs[row : row + 1], start + row)
        raise
