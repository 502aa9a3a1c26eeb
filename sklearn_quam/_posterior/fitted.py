"""What `fit` builds: one frozen object that answers for rows.

It holds the given network and the plausible models of a method, and nothing of the estimator. It
can be stored, copied and sent to workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
from .known import KnownRange
from .lost import cannot_be_told, results_of_lost
from .results import Diagnostics, KindOfDiagnostics, RowResults, join, merge


@dataclass(frozen=True)
class Question:
    """What is asked about rows, and what may be used to answer it.

    Parameters
    ----------
    setting : {"given", "expected", "pairwise"}
        Whose prediction is judged.
    measure : {"entropy", "variance", "brier", "zero_one"}
        What uncertainties are measured as.
    limits : Limits
        Memory and workers.
    predictive : bool, default=False
        Whether what all models predict together is wanted, too.
    given_predicts : bool, default=False
        Whether the prediction is the given network's, whatever the setting.
    """

    setting: str
    measure: str
    limits: Limits
    predictive: bool = False
    given_predicts: bool = False


class Models(Protocol):
    """The plausible models of a fitted method: all in which methods differ."""

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:
        """Return how many rows of this kind are worked on together."""

    def sample(
        self, inputs: Inputs, original: Prediction, posterior: Posterior, question: Question
    ) -> dict[str, np.ndarray]:
        """Hand sampled models to the accumulator.

        Parameters
        ----------
        inputs : Inputs
            Rows as the network takes them. Models that begin behind a cut of the network have a
            function ``given``, and get what it returns: the values of rows at the cut. It returns
            what the given network predicts for the rows, too, so that the part before the cut runs
            once.
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


AnyModels = TypeVar("AnyModels", bound=Any)


