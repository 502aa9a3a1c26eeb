"""What the plausible models of QUAM say at most and at least: a credal set for each row."""

from __future__ import annotations

from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._messages import shown
from .._network.limits import computing
from ._adversarial import AdversarialSearch


class ProbabilityBounds(AdversarialSearch):
    """Bounds of probabilities; shared by nobody but QUAM's classifier."""

    @computing()
    def predict_proba_bounds(
        self, X: Any, slack: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return how small and how large the probability of each class may be.

        The bounds are over the given network and all models that the searches meet and that cost no
        more than the slack. Together they are a credal set: whatever weight one gives to these
        models, the average is within the bounds. There may be models that the searches do not
        find, so that the true bounds are no narrower.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.
        slack : float, default=None
            Largest cost of a model that counts, in nats of the whole training set: 3 nats are a
            likelihood ratio of 20. None takes ``slack_``. The larger, the wider are the bounds.

        Returns
        -------
        lower, upper : ndarray of shape (n_samples, n_classes)
            Bounds of each probability; columns as in ``classes_``. They are 0 and 1 for rows
            beyond the range of the training data.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn_quam import QUAMClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y)).fit(X, y)
        >>> lower, upper = est.predict_proba_bounds(X[77:78], slack=2.0)
        >>> proba = est.predict_proba(X[77:78])
        >>> bool(((lower <= proba) & (proba <= upper)).all())
        True
        """
        check_is_fitted(self)
        nats: Any = self.slack_ if slack is None else slack
        if not isinstance(nats, Real) or not 0 <= float(nats) < np.inf:
            raise ValueError(
                f"slack={shown(slack)} is not understood: pass a number of nats, or None."
            )
        models: Any = self._fitted.models
        anything = np.tile([0.0, 1.0], (models.problem.targets.n_answers, 1))
        found = self._searched(X, partial(models.bounds, slack=float(nats)), anything)
        return found[..., 0], found[..., 1]
