"""Warn where held-out samples are needed, but the network was trained on them."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch

from ..._network.adapters import is_pretrained
from ..._network.inputs.rows import StoredRows
from ...exceptions import SeenRowsWarning, warn

# Limits: samples with a digest, samples read at a time, all digests, numbers read for digests.
_MAX_ROWS = 10_000
_ROWS_AT_ONCE = 1000
_MAX_KEPT = 100_000
_MAX_NUMBERS = 2**24
# Last bits of a float32 that digests leave out: transformers may round differently.
_ROUNDED_BITS = 12
# Shares of samples that count as most, and as nearly all.
_MOST = 0.5
_NEARLY_ALL = 0.9
# With fewer samples for each column, a network can learn most of them by heart.
_ROWS_PER_COLUMN = 10


def may_be_known_by_heart(inputs: StoredRows) -> bool:
    """Return whether training samples are a table that is small enough to be learnt by heart."""
    parts = inputs[:1].parts
    is_table = len(parts) == 1 and parts[0].ndim == 2
    return is_table and len(inputs) < _ROWS_PER_COLUMN * parts[0].shape[1]


def warn_about_threshold(contamination: float) -> None:
    """Warn that a threshold is set by training samples, which the network may know by heart."""
    warn(
        "The threshold is set by training rows, of which there are fewer than "
        f"{_ROWS_PER_COLUMN} for each column: the network may know them by heart, and far more "
        f"known rows than a share of contamination={contamination:g} may be flagged. Pass X_val=, "
        "known rows that the network was not trained on, to fit.",
        SeenRowsWarning,
    )


class PassedRows:
    """Digests of the training data of a given network, which its estimator and clones share.

    Samples that were scored before they were passed to ``fit`` count as held out: a grid search
    passes all samples to its last ``fit``.
    """

    def __init__(self) -> None:
        self._digests: set[int] = set()
        self._held_out: set[int] = set()
        self._share = 1.0
        self._warned = False

    def note(self, inputs: StoredRows) -> None:
        """Keep digests of samples, unless many are equal: then new ones may be, too."""
        found, share = _digests(inputs)
        if len(set(found)) >= _NEARLY_ALL * len(found) and len(self._digests) < _MAX_KEPT:
            self._digests.update(set(found) - self._held_out)
            self._share = min(self._share, share)

    def warn_once(self, inputs: StoredRows) -> None:
        """Warn if most of these samples were passed to ``fit``."""
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


# Records by their networks.
Families = weakref.WeakKeyDictionary[Any, PassedRows]


def passed_rows(method: Any, estimator: Any) -> PassedRows | None:
    """Return the record of a method and its clones, or None if it trains its network."""
    if not is_pretrained(estimator):
        return None
    families = method.__dict__.setdefault("_families", Families())
    return families.setdefault(estimator, PassedRows())


def warn_if_seen(method: Any, X: Any) -> None:
    """Warn if a given network is scored on samples that it was trained on."""
    record = getattr(method, "_passed_rows", None)
    if record is not None:
        record.warn_once(method._check_rows(X, method._fitted.reference))


def warn_about_held_out_rows(method: Any) -> None:
    """Warn that samples held out at random are training data of a given network."""
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


def _digests(inputs: StoredRows) -> tuple[list[int], float]:
    """Return digests of some samples at equal distances, and their share of all."""
    n_rows = len(inputs)
    n_kept = min(n_rows, _MAX_ROWS, max(1, _MAX_NUMBERS // max(1, inputs[:1].numel())))
    numbers = np.linspace(0, n_rows - 1, n_kept).astype(int)
    digests = []
    for start in range(0, n_kept, _ROWS_AT_ONCE):
        some = inputs[numbers[start : start + _ROWS_AT_ONCE]]
        # Adding zero makes minus zero plus zero.
        values = [part.reshape(len(part), -1).float() + 0.0 for part in some.parts]
        table = torch.cat(values, dim=1).cpu().numpy().view(np.uint32) >> _ROUNDED_BITS
        digests += [hash(row.tobytes()) for row in table]
    return digests, n_kept / n_rows
