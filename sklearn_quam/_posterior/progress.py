"""How far a run has got, and how long it will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm.auto import tqdm

from ..exceptions import SlowWarning, warn

Item = TypeVar("Item")

# Seconds ahead from which a bar is worth showing, and a warning worth reading.
_WORTH_A_BAR = 10.0
_WORTH_A_WARNING = 600.0
# Before that many seconds, what is done says little about what is to come: a bar may be wrong for a
# while, a warning stays.
_SETTLED = 1.0
_SURE = 10.0


class Progress:
    """Counts what is done; shows a bar where the wait is long.

    Parameters
    ----------
    total : int
        How much there is to do.
    name : str
        Stands in front of the bar.
    verbose : int or None
        None shows a bar if more than about ten seconds are ahead and someone may be looking; 0
        shows none, 1 always.
    unit : str, default="row"
        What is counted.
    remedies : tuple of str, default=()
        What would make it quicker, the cheapest first.
    """

    def __init__(
        self,
        total: int,
        name: str,
        verbose: int | None,
        *,
        unit: str = "row",
        remedies: tuple[str, ...] = (),
    ) -> None:
        self._total, self._name, self._unit, self._remedies = total, name, unit, remedies
        self._may_show = bool(verbose) or (verbose is None and _someone_is_looking())
        self._done = self._before = self._current = 0
        self._part = 0.0
        self._start = time.monotonic()
        # When something was done for the first time, and how much: until then, all is set up.
        self._first: tuple[float, float] | None = None
        self._warned = False
        self._bar: Any = None
        if verbose:
            self._show()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def had_before(self, count: int) -> None:
        """Count what was done by an earlier run: it took no time of this one."""
        self._before += count
        self._done += count
        self._refresh()

    def begin(self, count: int) -> None:
        """Begin with a chunk, of which `report` will tell how far it is."""
        self._current, self._part = count, 0.0

    def report(self, share: float) -> None:
        """Take note of which share of the current chunk is done."""
        self._part = self._current * min(share, 1.0)
        self._refresh()

    def advance(self, count: int) -> None:
        """Count what is done."""
        self._done += count
        self._part = 0.0
        self._refresh()

    @property
    def seconds_left(self) -> float | None:
        """Seconds that are still ahead, None as long as nothing can be said."""
        taken, done = time.monotonic() - self._start, self._done - self._before + self._part
        if done <= 0 or (taken < _SETTLED and self._part):
            return None
        return self._later(_SETTLED) or taken / done * self._ahead

    @property
    def _ahead(self) -> float:
        return self._total - self._done - self._part

    def _later(self, seconds: float) -> float | None:
        """Return the time ahead by what was done for that long after the set-up, if anything."""
        if self._first is None:
            return None
        taken = time.monotonic() - self._first[0]
        done = self._done - self._before + self._part - self._first[1]
        return taken / done * self._ahead if taken >= seconds and done > 0 else None

    def _refresh(self) -> None:
        done = self._done - self._before + self._part
        if self._first is None and done > 0:
            self._first = (time.monotonic(), done)
        left = self.seconds_left
        if left is not None and self._bar is None and self._may_show and left > _WORTH_A_BAR:
            self._show()
        if self._bar is not None:
            exact = self._done + self._part
            # Tenths of a row where rows take long.
            self._bar.n = round(exact, 1) if self._current <= 10 and self._part else int(exact)
            self._bar.refresh() if self._done == self._total else self._bar.update(0)
        surely = None if self._warned else self._later(_SURE)
        if surely is not None and surely > _WORTH_A_WARNING:
            self._warned = True
            warn(self._words(surely), SlowWarning)

    def _show(self) -> None:
        # The mean rate since the start: chunks differ, and the first ones are the slowest.
        self._bar = tqdm(
            total=self._total, initial=self._before, unit=self._unit, desc=self._name, smoothing=0
        )
        self._bar.start_t -= time.monotonic() - self._start

    def _words(self, left: float) -> str:
        text = (
            f"{self._name} will take {_duration(left)} more for {self._total - self._done} of "
            f"{self._total} {self._unit}s."
        )
        if not self._remedies:
            return text
        listed = "; ".join(f"({i}) {remedy}" for i, remedy in enumerate(self._remedies, 1))
        return f"{text} What would help, the cheapest first: {listed}."


def tracked(
    items: Iterable[Item], name: str, verbose: int | None, unit: str, total: int | None = None
) -> Iterator[Item]:
    """Yield items, and show how far one has got with them.

    Parameters
    ----------
    items : iterable
        The items.
    name : str
        Stands in front of the bar.
    verbose : int or None
        See `Progress`.
    unit : str
        What the items are.
    total : int, default=None
        How many there are, where they do not know themselves.

    Yields
    ------
    object
        The next item.
    """
    total = len(items) if total is None else total  # type: ignore[arg-type]
    with Progress(total, name, verbose, unit=unit) as progress:
        for item in items:
            yield item
            progress.advance(1)


def _someone_is_looking() -> bool:
    """Tell whether the output is a terminal or a notebook."""
    return "ipykernel" in sys.modules or bool(getattr(sys.stderr, "isatty", bool)())


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 120 else f"{round(minutes / 60)} hours"
