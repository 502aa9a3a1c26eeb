"""Classifiers that answer several questions a row: labels, pixels, tokens."""

from ._dense import DenseClassifier
from ._multilabel import MultiLabelClassifier

__all__ = ["DenseClassifier", "MultiLabelClassifier"]
