"""A label for each pixel or token: every one of them is a sample of the last layer."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import _fit_context, clone
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from .._arguments import allowed, arguments
from .._documented import documented
from .._network.inputs.rows import Inputs, Source, from_tensor
from .._network.limits import batches, computing
from .._posterior.results import Uncertainty
from .._typing import RandomState
from ._head import SHARED, HeadClassifier, open_rows, targets_of


@documented(SHARED)
@arguments
class DenseClassifier(HeadClassifier):
    """Uncertainty of networks that classify every pixel of a picture, or every token of a text.

    The inputs of the last layer, a linear layer or a convolution, are features of each place, and a
    place is a sample for the last layer alone. The wrapped estimator is fitted to these samples and
    asked about them. Resizing behind the last layer, as in torchvision's networks, is part of the
    features.

    Parameters
    ----------
    estimator : estimator
        A classifier of the package that holds the trained network, such as
        ``QUAMClassifier(network, search="linear")``. The network returns scores of shape
        (n_samples, n_classes, height, width), or (n_samples, n_tokens, n_classes). Arguments
        ``link`` and ``output`` mean what they do elsewhere; ``parameters`` is the last layer.
    max_places : int
        Of more labelled places of the training data, so many are drawn at random; each then stands
        for several (``n_training_rows``). Estimators without ``n_training_rows`` get all places.
    ignore_label : int
        Label of places that are left out.
    random_state : int, RandomState instance or None
        Draws the places.

    Attributes
    ----------
    estimator_ : estimator
        The wrapped estimator, fitted to features of places.
    head_ : torch.nn.Linear
        The last layer, as a layer of features.
    classes_ : ndarray of shape (n_classes,)
        Labels.
    n_places_ : int
        Number of labelled places of the training data.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from torch import nn
    >>> from sklearn_quam import QUAMClassifier
    >>> from sklearn_quam.multioutput import DenseClassifier
    >>> images = np.random.default_rng(0).normal(size=(8, 1, 6, 6)).astype("float32")
    >>> masks = (images[:, 0] > 0).astype(int)
    >>> network = nn.Conv2d(1, 2, kernel_size=1)
    >>> network.weight.data = torch.tensor([-2.0, 2.0]).reshape(2, 1, 1, 1)    # as if trained
    >>> est = DenseClassifier(QUAMClassifier(network, search="linear"), random_state=0)
    >>> u = est.fit(images, masks).predict_uncertainty(images)
    >>> u.epistemic.shape
    (8, 6, 6)
    >>> u.per_row("max").epistemic.shape
    (8,)
    """

    max_places: int | None = allowed(
        Interval(Integral, 1, None, closed="left"), None, default=100_000
    )
    ignore_label: int = allowed(Integral, default=-100)
    random_state: RandomState = allowed("random_state", default=None)

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, *, mask: Any = None) -> Any:
        """Take the network apart, and fit the wrapped estimator to the places of its training data.

        Parameters
        ----------
        y : array-like of shape (n_samples, ...), default=None
            A label for each place; None takes them from a data set.
        """
        est, given = clone(self.estimator), self._given
        if given.get("parameters", "auto") not in ("auto", "last_layer"):
            raise ValueError(
                f"parameters={given['parameters']!r}, but places are rows of the last layer alone: "
                "leave parameters='auto', or pass 'last_layer'."
            )
        source = open_rows(X)
        labels = np.asarray(from_tensor(targets_of(source, y)))
        self.head_ = self._take_apart(given["estimator"], source)
        with computing(), self._short_passes():
            most = self.max_places if "n_training_rows" in given else None
            features, found = self._training_places(source, labels, mask, most)
        own: dict[str, Any] = {"output": None} if "output" in given else {}
        if self._reader.ending != "nothing":
            # The layer itself returns what stands before the ending.
            own["link"] = "binary_logit" if self._reader.ending == "sigmoid" else "logits"
        if "n_training_rows" in given and given["n_training_rows"] is None:
            own["n_training_rows"] = self.n_places_
        self.estimator_ = est.set_params(estimator=self.head_, **own).fit(features, found)
        self.classes_ = est.classes_
        return self

    def _training_places(
        self, source: Source, labels: np.ndarray, mask: Any, most: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return features and labels of the labelled places, or of some of them."""
        stored = self._reader.rows(source)
        if len(labels) != len(stored):
            raise ValueError(f"X has {len(stored)} rows, but y has {len(labels)}.")
        keep = labels != self.ignore_label
        for rows in batches(stored):
            counts = self._counts(stored[rows], mask, rows)
            if counts is not None:
                keep[rows] &= _fitting(counts, keep[rows].shape, "mask", "y")
        self.n_places_ = int(keep.sum())
        if not self.n_places_:
            raise ValueError(f"No place has a label: all are {self.ignore_label}, or masked.")
        if most is not None and self.n_places_ > most:
            random = check_random_state(self.random_state)
            drawn = random.choice(self.n_places_, most, replace=False)
            where = np.flatnonzero(keep)[drawn]
            keep[:] = False
            keep.ravel()[where] = True
        parts = []
        for rows in batches(stored):
            features = self._reader(stored[rows]).cpu().numpy()
            parts.append(features[_fitting(keep[rows], features.shape[:-1], "y", "the network")])
        return np.concatenate(parts), labels[keep]

    def _counts(self, inputs: Inputs, mask: Any, rows: slice) -> np.ndarray | None:
        """Return which places of some samples count; None means all."""
        if mask is not None:
            return np.asarray(from_tensor(mask))[rows] != 0
        names = self._reader.names or ()
        if "attention_mask" not in names:
            return None
        return inputs.parts[names.index("attention_mask")].cpu().numpy() != 0

    def _maps(self, X: Any, mask: Any, ask: Callable[[Any, Any], Any], fill: Any) -> Any:
        """Return maps of the answers about places, filled where these do not count."""
        check_is_fitted(self)
        est, found = self.estimator_, []
        stored = self._reader.rows(open_rows(X))
        with self._short_passes():
            for rows in batches(stored):
                inputs = stored[rows]
                features = self._reader(inputs).cpu().numpy()
                counts = self._counts(inputs, mask, rows)
                if counts is None:
                    counts = np.ones(features.shape[:-1], dtype=bool)
                counts = _fitting(counts, features.shape[:-1], "mask", "the network")
                asked = features[counts]
                if not len(asked):  # one place, for the kind of answer
                    asked = features.reshape(-1, features.shape[-1])[:1]
                maps = []
                for values in ask(est, asked):
                    whole = np.full((*counts.shape, *values.shape[1:]), fill, values.dtype)
                    whole[counts] = values[: counts.sum()]
                    maps.append(whole)
                found.append(maps)
        return [_joined(parts, fill) for parts in zip(*found, strict=True)]

    def predict_uncertainty(self, X: Any, *, mask: Any = None) -> Uncertainty:
        """Estimate the uncertainty of the label of each place.

        Returns
        -------
        Uncertainty
            Three arrays of shape (n_samples, height, width) or (n_samples, n_tokens), NaN where a
            place does not count. ``u.per_row("max")`` has one number a sample.
        """
        return Uncertainty(*self._maps(X, mask, lambda est, x: est.predict_uncertainty(x), np.nan))

    def predict(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """Predict the label of each place.

        Returns
        -------
        ndarray of shape (n_samples, ...)
            Labels, ``ignore_label`` where a place does not count.
        """
        return self._maps(X, mask, lambda est, x: [est.predict(x)], self.ignore_label)[0]

    def predict_proba(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """Predict the probability of each class at each place.

        Returns
        -------
        ndarray of shape (n_samples, ..., n_classes)
            Probabilities, classes last, NaN where a place does not count.
        """
        return self._maps(X, mask, lambda est, x: [est.predict_proba(x)], np.nan)[0]

    def score(self, X: Any, y: Any, *, mask: Any = None) -> float:
        """Return the share of labelled places whose label is right.

        Parameters
        ----------
        y : array-like of shape (n_samples, ...)
            Labels, ``ignore_label`` for places that do not count.

        Returns
        -------
        float
            The accuracy over places.
        """
        labels, found = np.asarray(from_tensor(y)), self.predict(X, mask=mask)
        counts = (labels != self.ignore_label) & (found != self.ignore_label)
        return float((labels == found)[counts].mean())


def _fitting(counts: np.ndarray, shape: tuple[int, ...], what: str, of: str) -> np.ndarray:
    """Return an array about places, if it has as many as there are."""
    if counts.shape != shape:
        raise ValueError(
            f"A row of {what} has places of shape {counts.shape[1:]}, but {of} has {shape[1:]}. "
            "Labels must be of the size of the scores: resize them, or the scores in the network."
        )
    return counts


def _joined(parts: tuple[np.ndarray, ...], fill: Any) -> np.ndarray:
    """Return maps of all samples; smaller ones, of texts that are padded less, are filled up."""
    size = np.max([part.shape[1:] for part in parts], axis=0).tolist()
    grown = []
    for part in parts:
        widths = [(0, whole - own) for whole, own in zip(size, part.shape[1:], strict=True)]
        grown.append(np.pad(part, [(0, 0), *widths], constant_values=fill))
    return np.concatenate(grown)
