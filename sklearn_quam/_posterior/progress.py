"""How far a run has got, and how long it will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm.auto import tqdm

from ..exceptions import SlowWarning, warn

Item = TypeVar("Item")

# Seconds after which a bar appears by itself.
_DELAY = 10.0
# The time left is known well enough after so many seconds, and worth a warning if it is so long.
_SURE, _LONG = 10.0, 600.0
_GUIDE = "https://sklearn-quam.readthedocs.io/en/stable/guide/time.html"


class Progress:
    """Counts what is done: a bar, and a warning where the rest will take long.

    The bar is always shown with ``verbose=1``, never with 0. With None it appears after ten seconds
    if the output is a terminal or a notebook.
    """

    def __init__(
        self,
        total: int,
        name: str,
        verbose: int | None,
        *,
        unit: str = "row",
    ) -> None:
        self._total, self._name, self._unit = total, name, unit
        self._done = self._before = 0
        # When the first chunk was done, and how much it was: until then all is set up.
        self._first: tuple[float, int] | None = None
        self._warned = False
        self._bar = tqdm(
            total=total,
            desc=name,
            unit=unit,
            smoothing=0,
            delay=0 if verbose else _DELAY,
            disable=not (verbose or (verbose is None and _is_interactive())),
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def had_before(self, count: int) -> None:
        """Count what an earlier run has done, which took no time of this one."""
        self._done += count
        self._before += count
        self._bar.initial = self._before
        self._bar.update(count)

    def advance(self, count: int) -> None:
        """Count what is done."""
        self._done += count
        self._bar.update(count)
        now = time.monotonic()
        if self._first is None:
            self._first = (now, self._done - self._before)
            return
        taken, done = now - self._first[0], self._done - self._before - self._first[1]
        left = self._total - self._done
        if taken >= _SURE and taken / done * left > _LONG and not self._warned:
            self._warned = True
            minutes = round(taken / done * left / 60)
            warn(
                f"{self._name} will take {minutes} minutes more for {left} of {self._total} "
                f"{self._unit}s. What makes it faster: {_GUIDE}",
                SlowWarning,
            )


def tracked(
    items: Iterable[Item], name: str, verbose: int | None, unit: str, total: int | None = None
) -> Iterator[Item]:
    """Yield items with a bar; ``total`` is their number if they have no length."""
    total = len(items) if total is None else total  # type: ignore[arg-type]
    with Progress(total, name, verbose, unit=unit) as progress:
        for item in items:
            yield item
            progress.advance(1)


def _is_interactive() -> bool:
    """Return whether the output is a terminal or a notebook."""
    return "ipykernel" in sys.modules or bool(getattr(sys.stderr, "isatty", bool)())
