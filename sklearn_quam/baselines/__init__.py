"""Methods to compare with, one file each."""

from .reference import ReferenceClassifier, ReferenceRegressor

__all__ = ["ReferenceClassifier", "ReferenceRegressor"]
