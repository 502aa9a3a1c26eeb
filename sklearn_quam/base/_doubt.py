"""Doubt: mistakes and unknown samples on one scale, the share of known samples with less doubt.

The trust in a prediction is the probability of its label, max p. The strangeness of a sample has no
unit, so it is replaced by the share s of known samples that are as strange. Where s is below a
third, the trust is multiplied by (3 s) ** 0.25. Doubt is minus the logarithm of the trust, given as
a share of known samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from ._conformal import check_coverage, conformal_threshold

# Largest number of held-out samples that measure doubt.
MAX_KNOWN_ROWS = 1000
MAX_KNOWN_ROWS_IF_SLOW = 200
# The strangest third of known samples counts as strange, with this exponent of its share. Both
# were chosen on textures around CIFAR-10 and ImageNet, left-out digits and tables.
_COMMON, _EXPONENT = float(np.log(3)), 0.25
# Beyond this quantile of known samples, shares fall exponentially.
_TAIL_QUANTILE = 0.9
_LARGEST = 1e150
_SMALLEST_SPREAD = 1e-3


@dataclass(frozen=True, eq=False)
class Tail:
    """The distribution of known values, exponential beyond their 90 % quantile."""

    known: np.ndarray  # sorted
    start: float  # their quantile
    spread: float  # mean excess of the values beyond it

    @classmethod
    def fit(cls, values: np.ndarray) -> Self:
        """Return the tail of values of known samples."""
        known = np.sort(np.clip(values, -_LARGEST, _LARGEST))
        usual = known[known < _LARGEST] if known[0] < _LARGEST else known
        start = float(np.quantile(usual, _TAIL_QUANTILE))
        beyond = usual[usual > start] - start
        # Where values do not differ, any larger one is rare.
        spread = float(beyond.mean()) if len(beyond) else _SMALLEST_SPREAD * abs(start)
        return cls(known, start, max(spread, float(np.finfo(float).tiny)))

    def rarity(self, values: np.ndarray) -> np.ndarray:
        """Return minus the logarithm of the share of known values that are at least as large."""
        values = np.clip(values, -_LARGEST, _LARGEST)
        n_below = np.searchsorted(self.known, values, side="left")
        edge = -np.log(1 - _TAIL_QUANTILE)
        share = (len(self.known) + 1 - n_below) / (len(self.known) + 1)
        within = np.minimum(-np.log(share), edge)
        with np.errstate(over="ignore"):
            beyond = edge + (values - self.start) / self.spread
        return np.where(values > self.start, np.minimum(beyond, _LARGEST), within)

    def share(self, values: np.ndarray) -> np.ndarray:
        """Return the share of known values that are smaller."""
        return -np.expm1(-self.rarity(values)) + 0.0  # no minus zero


@dataclass(frozen=True, eq=False)
class DoubtScale:
    """The strangeness and the doubt of known samples."""

    strange: Tail
    doubtful: Tail

    @classmethod
    def fit(cls, risk: np.ndarray, strangeness: np.ndarray) -> Self:
        """Return the scale of known samples that the network was not trained on.

        ``risk`` is the probability of a mistake, such as 1 - max p; ``strangeness`` is high for
        unknown samples, in any unit, such as an epistemic uncertainty.
        """
        strange = Tail.fit(strangeness)
        return cls(strange, Tail.fit(_distrust(risk, strange.rarity(strangeness))))

    def score(self, risk: np.ndarray, strangeness: np.ndarray) -> np.ndarray:
        """Return minus the logarithm of the trust, in nats: it has no upper limit."""
        return _distrust(risk, self.strange.rarity(strangeness))

    def share(self, risk: np.ndarray, strangeness: np.ndarray) -> np.ndarray:
        """Return the share of known samples that are less doubtful."""
        return self.doubtful.share(self.score(risk, strangeness))

    def threshold(self, coverage: float) -> float:
        """Return the doubt that a share of known samples does not exceed."""
        return threshold_of(self.doubtful.share(self.doubtful.known), coverage)


def threshold_of(known: np.ndarray, coverage: float) -> float:
    """Return a threshold that a share of samples like the known ones does not exceed."""
    return float(conformal_threshold(np.sort(known), check_coverage(coverage)))


def needs_known_samples(arguments: str) -> ValueError:
    """Return the error where no known samples measure doubt."""
    return ValueError(
        "Doubt is measured on known samples that the network was not trained on. Pass some of them "
        f"to fit, as {arguments}."
    )


def _distrust(risk: np.ndarray, rarity: np.ndarray) -> np.ndarray:
    return -np.log1p(-risk) + _EXPONENT * np.maximum(rarity - _COMMON, 0.0)
