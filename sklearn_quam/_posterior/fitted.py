"""What `fit` builds: one frozen object that answers for rows.

It holds the given network and the plausible models of a method, and nothing of the estimator. It
can be stored, copied and sent to workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .._network.limits import Limits, slices
from .._network.predictions import Prediction
from .._network.reference import ReferenceModel
from .accumulate import Posterior, make_posterior
from .known import KnownRange
from .lost import guarded
from .results import Diagnostics, RowResults, join


@dataclass(frozen=True)
class Question:
    """What is asked about rows, and what may be used to answer it.

    Parameters
    ----------
    setting : {"given", "expected"}
        Whose prediction is judged.
    measure : {"entropy", "variance"}
        What uncertainties are measured as.
    limits : Limits
        Memory and workers.
    """

    setting: str
    measure: str
    limits: Limits


class Models(Protocol):
    """The plausible models of a fitted method: all in which methods differ."""

    def rows_at_once(self, inputs: Tensor, limits: Limits) -> int:
        """Return how many rows of this kind are worked on together."""

    def sample(
        self, inputs: Tensor, original: Prediction, posterior: Posterior, question: Question
    ) -> dict[str, np.ndarray]:
        """Hand sampled models to the accumulator.

        Parameters
        ----------
        inputs : Tensor of shape (n_rows, ...)
            Rows as the network takes them.
        original : Prediction
            What the given network predicts for them.
        posterior : Posterior
            Its ``update`` takes predictions (n_models, n_rows) and their log weights
            (n_models, n_rows), as often as needed.
        question : Question
            What is asked.

        Returns
        -------
        dict of ndarray
            Columns of the method's diagnostics, besides those that all methods have.
        """


@dataclass(frozen=True)
class FittedMethod:
    """A method, fitted: the given network, and the models that are as plausible.

    Parameters
    ----------
    reference : ReferenceModel
        The given network.
    models : Models
        The plausible models.
    known : KnownRange
        How far the numbers of the training data go.
    diagnostics : type
        The kind of diagnostics that the method has.
    """

    reference: ReferenceModel
    models: Any
    known: KnownRange
    diagnostics: type[Diagnostics] = Diagnostics

    def for_thread(self) -> FittedMethod:
        """Return one that may run beside this one in another thread."""
        if not hasattr(self.models, "for_thread"):
            return self
        return replace(self, models=self.models.for_thread())

    def chunks(self, inputs: Tensor, limits: Limits) -> list[slice]:
        """Return the rows that are worked on together."""
        size = self.models.rows_at_once(inputs, limits)
        # Every worker should get something to do.
        size = min(size, -(-len(inputs) // limits.n_workers))
        return list(slices(len(inputs), max(1, size)))

    def results(self, inputs: Tensor, question: Question) -> RowResults:
        """Return what the models say about rows, all of them together."""

        def ask(rows: Any, original: Prediction) -> RowResults:
            posterior = make_posterior(original, question.measure)
            found = self.models.sample(inputs[rows], original, posterior, question)
            return summarise(posterior, question, self.diagnostics, found)

        original = self.reference.predict(inputs)
        return guarded(self.known, inputs, original, question.measure, self.diagnostics, ask)

    def predict(self, inputs: Tensor) -> tuple[Prediction, np.ndarray]:
        """Return what the given network predicts for rows, and which it cannot compute with."""
        prediction, infinite = self.known.in_place_of_infinite(self.reference.predict(inputs))
        return prediction, (self.known.beyond(inputs, prediction) | infinite).cpu().numpy()

    def results_of_chunks(
        self, chunks: Iterable[Tensor], question: Question
    ) -> Iterator[RowResults]:
        """Yield the results of one chunk of rows after the other."""
        for inputs in chunks:
            results, question = self._within_memory(inputs, question)
            yield results

    def _within_memory(self, inputs: Tensor, question: Question) -> tuple[RowResults, Question]:
        """Work on rows together, or on fewer where an accelerator runs out of memory.

        The question comes back with limits that were found to be small enough.
        """
        try:
            return self.results(inputs, question), question
        except torch.OutOfMemoryError:
            smaller = getattr(self.models, "smaller_limits", lambda _: None)(question.limits)
            if smaller is None:
                raise
        question = replace(question, limits=smaller)
        parts = []
        for half in inputs.tensor_split(2):
            if len(half):
                results, question = self._within_memory(half, question)
                parts.append(results)
        return join(parts), question


def summarise(
    posterior: Posterior,
    question: Question,
    diagnostics: type[Diagnostics],
    found: dict[str, np.ndarray],
) -> RowResults:
    """Return what the accumulated models say, with what the method has found out besides."""
    columns = {
        "standard_error": posterior.standard_error(question.setting),
        "effective_sample_size": posterior.effective_sample_size(),
        **found,
        "n_diverged": posterior.n_diverged() + found.get("n_diverged", 0),
    }
    return RowResults(
        posterior.prediction(question.setting).to_array(),
        posterior.uncertainty(question.setting),
        diagnostics(**columns),
        posterior.variance(question.setting),
    )
