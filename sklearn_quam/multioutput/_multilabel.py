"""Several labels a sample: each is a yes-or-no question to the same network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import _fit_context, clone
from sklearn.utils.validation import check_is_fitted
from torch import nn

from .._documented import documented
from .._network.adapters import module_of, split_pipeline
from .._network.inputs.rows import from_tensor
from .._network.limits import batches, computing
from .._posterior.results import Uncertainty
from ._head import SHARED, HeadClassifier, open_rows, targets_of

# What a network with a single score returns, by what stands behind its last layer.
_LINKS = {"nothing": "binary_logit", "sigmoid": "probability"}


@documented(SHARED)
class MultiLabelClassifier(HeadClassifier):
    """Uncertainty of networks that decide for each of several labels whether a sample has it.

    Each label is a question of its own with two answers: its numbers are those of the wrapped
    estimator around the network with the score of this label alone. Where only the last layer may
    differ, the part before it is run once for all labels; otherwise each label has a copy of the
    network.

    Parameters
    ----------
    estimator : estimator
        A classifier of the package that holds the trained network, such as
        ``QUAMClassifier(network)``. The network returns a score for each label, (n_samples,
        n_labels), with or without a sigmoid behind it. Arguments mean what they do elsewhere;
        ``link`` is not needed.

    Attributes
    ----------
    estimators_ : list
        The wrapped estimator, fitted for each label.
    classes_ : list of ndarray of shape (2,)
        The answers 0 and 1, for each label.
    n_labels_ : int
        Number of labels.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import QUAMClassifier
    >>> from sklearn_quam.multioutput import MultiLabelClassifier
    >>> X, Y = make_multilabel_classification(50, n_classes=3, random_state=0)
    >>> network = MLPClassifier((8,), solver="lbfgs", max_iter=20, random_state=0).fit(X, Y)
    >>> est = MultiLabelClassifier(QUAMClassifier(network, search="linear", random_state=0))
    >>> u = est.fit(X, Y).predict_uncertainty(X)
    >>> u.epistemic.shape
    (50, 3)
    >>> u.per_row("sum").epistemic.shape
    (50,)
    """

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
    ) -> Any:
        """Fit the wrapped estimator for each label.

        Parameters
        ----------
        y : array-like of shape (n_samples, n_labels), default=None
            Zeros and ones; None takes them from a data set.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples.
        X_val : array-like of shape (n_val, ...), default=None
            Held-out samples, which calibrate `predict_set` for each label.
        y_val : array-like of shape (n_val, n_labels), default=None
            Their labels.
        """
        transformers, network = split_pipeline(self._given["estimator"])
        if transformers is not None:
            raise TypeError(
                "The network is behind transformers. Pass the network alone, and rows as the "
                "transformers make them."
            )
        if (X_val is None) != (y_val is None):
            raise ValueError("X_val and y_val go together: pass both or neither.")
        source = open_rows(X)
        y = targets_of(source, y)
        head = self._take_apart(network, source)
        self.n_labels_ = head.out_features
        y = _as_labels(y, self.n_labels_)
        y_val = None if y_val is None else _as_labels(y_val, self.n_labels_)
        if self._reader.ending not in _LINKS:
            raise ValueError(
                f"The network ends in a {self._reader.ending}, which allows one label a row. Pass "
                "a network that returns a score for each label."
            )

        def fitted(label: int, X: Any, X_val: Any, network: nn.Module, **own: Any) -> Any:
            est = clone(self.estimator).set_params(estimator=network, **own)
            held_out = {} if X_val is None else {"X_val": X_val, "y_val": y_val[:, label]}
            return est.fit(X, y[:, label], sample_weight, **held_out)

        link, labels = _LINKS[self._reader.ending], range(self.n_labels_)
        first = fitted(0, X, X_val, self._with_one_label(network, 0), link=link)
        self._head_alone = self._searches_last_layer(first, head)
        if self._head_alone:
            own = {"link": "binary_logit", "output": None, "parameters": "last_layer"}
            X, X_val = self._rows(X), None if X_val is None else self._rows(X_val)
            heads = [_of_label(copy.deepcopy(head), label) for label in labels]
            self.estimators_ = [fitted(i, X, X_val, heads[i], **own) for i in labels]
        else:
            copies = (self._with_one_label(network, label) for label in labels[1:])
            others = [fitted(i, X, X_val, one, link=link) for i, one in enumerate(copies, start=1)]
            self.estimators_ = [first, *others]
        self.classes_ = [est.classes_ for est in self.estimators_]
        return self

    def _with_one_label(self, network: Any, label: int) -> nn.Module:
        """Return a copy of a network whose last layer has the output for one label only."""
        module = module_of(network)
        _of_label(module.get_submodule(self._reader.last), label)
        return module

    def _searches_last_layer(self, est: Any, head: nn.Linear) -> bool:
        """Return whether an estimator changes all of the last layer, and nothing else."""
        last = {f"{self._reader.last}.{name}".lstrip(".") for name in ("weight", "bias")}
        size = head.in_features + (head.bias is not None)
        names = getattr(est, "parameter_names_", None)
        return names is not None and set(names) <= last and est.n_parameters_searched_ == size

    def _rows(self, X: Any) -> Any:
        """Return samples as the estimators of labels take them."""
        if not self._head_alone:
            return X
        stored = self._reader.rows(open_rows(X))
        with computing(), self._short_passes():
            parts = [self._reader(stored[rows]).cpu().numpy() for rows in batches(stored)]
        return np.concatenate(parts)

    def _each(self, X: Any, ask: Callable[[Any, Any], Any]) -> list[Any]:
        """Return the answers of the estimators of all labels."""
        check_is_fitted(self)
        rows = self._rows(X)
        return [ask(est, rows) for est in self.estimators_]

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Estimate the uncertainty of the answer for each label.

        Returns
        -------
        Uncertainty
            Three arrays of shape (n_samples, n_labels); ``u.per_row("sum")`` has one number a
            sample.
        """
        found = self._each(X, lambda est, rows: est.predict_uncertainty(rows))
        return Uncertainty(*(np.column_stack(parts) for parts in zip(*found, strict=True)))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probability of each label.

        Returns
        -------
        ndarray of shape (n_samples, n_labels)
            Probabilities that a sample has a label; they need not sum to one.
        """
        return np.column_stack(self._each(X, lambda est, rows: est.predict_proba(rows)[:, 1]))

    def predict(self, X: Any) -> np.ndarray:
        """Predict which labels each sample has.

        Returns
        -------
        ndarray of shape (n_samples, n_labels), dtype int
            Zeros and ones.
        """
        return np.column_stack(self._each(X, lambda est, rows: est.predict(rows)))

    def predict_set(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Return which answers are plausible for each label.

        Parameters
        ----------
        coverage : float, default=0.9
            Share of the right answers that are to be in their sets, for each label by itself.

        Returns
        -------
        ndarray of shape (n_samples, n_labels, 2), dtype bool
            Whether "no" and "yes" are in the set.
        """
        found = self._each(X, lambda est, rows: est.predict_set(rows, coverage))
        return np.stack(found, axis=1)

    def score(self, X: Any, y: Any) -> float:
        """Return the share of samples all of whose labels are right.

        Parameters
        ----------
        y : array-like of shape (n_samples, n_labels)
            Zeros and ones.

        Returns
        -------
        float
            The accuracy.
        """
        check_is_fitted(self)
        return float((_as_labels(y, self.n_labels_) == self.predict(X)).all(axis=1).mean())


def _as_labels(y: Any, n_labels: int) -> np.ndarray:
    """Return zeros and ones, a column for each label."""
    labels = np.asarray(from_tensor(y))
    if labels.ndim != 2 or labels.shape[1] != n_labels or not np.isin(labels, (0, 1)).all():
        raise ValueError(
            f"y must hold zeros and ones in {n_labels} columns, one for each score of the network; "
            f"got {labels.dtype} of shape {labels.shape}."
        )
    return labels.astype(np.int64)


def _of_label(layer: Any, label: int) -> nn.Module:
    """Leave the output for one label to a linear layer."""
    for name, tensor in layer.named_parameters():
        setattr(layer, name, nn.Parameter(tensor[label : label + 1], requires_grad=False))
    layer.out_features = 1
    return layer
