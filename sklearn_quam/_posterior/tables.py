"""Arrays with an entry for each row: picked by rows, printed as a few lines, a frame on demand."""

from __future__ import annotations

import copy
import html
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

# Stands for an infinite uncertainty: above all others, and yet a number, so that metrics take it,
# and sums and means of it are finite.
INFINITE = 1e300
_N_SHOWN = 5
_QUANTILES = (0.05, 0.5, 0.95)
_LONGEST_TEXT = 30


class RowTable:
    """Columns of equal length: ``len(table)`` is the number of rows, ``table[:5]`` are rows."""

    # Row labels of the X that was asked about.
    _index: Any = None

    def _columns(self) -> dict[str, np.ndarray]:
        """Return the columns by name."""
        raise NotImplementedError

    def _of_columns(self, columns: dict[str, np.ndarray]) -> Self:
        """Return a table of the same kind that has these columns."""
        return type(self)(**columns)

    def _labelled(self, index: Any) -> Self:
        """Return the table with row labels."""
        if index is None:
            return self
        table = copy.copy(self)
        object.__setattr__(table, "_index", index)
        return table

    def __len__(self) -> int:
        return len(next(iter(self._columns().values())))

    def __getitem__(self, rows: Any) -> Self:
        """Return some rows: those of a slice, a mask, or numbers of rows."""
        if isinstance(rows, Integral):
            # A table of a single row.
            rows = np.arange(len(self))[rows : rows + 1 or None]
            if not len(rows):
                raise IndexError(f"There are {len(self)} rows.")
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if rows.dtype.kind not in "iub" and rows.size:
                raise TypeError(
                    "Rows are picked by a slice, a mask or their numbers; columns are attributes, "
                    f"such as {next(iter(self._columns()))}."
                )
            rows = rows if rows.size else rows.astype(int)
        picked = {name: column[rows] for name, column in self._columns().items()}
        return self._of_columns(picked)._labelled(
            None if self._index is None else self._index[rows]
        )

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

        return pd.DataFrame(self._columns(), index=self._index if index is None else index)

    def _printed(self) -> list[list[str]]:
        """Return the cells of the first rows, and of quantiles over all of them."""
        columns, n_rows = self._columns(), len(self)
        labels = range(n_rows) if self._index is None else self._index
        lines = [["", *columns]]
        for row in range(min(n_rows, _N_SHOWN)):
            cells = (_told(np.ravel(column)[row]) for column in columns.values())
            lines.append([_told(labels[row]), *cells])
        if n_rows > _N_SHOWN:
            lines.append(["...", *[""] * len(columns)])
            numeric = {name: column.dtype.kind in "iuf" for name, column in columns.items()}
            for share in _QUANTILES:
                quantiles = (
                    _told(np.quantile(column, share, method="nearest")) if numeric[name] else ""
                    for name, column in columns.items()
                )
                lines.append([f"{share:.0%}".replace("%", " %"), *quantiles])
        return lines

    def __repr__(self) -> str:
        lines = self._printed()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [self._title()]
        for label, *cells in lines:
            padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            text.append("  ".join([label.ljust(widths[0]), *padded]).rstrip())
        return "\n".join(text)

    def _repr_html_(self) -> str:
        head, *body = [[html.escape(cell) for cell in line] for line in self._printed()]
        top = "".join(f"<th>{cell}</th>" for cell in head)
        rows = (
            f"<tr><th>{label}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
            for label, *cells in body
        )
        return (
            f"<table><caption>{self._title()}</caption><thead><tr>{top}</tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table>"
        )

    def _title(self) -> str:
        n_rows = len(self)
        more = ", with quantiles of all" if n_rows > _N_SHOWN else ""
        return f"{type(self).__name__} of {n_rows} {'row' if n_rows == 1 else 'rows'}{more}"


def _told(value: Any) -> str:
    """Return a value as a short text."""
    if isinstance(value, (float, np.floating)):
        return "infinite" if value >= INFINITE else f"{value:.3g}"
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."


def index_of(X: Any) -> Any:
    """Return the row labels of a frame or series of pandas, None of other data."""
    return X.index if hasattr(X, "iloc") else None
