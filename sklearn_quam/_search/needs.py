"""How much memory searches need, found out by running a few, and how many may run together."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from .._network.inputs.rows import StoredRows
from .._network.limits import Limits, in_units, peak_bytes
from .._network.outputs import is_out_of_memory
from ..exceptions import NetworkError

# For what single operations need for themselves, and what an allocator cannot use again.
_RESERVE = 1.15


@dataclass(frozen=True)
class Needs:
    """What searches were measured to need, in bytes."""

    # Whatever runs
    fixed: int = 0
    # For every row that is searched together with others
    row: int = 0
    # For every search of a row
    search: int = 0

    def of(self, n_rows: int, n_targets: int) -> int:
        """Return the memory for some rows with some targets each."""
        return self.fixed + n_rows * (self.row + n_targets * self.search)

    def rows_that_fit(self, limits: Limits, n_targets: int, most: int) -> int:
        """Return how many rows may be searched together with all their targets, at least one."""
        each = max(1, self.row + n_targets * self.search)
        rows = (limits.for_each_worker - self.fixed) // each
        return max(1, min(rows, most // n_targets))

    def targets_that_fit(self, limits: Limits, n_rows: int, n_targets: int, most: int) -> int:
        """Return how many targets of some rows may be searched together, at least one."""
        left = limits.for_each_worker - self.fixed - n_rows * self.row
        each = max(1, n_rows * self.search)
        return max(1, min(n_targets, left // each, most // n_rows))

    def refuse_too_little(self, limits: Limits) -> None:
        """Raise an error where not even a single search fits."""
        needed = self.of(1, 1)
        if needed <= limits.for_each_worker:
            return
        workers = f" for each of {limits.n_workers} workers" if limits.n_workers > 1 else ""
        raise ValueError(
            f"memory_limit allows {in_units(limits.memory)}, but a single search needs "
            f"{in_units(needed)}{workers}. Pass a larger memory_limit"
            f"{', fewer workers (n_jobs)' if workers else ''}, or search fewer parameters "
            "(parameters='last_layer'). An estimator that is fitted with the limit cuts its "
            "searches into smaller pieces where it can."
        )


NOTHING = Needs()


def sized(fitted: Any, inputs: StoredRows, question: Any) -> Any:
    """Return a method that knows what its searches need, in pieces that fit where they can."""
    models = fitted.models
    while True:
        needs = _needs(replace(fitted, models=models.for_trial()), inputs, question)
        smaller = models.in_smaller_pieces()
        if needs.of(1, 1) <= question.limits.for_each_worker or smaller is None:
            break
        models = smaller
    needs.refuse_too_little(question.limits)
    return replace(fitted, models=replace(models, needs=needs))


def _needs(fitted: Any, inputs: StoredRows, question: Any) -> Needs:
    """Return what a row and a search need more than one search of one row."""
    one = _peak(fitted, inputs, question, 1, 1)
    if one * fitted.models.most(question.limits) <= question.limits.for_each_worker:
        # There is room for all that may ever run together, however much of it is shared.
        return Needs(search=max(1, one))
    two_targets = _peak(fitted, inputs, question, 1, 2)
    two_rows = _peak(fitted, inputs, question, 2, 1) if len(inputs) > 1 else two_targets
    # A row takes no less than its search.
    search = max(1, two_targets - one)
    row = max(0, two_rows - one - search)
    return Needs(max(0, one - row - search), row, search)


def _peak(fitted: Any, inputs: StoredRows, question: Any, n_rows: int, n_targets: int) -> int:
    limits = replace(question.limits, at_once=n_rows * n_targets, n_workers=1)
    asked = replace(question, limits=limits)
    rows = inputs[:n_rows]
    try:
        return math.ceil(_RESERVE * peak_bytes(lambda: fitted.results(rows, asked)))
    except NetworkError:
        # Whatever it is will be told when it happens to rows that are asked about.
        return 0
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        # There is not even room to try.
        return 2 * question.limits.memory + 1
