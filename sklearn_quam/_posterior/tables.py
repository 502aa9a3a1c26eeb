"""Tables with an entry for each sample: indexed by samples, printed in a few lines, or a frame."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

# Stands for an infinite uncertainty: larger than all others, and yet finite, because metrics such
# as `roc_auc_score` refuse inf, and sums and means of it have to be numbers.
INFINITE = 1e300
_N_SHOWN = 5
_QUANTILES = [0.05, 0.5, 0.95]
_LONGEST_TEXT = 30


class RowTable:
    """Base of frozen dataclasses of columns: ``len(table)`` samples, of which ``table[:5]``."""

    # Row labels of the X that was asked about.
    _index: Any = None

    def _columns(self) -> dict[str, np.ndarray]:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: column for name, column in columns.items() if column is not None}

    def _labelled(self, index: Any) -> Self:
        """Return the table with row labels, or as it is for None."""
        if index is None:
            return self
        table = copy.copy(self)
        object.__setattr__(table, "_index", index)
        return table

    def __len__(self) -> int:
        return len(next(iter(self._columns().values())))

    def __getitem__(self, rows: Any) -> Self:
        """Return the samples of a slice, a mask, or numbers."""
        if isinstance(rows, str):
            raise TypeError(
                "Rows are picked by a slice, a mask or their numbers; columns are attributes, "
                f"such as {next(iter(self._columns()))}."
            )
        try:
            picked = np.atleast_1d(np.arange(len(self))[rows])
        except IndexError as error:
            raise IndexError(f"There are {len(self)} rows: {error}.") from None
        table = type(self)(**{name: column[picked] for name, column in self._columns().items()})
        return table._labelled(None if self._index is None else self._index[picked])

    def to_frame(self, index: Any = None) -> pd.DataFrame:
        """Return the arrays as columns of a DataFrame.

        Parameters
        ----------
        index : array-like of shape (n_samples,), default=None
            Row labels; None takes those of the X that was asked about, if it is a frame.

        Returns
        -------
        pandas.DataFrame
            One column for each array.
        """
        import pandas as pd

        shape = next(iter(self._columns().values())).shape[1:]
        if shape:
            raise ValueError(
                f"Rows have several numbers, {shape}: make a frame of u.per_row('mean'), or of one "
                "label, Uncertainty(*(part[:, 0] for part in u))."
            )
        return pd.DataFrame(self._columns(), index=self._index if index is None else index)

    def _printed(self) -> pd.DataFrame:
        """Return the first samples, and quantiles over all of them, as texts."""
        import pandas as pd

        table = self.to_frame()
        shown = table[:_N_SHOWN].map(_as_text)
        shown.index = shown.index.map(_as_text)
        if len(table) <= _N_SHOWN:
            return shown
        numbers = table.select_dtypes("number")
        quantiles = numbers.quantile(_QUANTILES, interpolation="nearest").map(_as_text)
        quantiles.index = [f"{100 * share:g} %" for share in _QUANTILES]
        return pd.concat([shown, pd.DataFrame(index=["..."]), quantiles])[table.columns].fillna("")

    def __repr__(self) -> str:
        return f"{self._title()}\n{self._printed().to_string()}"

    def _repr_html_(self) -> str:
        return f"<p>{self._title()}</p>{self._printed().to_html()}"

    def _title(self) -> str:
        n_rows = len(self)
        more = ", with quantiles of all" if n_rows > _N_SHOWN else ""
        return f"{type(self).__name__} of {n_rows} {'row' if n_rows == 1 else 'rows'}{more}"


def _as_text(value: Any) -> str:
    """Return a value as a short text."""
    if isinstance(value, (float, np.floating)):
        return "infinite" if value >= INFINITE else f"{value:.3g}"
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."


def index_of(X: Any) -> Any:
    """Return the row labels of a frame or series of pandas, None of other data."""
    return X.index if hasattr(X, "iloc") else None