@dataclass(frozen=True)
class FittedMethod(Generic[AnyModels]):
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
    identity : str
        What is the same where network, training data, arguments and seed are.
    """

    reference: ReferenceModel
    models: AnyModels
    known: KnownRange
    diagnostics: KindOfDiagnostics = Diagnostics
    identity: str = ""

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.reference.device

    def for_thread(self) -> FittedMethod:
        """Return one that may run beside this one in another thread."""
        if not hasattr(self.models, "for_thread"):
            return self
        return replace(self, models=self.models.for_thread())

    def chunks(self, inputs: Any, limits: Limits) -> list[slice]:
        """Return the rows that are worked on together."""
        size = self.models.rows_at_once(inputs, limits)
        # Every worker should get something to do.
        size = min(size, -(-len(inputs) // limits.n_workers))
        return list(slices(len(inputs), max(1, size)))

    def results(self, inputs: Any, question: Question) -> RowResults:
        """Return what the models say about rows, all of them together."""
        rows, original = self.given(inputs)
        original, lost = self._guarded(inputs, original)
        if lost.all():
            return self._results_of_lost(original, question)
        asked = original
        if lost.any():
            fine = torch.as_tensor(np.flatnonzero(~lost), device=original.device)
            rows, asked = rows[fine], original[fine]
        posterior = make_posterior(
            asked,
            question.measure,
            setting=question.setting,
            predictive=question.predictive,
            standard_error=issubclass(self.diagnostics, Diagnostics),
        )
        found = self.models.sample(rows, asked, posterior, question)
        results = summarise(posterior, question, self.diagnostics, found)
        agree, how = posterior.all_agree(question.setting), (question.setting, question.measure)
        untold = cannot_be_told(self.known, results, agree, asked, *how)
        lost[~lost] = untold
        if not lost.any():
            return results
        index = torch.as_tensor(np.flatnonzero(lost), device=original.device)
        answers = self._results_of_lost(original[index], question)
        return merge(results, ~untold, answers, lost)

    def given(self, inputs: Any) -> tuple[Any, Prediction]:
        """Return rows as the models take them, and what the given network predicts for them."""
        if hasattr(self.models, "given"):
            return self.models.given(inputs)
        # Ensembles have rows for each of their networks.
        return inputs, self.reference.predict(getattr(inputs, "reference", inputs))

    def _guarded(self, inputs: Any, original: Prediction) -> tuple[Any, np.ndarray]:
        """Return a prediction that is finite, and which rows are beyond the range."""
        prediction, infinite = self.known.in_place_of_infinite(original)
        beyond = self.known.beyond(getattr(inputs, "reference", inputs), prediction)
        return prediction, (beyond | infinite).cpu().numpy()

    def seen(self, inputs: Any, start: int = 0) -> tuple[Any, Any, np.ndarray]:
        """Return what `given` returns, and which rows are beyond the range.

        Parameters
        ----------
        inputs : Inputs
            Rows as the network takes them.
        start : int, default=0
            Number of the first of them in X, of which an error tells.

        Returns
        -------
        tuple
            Rows as the models take them, a finite prediction for each, and an array of bools.
        """
        rows, original = _naming_row(self.given, inputs, start)
        return rows, *self._guarded(inputs, original)

    def predict(self, inputs: StoredRows) -> tuple[Prediction, np.ndarray]:
        """Return what the given network predicts for rows, and which are beyond the range."""
        found = []
        for rows in batches(inputs):
            some = inputs[rows]
            predicted = _naming_row(self.reference.predict, some, rows.start)
            found.append(self._guarded(some, predicted))
        predictions, lost = zip(*found, strict=True)
        return self.reference.likelihood.kind.cat(predictions), np.concatenate(lost)

    def results_of_chunks(self, chunks: Iterable[Any], question: Question) -> Iterator[RowResults]:
        """Yield the results of one chunk of rows after the other."""
        for inputs in chunks:
            size, parts = self.models.rows_at_once(inputs, question.limits), []
            for rows in slices(len(inputs), max(1, size)):
                results, limits = self._whatever_happens(inputs[rows], question)
                # What was too much for these rows is not tried again.
                question = replace(question, limits=limits)
                parts.append(results)
            yield join(parts)

    def _whatever_happens(self, inputs: Any, question: Question) -> tuple[RowResults, Limits]:
        """Work on rows together, or on fewer where memory runs out or the network fails."""
        limits = question.limits
        try:
            return self.results(inputs, question), limits
        except NetworkError as error:
            if len(inputs) == 1:
                return self._unknown(_told(error), question), limits
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            smaller = getattr(self.models, "smaller_limits", lambda *_: None)(len(inputs), limits)
            if smaller is None:
                raise
            limits = smaller
        middle, parts = max(1, len(inputs) // 2), []
        for half in (inputs[:middle], inputs[middle:]):
            if len(half):
                asked = replace(question, limits=limits)
                results, limits = self._whatever_happens(half, asked)
                parts.append(results)
        return join(parts), limits

    def _unknown(self, error: str, question: Question) -> RowResults:
        """Return what is said about a row for which the network raises an error."""
        lost = self._results_of_lost(self.known.constant, question)
        told = replace(lost.diagnostics, error=np.array([error], dtype=object))
        return lost._replace(diagnostics=told)

    def _results_of_lost(self, prediction: Prediction, question: Question) -> RowResults:
        return results_of_lost(prediction, question.measure, self.diagnostics, question.predictive)


def _naming_row(run: Callable[[Inputs], Any], inputs: Inputs, start: int) -> Any:
    """Run a network for rows; an error names the row that it is about."""

    def works(rows: Inputs) -> bool:
        try:
            run(rows)
        except NetworkError:
            return False
        return True

    try:
        return run(inputs)
    except NetworkError as error:
        if not (works(inputs[:1]) or works(inputs[-1:])):
            raise
        first, last = 0, len(inputs)
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (middle, last) if works(inputs[first:middle]) else (first, middle)
        row = start + first
        raise NetworkError(f"The network cannot process row {row} of X: {error}") from error


def _told(error: NetworkError) -> str:
    """Return what the network has said."""
    said = error.__cause__ or error
    return f"{type(said).__name__}: {said}"


def summarise(
    posterior: Posterior,
    question: Question,
    diagnostics: KindOfDiagnostics,
    found: dict[str, np.ndarray],
) -> RowResults:
    """Return what the accumulated models say, with what the method has found out besides."""
    columns = {
        "effective_sample_size": posterior.effective_sample_size(),
        **found,
        "n_diverged": (diverged := posterior.n_diverged() + found.get("n_diverged", 0)),
        "error": np.full(len(diverged), None),
    }
    if issubclass(diagnostics, Diagnostics):
        error = posterior.standard_error(question.setting)
        # Those of chains know about autocorrelation.
        columns.setdefault("standard_error", error)
    predicts = "given" if question.given_predicts else question.setting
    return RowResults(
        posterior.prediction(predicts).to_array(),
        posterior.uncertainty(question.setting),
        diagnostics(**columns),
        posterior.variance(question.setting),
        posterior.predictive() if question.predictive else None,
    )
