"""What users pass as X and y, checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d, validate_data

from .._messages import cut, is_about_numbers
from .._network.adapters import is_torch, split_pipeline
from .._network.inputs.items import StoredDataset
from .._network.inputs.rows import Source, StoredRows, from_tensor, refuse_masked
from .._network.inputs.sources import as_dense, open_source, transformed
from .._network.predictions import Prediction
from .._network.reference import ReferenceModel, TrainingSet
from .checks.refused import refuse_single_row, refuse_targets, refuse_texts


class Passed(NamedTuple):
    """Arguments of ``fit``, as they were passed and after they were checked."""

    X: Any
    X_checked: Any
    y_checked: np.ndarray
    sample_weight: np.ndarray | None
    fit_params: dict[str, Any]
    X_val: Any
    y_val: np.ndarray | None


@dataclass(frozen=True)
class FitData:
    """The network and its data, for a method that is fitted.

    Parameters
    ----------
    reference : ReferenceModel
        The given network, or the one that was just trained.
    training : TrainingSet
        Its training data, as it takes them, with their values at the cut if there is one.
    original : Prediction
        Its predictions for them.
    network : FreeNetwork or None
        The network cut where its weights may change; None if the method changes none.
    seed : int
        Seed of all draws of the method.
    passed : Passed
        Arguments of ``fit``.
    """

    reference: ReferenceModel
    training: TrainingSet
    original: Prediction
    network: Any
    seed: int
    passed: Passed


def check_target(task: str, y: Any, name: str = "y") -> np.ndarray:
    """Return a column of labels, or a vector or matrix of values."""
    refuse_masked(y, name)
    if task == "regressor":
        return check_array(from_tensor(y), ensure_2d=False, input_name=name)
    return column_or_1d(from_tensor(y), warn=True)


def check_training_data(
    method: Any, X: Any, y: Any, estimator: Any
) -> tuple[Any, np.ndarray, Source | None]:
    """Return checked X and y, and the source that X is read from if it is no array.

    It sets ``n_features_in_`` and ``feature_names_in_`` of the method.
    """
    regression = method._task == "regressor"
    X, source = from_tensor(X), open_source(X)
    transformers = split_pipeline(estimator)[0]
    if method._scales_inputs or transformers is None:
        refuse_texts(X)
    # Texts for transformers are a vector of rows.
    if transformers is None or getattr(getattr(X, "dtype", None), "kind", "O") in "biufc":
        refuse_single_row(X)
    if y is None and isinstance(source, StoredDataset):
        y = source.targets() if regression else source.labels()
    refuse_masked(y, "y")
    y = from_tensor(y)
    refuse_targets(y, method._task)
    any_ndim = is_torch(estimator)
    if source is None and (method._scales_inputs or transformers is None):
        X = X if any_ndim else as_dense(X)
        X, y = validated(
            method, X, y, allow_nd=any_ndim, multi_output=regression, y_numeric=regression
        )
    else:
        if source is None:
            # The transformers know best what they accept: text, missing values, categories.
            validate_data(method, X, y, skip_check_array=True)
        else:
            _check_source(method, source, reset=True, any_ndim=any_ndim)
        check_consistent_length(X if source is None else source, y)
        y = check_target(method._task, y)
    if not regression:
        check_classification_targets(y)
    return X, y, source


def check_rows(method: Any, X: Any, reference: ReferenceModel) -> StoredRows:
    """Return checked samples as the network takes them, read when they are needed."""
    if method._scales_inputs or reference.transformers is None:
        refuse_texts(X)
    # A pipeline without a number of columns takes texts, which are a vector.
    if reference.transformers is None or hasattr(method, "n_features_in_"):
        refuse_single_row(X)
    X, source = from_tensor(X), open_source(X, len(reference.input_dtypes))
    if source is not None:
        _check_source(method, source, reset=False, any_ndim=reference.any_ndim)
    elif method._scales_inputs or reference.transformers is None:
        X = X if reference.any_ndim else as_dense(X)
        X = validated(method, X, reset=False, allow_nd=reference.any_ndim)
    else:
        validate_data(method, X, reset=False, skip_check_array=True)
    return reference.inputs(transformed(reference.transformers, X, source))


def check_weight(sample_weight: Any, y: np.ndarray) -> np.ndarray:
    """Return a weight for each row, none of them negative, not all of them zero."""
    try:
        checked = _check_sample_weight(from_tensor(sample_weight), y, ensure_non_negative=True)
    except (TypeError, ValueError) as error:
        if not is_about_numbers(error):
            raise
        raise ValueError(f"sample_weight must hold numbers, but {cut(error)}.") from error
    if not checked.any():
        raise ValueError("sample_weight is zero for every row.")
    return checked


def one_row(x: Any) -> Any:
    """Return a single row as rows of a table, however it was passed."""
    if hasattr(x, "to_frame"):  # a row of a DataFrame
        return x.to_frame().T.infer_objects()
    x = from_tensor(x)
    try:
        x = x if hasattr(x, "shape") else np.asarray(x)
    except ValueError as error:
        raise ValueError("x must have rows of the same length.") from error
    # A vector of texts or objects is a column of rows for the transformers of a pipeline.
    is_column = hasattr(x, "dtype") and getattr(x.dtype, "kind", "f") in "OUS"
    x = x[None] if len(x.shape) == 1 and not is_column else x
    n_rows = x.shape[0] if x.shape else 0
    if n_rows != 1:
        raise ValueError(f"x must be a single row; got {n_rows} rows. Pass X[i : i + 1].")
    return x


def validated(method: Any, X: Any, *y: Any, **options: Any) -> Any:
    """Return what scikit-learn's validation returns; refuse what is no number in plain words."""
    try:
        found = validate_data(method, X, *y, **options)
        rows = found[0] if y else found
        if rows.dtype != object:
            return found
        rows = rows.astype(float)
        return (rows, *found[1:]) if y else rows
    except (TypeError, ValueError) as error:
        if not is_about_numbers(error):
            raise
        raise type(error)(
            f"X must hold numbers, but {cut(error)}. Put an encoder before the network, in a "
            "pipeline that was fitted together with it."
        ) from error


def _check_source(method: Any, source: Source, *, reset: bool, any_ndim: bool) -> None:
    """Check the first rows of what is read some at a time; others when they are read."""
    if not len(source):
        raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
    parts, again = source.read(slice(0, 4)), source.read(slice(0, 4))
    if not all(map(partial(np.array_equal, equal_nan=True), parts, again)):
        raise ValueError(
            "X returns other values when it is read again. Switch random augmentation off."
        )
    if len(parts) == 1 and source.names is None:
        validate_data(method, parts[0], reset=reset, allow_nd=any_ndim, ensure_all_finite=False)
    elif not any_ndim:
        raise TypeError("X holds several inputs, but this network takes a single table.")
    elif reset:
        # Columns are those of a single table.
        for name in ("n_features_in_", "feature_names_in_"):
            method.__dict__.pop(name, None)
