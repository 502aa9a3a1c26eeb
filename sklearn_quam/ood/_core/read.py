"""Features of rows, read once for several detectors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..._network.limits import computing
from .detector import PROBE_ROWS, BaseDetector
from .reading import PENULTIMATE, make_reader


class Features(NamedTuple):
    """What a network shows of rows.

    Parameters
    ----------
    features : ndarray of shape (n_samples, n_features)
        What the chosen layer shows.
    logits : ndarray of shape (n_samples, n_classes)
        Scores of the classes; of two classes with one logit, minus and plus half of it.
    """

    features: np.ndarray
    logits: np.ndarray


@computing()
def read_features(
    estimator: Any,
    X: Any,
    *,
    layer: str | list[str] = PENULTIMATE,
    link: str | None = None,
    output: str | int | None = None,
    device: Any = None,
) -> Features:
    """Return what a network shows of rows, to pass it to any number of detectors.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module
        The network, fitted.
    X : array-like of shape (n_samples, ...)
        Rows like those of its training data.
    layer : str or list of str, default="penultimate"
        Where the features are taken, as detectors have it.
    link : str, default=None
        What the network returns, as for `QUAMClassifier`.
    output : str or int, default=None
        Which output is meant, by its name or number, if the network returns several. None takes
        ``logits``, or what comes first.
    device : str or torch.device, default=None
        Where to run; None stays where the network is.

    Returns
    -------
    Features
        Two arrays, ``features`` and ``logits``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam.ood import FDBDetector, MahalanobisDetector, read_features
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier(solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> features, logits = read_features(net, X)
    >>> for kind in (FDBDetector, MahalanobisDetector):
    ...     detector = kind(net).fit_features(features, y, logits=logits)
    ...     print(detector.score_features(features).shape)
    (150,)
    (150,)
    """
    asked = BaseDetector(estimator, link=link, output=output, device=device)
    reference, _, inputs = asked._network_and_rows(X)
    seen = make_reader(reference, layer, inputs[:PROBE_ROWS])(inputs)
    return Features(seen.features, seen.logits)
