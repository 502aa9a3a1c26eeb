"""Scorers for scikit-learn's searches, a table that compares methods, and the reject option.

A scorer goes where scikit-learn takes ``scoring=``. The estimator may be one of the package, a
pipeline that ends in one, or a ``GridSearchCV`` over either.

A network that was passed fitted is not trained for each fold: scored on rows that it was trained
on, it looks too good. Train it without some rows and score only these, with
``cv=PredefinedSplit(...)``; or pass an unfitted estimator, which is trained for each fold. A
``SeenRowsWarning`` says if most rows that are scored were passed to ``fit``.
"""

from ._comparison import compare_uncertainty
from ._reject import RejectOptionClassifier
from ._scorers import (
    log_score_scorer,
    make_failure_scorer,
    make_ood_scorer,
    misclassification_scorer,
    rejection_scorer,
)
from ._transformer import UncertaintyTransformer

__all__ = [
    "RejectOptionClassifier",
    "UncertaintyTransformer",
    "compare_uncertainty",
    "log_score_scorer",
    "make_failure_scorer",
    "make_ood_scorer",
    "misclassification_scorer",
    "rejection_scorer",
]
