"""Doubt: mistakes and unknown samples on one scale, the share of known samples with less doubt.

The trust in a prediction is the probability of its label, max p. The strangeness of a sample has no
unit, so it is replaced by the share s of known samples that are as strange. Where s is below a
third, the trust is multiplied by (3 s) ** 0.25. Doubt is minus the logarithm of the trust, given as
a share of known samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._documented import QUERY, documented
from .._messages import shown
from .._network.inputs.sources import some_rows
from .._posterior.results import COMPONENTS, RowResults, Uncertainty
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


@documented(QUERY)
class Doubting:
    """Predicts doubt, if ``fit`` has kept held-out samples as known ones."""

    # Otherwise doubt grows with the risk alone.
    _risk_is_probability: ClassVar[bool] = True
    _results: Callable[..., RowResults]
    setting: str

    def _most_known_rows(self) -> int:
        """Return the largest number of held-out samples that measure doubt."""
        return MAX_KNOWN_ROWS

    def _risk(self, results: RowResults) -> np.ndarray:
        """Return the risk of each prediction."""
        raise NotImplementedError

    def _keep_known_rows(self, X_val: Any, n_rows: int) -> None:
        """Keep risk, aleatoric and epistemic uncertainty of held-out samples."""
        some = np.random.default_rng(0).permutation(n_rows)[: self._most_known_rows()]
        results = self._results(some_rows(X_val, np.sort(some)))
        self._doubt_question = [self.setting, getattr(self, "measure", "entropy")]
        parts = (results.uncertainty.aleatoric, results.uncertainty.epistemic)
        self._known_rows = np.column_stack([self._risk(results), *parts])

    def _with_doubt(self, results: RowResults, *question: str) -> Uncertainty:
        """Return uncertainties, with doubt if known samples were asked the same question."""
        uncertainty = results.uncertainty
        if not hasattr(self, "_known_rows") or [*question] != self._doubt_question:
            return uncertainty
        return replace(uncertainty, doubt=self._share(self._risk(results), uncertainty.epistemic))

    def _share(self, risk: np.ndarray, epistemic: np.ndarray) -> np.ndarray:
        known_risk, _, known_epistemic = self._known_rows.T
        if self._risk_is_probability:
            return DoubtScale.fit(known_risk, known_epistemic).share(risk, epistemic)
        return Tail.fit(known_risk).share(risk)

    def _check_known_rows(self) -> None:
        check_is_fitted(self)
        if not hasattr(self, "_known_rows"):
            raise needs_known_samples("X_val and y_val")

    def predict_doubt(self, X: Any) -> np.ndarray:
        """Predict doubt: one number from 0 to 1 for mistakes and unknown samples together.

        It is the share of known samples that are less doubtful: of new samples like the known ones,
        5 % have a doubt above 0.95. A classifier's doubt grows with the risk of a mistake, 1 - max
        p, and with the epistemic uncertainty where that is larger than for two thirds of known
        samples. A regressor's doubt grows with the standard deviation of its prediction.

        Returns
        -------
        ndarray of shape (n_samples,)
            From 0 to 1. Known samples are up to 1000 of the ``X_val`` that was passed to ``fit``,
            drawn at random. ``setting`` and ``measure`` are those of ``fit``.
        """
        self._check_known_rows()
        return self._results(X, as_known=True).uncertainty._part("doubt")

    def threshold(self, coverage: float = 0.95, *, component: str = "doubt") -> float:
        """Return a threshold that a share of known samples does not exceed.

        Parameters
        ----------
        coverage : float, default=0.95
            The share: a new sample like the known ones is at or below the threshold with a
            probability of at least this. A share of c takes at least c / (1 - c) known samples.
        component : {"aleatoric", "epistemic", "total", "doubt"}, default="doubt"
            Which uncertainty, in the ``setting`` and ``measure`` at the time of ``fit``.

        Returns
        -------
        float
            The threshold. Known samples are those of the ``X_val`` that was passed to ``fit``.
        """
        self._check_known_rows()
        risk, aleatoric, epistemic = self._known_rows.T
        values = {"aleatoric": aleatoric, "epistemic": epistemic, "total": aleatoric + epistemic}
        values["doubt"] = self._share(risk, epistemic)
        if component not in values:
            raise ValueError(f"component must be one of {COMPONENTS}; got {shown(component)}.")
        return threshold_of(values[component], coverage)
