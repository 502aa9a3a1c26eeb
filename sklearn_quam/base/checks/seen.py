"""Rows that a network was trained on, where new ones would be due."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

import numpy as np
from torch import Tensor

from ..._network.adapters import is_pretrained
from ..._network.inputs.rows import StoredRows
from ...exceptions import SeenRowsWarning
from .warned import warn

# Rows of which a digest is kept, and the numbers that are read for it.
_MAX_ROWS = 10_000
_ROWS_AT_ONCE = 1000
_MAX_KEPT = 100_000
_MAX_NUMBERS = 2**24
# Bits of a single precision number that rounding may change: transformers may round otherwise
# where they get other rows along.
_ROUNDED_BITS = 12
# Of the rows that are scored, or of those passed to fit: so many are most of them.
_MOST = 0.5
_NEARLY_ALL = 0.9
# With fewer rows than this for each column, a network can learn most of them by heart.
_ROWS_PER_COLUMN = 10


def may_be_known_by_heart(inputs: StoredRows) -> bool:
    """Tell whether training rows are a table of so few rows that a network may know them by heart.

    Parameters
    ----------
    inputs : StoredRows
        The training rows, as the network takes them.

    Returns
    -------
    bool
        False for images and the like, whose numbers are no columns.
    """
    parts = inputs[:1].parts
    is_table = len(parts) == 1 and parts[0].ndim == 2
    return is_table and len(inputs) < _ROWS_PER_COLUMN * parts[0].shape[1]


def warn_about_threshold(contamination: float) -> None:
    """Say that a threshold is set by training rows that the network may know by heart."""
    warn(
        "The threshold is set by training rows, of which there are fewer than "
        f"{_ROWS_PER_COLUMN} for each column: the network may know them by heart, and far more "
        f"known rows than a share of contamination={contamination:g} may be flagged. Pass X_val=, "
        "known rows that the network was not trained on, to fit.",
        SeenRowsWarning,
    )


class PassedRows:
    """Digests of the rows that were passed to ``fit`` as the training data of a given network.

    An estimator and its clones share them: they share the network, too, which is not trained again
    in a cross-validation. They are kept in memory only, so that clones in other processes have
    their own. Rows that were scored before they were passed to ``fit`` are held-out rows, which a
    search passes along with all others once it has chosen.
    """

    def __init__(self) -> None:
        self._digests: set[bytes] = set()
        self._held_out: set[bytes] = set()
        self._share = 1.0
        self._warned = False

    def note(self, inputs: StoredRows) -> None:
        """Keep digests of rows, unless many of them are equal, so that new ones may be, too."""
        found, share = _digests(inputs)
        if len(set(found)) >= _NEARLY_ALL * len(found) and len(self._digests) < _MAX_KEPT:
            self._digests.update(set(found) - self._held_out)
            self._share = min(self._share, share)

    def warn_once(self, inputs: StoredRows) -> None:
        """Say if most of these rows were passed to ``fit``."""
        if self._warned or not self._digests:
            return
        found, _ = _digests(inputs)
        if sum(one in self._digests for one in found) < _MOST * self._share * len(found):
            if len(self._held_out) < _MAX_KEPT:
                self._held_out.update(set(found) - self._digests)
            return
        self._warned = True
        warn(
            "A network that was passed fitted is scored on rows that were passed to fit as its "
            "training data. It is not trained again for each fold: scores are too good. Hold rows "
            "out before you train the network, and score these only, in a cross-validation with "
            "cv=PredefinedSplit(...); or pass an unfitted estimator, which is trained for each "
            "fold.",
            SeenRowsWarning,
        )


# The rows of each given network, by the network.
Families = weakref.WeakKeyDictionary[Any, PassedRows]


def passed_rows(method: Any, estimator: Any) -> PassedRows | None:
    """Return the record that a method shares with its clones, or None if it trains its network.

    Parameters
    ----------
    method : NetworkEstimator
        What is fitted.
    estimator : object
        What holds its network.

    Returns
    -------
    PassedRows or None
        The record.
    """
    if not is_pretrained(estimator):
        return None
    families = method.__dict__.setdefault("_families", Families())
    return families.setdefault(estimator, PassedRows())


def warn_if_seen(method: Any, X: Any) -> None:
    """Say if a given network is scored on rows that it was trained on.

    Parameters
    ----------
    method : object
        A fitted method or detector of the package; others are let alone.
    X : array-like of shape (n_samples, ...)
        The rows that it is scored on, as it takes them.
    """
    record = getattr(method, "_passed_rows", None)
    if record is not None:
        record.warn_once(method._check_rows(X, method._fitted.reference))


def warn_about_held_out_rows(method: Any) -> None:
    """Say that rows held out at random are training rows of a given network all the same.

    Parameters
    ----------
    method : NetworkEstimator
        What is to be fitted to the other rows.
    """
    if getattr(method, "estimators", None) is not None or is_pretrained(
        getattr(method, "estimator", None)
    ):
        warn(
            "The network was passed fitted: rows that are held out from X now are no new rows to "
            "it, if X is what it was trained on, and too many will be accepted. Fit the estimator "
            "to its training data, and pass it with cv='prefit', and other rows as X; or pass an "
            "unfitted estimator, which is trained without the rows that are held out.",
            SeenRowsWarning,
        )


def _digests(inputs: StoredRows) -> tuple[list[bytes], float]:
    """Return a digest of each row, or of some in equal distances, and what share these are."""
    n_rows = len(inputs)
    n_kept = min(n_rows, _MAX_ROWS, max(1, _MAX_NUMBERS // max(1, inputs[:1].numel())))
    numbers = np.linspace(0, n_rows - 1, n_kept).astype(int)
    digests = []
    for start in range(0, n_kept, _ROWS_AT_ONCE):
        some = inputs[numbers[start : start + _ROWS_AT_ONCE]]
        table = np.hstack([_coarse(part) for part in some.parts])
        digests += [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in table]
    return digests, n_kept / n_rows


def _coarse(part: Tensor) -> np.ndarray:
    """Return numbers without what rounding may change in them, as whole numbers."""
    # A zero has a sign, which is of no account.
    values = part.reshape(len(part), -1).float().cpu().numpy() + np.float32(0)
    return values.view(np.uint32) >> _ROUNDED_BITS
