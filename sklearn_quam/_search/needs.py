"""The memory that searches need, measured by running a few, and how many may run together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from .._network.inputs.rows import Inputs, StoredRows
from .._network.limits import Limits, in_units, peak_bytes
from .._network.outputs import is_out_of_memory
from ..exceptions import NetworkError

# For the needs of single operations, and memory that an allocator cannot use again.
_RESERVE = 1.15


@dataclass(frozen=True)
class Needs:
    """Memory that searches need, in bytes."""

    fixed: int = 0  # In any case
    row: int = 0  # For every sample that is searched together with others
    search: int = 0  # For every search of a sample

    def of(self, n_rows: int, n_targets: int) -> int:
        """Return the memory for some samples with some targets each."""
        return self.fixed + n_rows * (self.row + n_targets * self.search)

    def rows_that_fit(self, limits: Limits, n_targets: int, most: int) -> int:
        """Return how many samples may be searched together with all their targets, at least one."""
        each = max(1, self.row + n_targets * self.search)
        rows = (limits.for_each_worker - self.fixed) // each
        return max(1, min(rows, most // n_targets))

    def targets_that_fit(self, limits: Limits, n_rows: int, n_targets: int, most: int) -> int:
        """Return how many targets of some samples may be searched together, at least one."""
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


def measured_needs(
    run: Callable[[Inputs, Limits], object], inputs: StoredRows, limits: Limits, most: int
) -> Needs:
    """Return the memory that searches need, measured for a few; `most` may ever run together."""

    def peak(n_samples: int, n_targets: int) -> int:
        few = replace(limits, at_once=n_samples * n_targets, n_workers=1)
        try:
            return math.ceil(_RESERVE * peak_bytes(lambda: run(inputs[:n_samples], few)))
        except NetworkError:
            # It is raised again when the samples are searched.
            return 0
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return 2 * limits.memory + 1

    one = peak(1, 1)
    if one * most <= limits.for_each_worker:
        # There is room for all that may ever run together, however much of it is shared.
        return Needs(search=max(1, one))
    two_targets = peak(1, 2)
    two_samples = peak(2, 1) if len(inputs) > 1 else two_targets
    # A sample takes no less than its search.
    search = max(1, two_targets - one)
    row = max(0, two_samples - one - search)
    return Needs(max(0, one - row - search), row, search)
