"""What the package warns about, so that each warning can be silenced or made an error by itself."""

from __future__ import annotations

__all__ = ["BeyondRangeWarning", "FailedRowsWarning", "SlowWarning", "UncertaintyWarning"]


class UncertaintyWarning(UserWarning):
    """Something about a network, its training data or some rows that numbers alone do not tell.

    The common ancestor of all warnings of the package.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import UncertaintyWarning
    >>> warnings.simplefilter("error", UncertaintyWarning)    # none of them goes unseen
    """


class BeyondRangeWarning(UncertaintyWarning):
    """Some rows are so far from the training data that the network cannot compute with them.

    Their epistemic and total uncertainty is 1e300, which stands for infinite. Fill values such as
    1e20 are the usual reason.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import BeyondRangeWarning
    >>> warnings.simplefilter("ignore", BeyondRangeWarning)    # the numbers are enough
    """


class FailedRowsWarning(UncertaintyWarning):
    """The network raises an error for some rows; the others are answered.

    The epistemic and total uncertainty of such rows is 1e300, which stands for infinite, and the
    column ``error`` of the diagnostics says what the network said.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import FailedRowsWarning
    >>> warnings.simplefilter("ignore", FailedRowsWarning)    # the numbers are enough
    """


class SlowWarning(UncertaintyWarning):
    """A run will take more than ten minutes; says what would make it shorter.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import SlowWarning
    >>> warnings.simplefilter("ignore", SlowWarning)    # there is time
    """
