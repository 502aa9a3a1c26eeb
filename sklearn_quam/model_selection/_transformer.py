"""Uncertainties as columns of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, TransformerMixin, _fit_context, clone
from sklearn.utils import get_tags
from sklearn.utils._param_validation import HasMethods
from sklearn.utils.validation import check_is_fitted

from .._arguments import allowed, arguments
from .._documented import documented
from .._messages import ShortMessages
from .._posterior.results import COMPONENTS
from ..base._inside import method_and_rows, opened
from ._reject import ARGUMENTS


@documented(ARGUMENTS)
@arguments
class UncertaintyTransformer(ShortMessages, MetaEstimatorMixin, TransformerMixin, BaseEstimator):
    """Transform samples into the uncertainties of a method: columns for the next model.

    It goes into a ``ColumnTransformer`` or ``FeatureUnion``, beside other columns.

    Parameters
    ----------
    estimator : estimator
        A method of the package, or a pipeline that ends in one. It is cloned and fitted to the
        samples passed to `fit`, whose uncertainties are then smaller than those of new ones. A
        fitted one is taken as it is if it is frozen: ``FrozenEstimator(est)``.
    components : tuple of str, default=("aleatoric", "epistemic")
        Which columns, of "aleatoric", "epistemic", "total" and "doubt". Doubt takes a method that
        was fitted with ``X_val``.

    Attributes
    ----------
    estimator_ : estimator
        The fitted method.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_quam import LaplaceClassifier
    >>> from sklearn_quam.model_selection import UncertaintyTransformer
    >>> X, y = load_iris(return_X_y=True)
    >>> columns = UncertaintyTransformer(LaplaceClassifier(random_state=0)).fit(X, y)
    >>> columns.transform(X).shape
    (150, 2)
    >>> columns.get_feature_names_out().tolist()
    ['aleatoric', 'epistemic']
    """

    estimator: Any = allowed(HasMethods(["fit", "predict"]), kw_only=False)
    components: Any = allowed(list, tuple, default=("aleatoric", "epistemic"))

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit the method, unless it is frozen.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data.
        **fit_params : dict
            Arguments of the method's ``fit``, such as ``X_val``.
        """
        unknown = [name for name in self.components if name not in COMPONENTS]
        if unknown:
            raise ValueError(f"components must be among {COMPONENTS}; got {unknown[0]!r}.")
        opened(self.estimator)
        self.estimator_ = clone(self.estimator).fit(X, y, **fit_params)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return uncertainties.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            A column for each component; 1e300 for infinite.
        """
        check_is_fitted(self)
        method, rows = method_and_rows(self.estimator_, X)
        uncertainty = method.predict_uncertainty(rows)
        return np.column_stack([uncertainty._part(name) for name in self.components])

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:  # noqa: ARG002
        """Return the names of the columns.

        Parameters
        ----------
        input_features : array-like of str, default=None
            Not used.

        Returns
        -------
        ndarray of str
            The components.
        """
        check_is_fitted(self)
        return np.array(self.components, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):
            tags.input_tags = get_tags(self.estimator).input_tags
            tags.target_tags.required = get_tags(self.estimator).target_tags.required
        return tags
