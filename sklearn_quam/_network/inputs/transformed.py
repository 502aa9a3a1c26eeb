"""Rows behind the transformers of a pipeline."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array

from ..._messages import cut, is_about_numbers
from .rows import Source
from .sources import StoredArrays, Transformed, open_source


def transformed(transformers: Pipeline | None, X: Any, source: Source | None) -> Source:
    """Return X, or the source of its rows, behind the transformers."""
    if transformers is None:
        return StoredArrays((X,)) if source is None else source
    if isinstance(source, StoredArrays) and len(source.arrays) == 1:
        return Transformed(source, partial(transform, transformers))
    rows = _transform(transformers, X)
    return open_source(rows) or StoredArrays((_checked(rows),))


def as_dense(X: Any) -> Any:
    """Return sparse rows as an array."""
    return X.toarray() if issparse(X) else X


def transform(transformers: Pipeline, X: Any) -> np.ndarray:
    """Return some rows, transformed."""
    return _checked(_transform(transformers, X))


def _transform(transformers: Pipeline, X: Any) -> Any:
    try:
        return transformers.transform(X)
    except (TypeError, ValueError) as error:
        if not is_about_numbers(error):
            raise
        raise ValueError(
            f"The pipeline's transformers take numbers, but {cut(error)}. Pass columns of the "
            "types that they were fitted with, or put an encoder among them."
        ) from error


def _checked(rows: Any) -> np.ndarray:
    """Return transformed rows as an array of finite numbers."""
    what = "What the pipeline's transformers make of X"
    try:
        rows = check_array(as_dense(rows), allow_nd=True, ensure_all_finite=False)
    except (TypeError, ValueError) as error:
        if not is_about_numbers(error):
            raise
        raise ValueError(
            f"{what} is no table of numbers: {cut(error)}. Put an encoder among them."
        ) from error
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        found = "NaN" if np.isnan(rows).any() else "infinity"
        raise ValueError(
            f"{what} contains {found}. Leave such rows out, or put an imputer among the "
            "transformers."
        )
    return rows
