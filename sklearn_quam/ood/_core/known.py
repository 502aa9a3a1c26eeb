"""What detectors learn from, and what they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from scipy.special import softmax

from ..._network.inputs.rows import StoredRows
from ..._network.reference import ReferenceModel
from ...base._doubt import DoubtScale
from .features import AnyReader
from .reading import Seen

Score = Callable[[Seen], np.ndarray]
AnyScore = TypeVar("AnyScore", bound=Callable[[Seen], np.ndarray])


@dataclass(frozen=True, eq=False)
class Known:
    """Training rows, as detectors get to see them.

    Parameters
    ----------
    seen : Seen
        What the network shows of them.
    target : ndarray of shape (n_rows,)
        Their classes, as columns of the logits.
    reader : Reader or GivenFeatures
        Knows the last layer.
    earlier : object, default=None
        What was learnt from rows before these.
    held_out : Known or None, default=None
        Known rows that the network was not trained on, if they came with labels.
    """

    seen: Seen
    target: np.ndarray
    reader: AnyReader
    earlier: Any = None
    held_out: Known | None = None

    def __getitem__(self, rows: Any) -> Known:
        return replace(self, seen=self.seen[rows], target=self.target[rows])


@dataclass(frozen=True, eq=False)
class FittedDetector(Generic[AnyScore]):
    """What scores rows.

    Parameters
    ----------
    reader : Reader or GivenFeatures
        Runs rows through the network.
    score : callable
        Returns how normal each row is, by what was seen of it.
    bounds : ndarray of shape (3,)
        Magnitudes of inputs, features and logits beyond which a row is absurd.
    known_by_heart : bool, default=False
        Whether the threshold is set by training rows that the network may know by heart.
    doubt : DoubtScale or None, default=None
        How doubtful known rows are that the network was not trained on.
    """

    reader: AnyReader
    score: AnyScore
    bounds: np.ndarray
    known_by_heart: bool = False
    doubt: DoubtScale | None = None

    @property
    def reference(self) -> ReferenceModel:
        """The given network."""
        return self.reader.reference

    @property
    def device(self) -> torch.device:
        """Where rows are scored."""
        return self.reader.device

    def __call__(self, rows: Seen | StoredRows) -> np.ndarray:
        """Return a score for each row, minus infinity for absurd ones."""
        seen = rows if isinstance(rows, Seen) else self.reader(rows)
        sane: np.ndarray = np.all(seen.largest <= self.bounds, axis=1)
        scores = np.full(len(sane), -np.inf)
        if sane.any():
            found = self.score(seen[sane])
            scores[sane] = np.where(np.isnan(found), -np.inf, found)
        return scores


def risk_of(seen: Seen) -> np.ndarray:
    """Return 1 - max p of the network for each row."""
    with np.errstate(invalid="ignore"):
        return 1 - softmax(seen.logits, axis=1).max(axis=1)
