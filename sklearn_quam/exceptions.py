"""What the package warns about, so that each warning can be silenced or made an error by itself."""

from __future__ import annotations

__all__ = [
    "BeyondRangeWarning",
    "CollapsedWeightsWarning",
    "FailedRowsWarning",
    "LinkWarning",
    "MissingClassesWarning",
    "PoorFitWarning",
    "SeenRowsWarning",
    "SlowWarning",
    "UncertaintyWarning",
]


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


class CollapsedWeightsWarning(UncertaintyWarning):
    """For most rows, almost nothing but the given network counts.

    Of the models that QUAM has met, the others have next to no weight: the temperature is too low,
    or costs look higher than they are. The epistemic uncertainty is close to zero then, whatever
    the searches have found.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import CollapsedWeightsWarning
    >>> warnings.simplefilter("error", CollapsedWeightsWarning)
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


class LinkWarning(UncertaintyWarning):
    """What a network returns is taken for logits, but looks like probabilities.

    The softmax that is applied to logits would make all classes almost equally likely.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import LinkWarning
    >>> warnings.simplefilter("error", LinkWarning)
    """


class MissingClassesWarning(UncertaintyWarning):
    """Training rows of some of the network's classes are missing.

    Models may say anything about these classes at no cost: every row looks doubtful.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import MissingClassesWarning
    >>> warnings.simplefilter("error", MissingClassesWarning)
    """


class PoorFitWarning(UncertaintyWarning):
    """The network explains the training data worse than no network at all would.

    The class frequencies, or the mean of the targets, have a lower loss than ``reference_loss_``.
    Most often X is not scaled, or y not encoded, as it was when the network was trained.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import PoorFitWarning
    >>> warnings.simplefilter("error", PoorFitWarning)
    """


class SeenRowsWarning(UncertaintyWarning):
    """A score or a threshold is taken from rows that the network was trained on.

    A network knows these rows better than new ones: scores are too good, and thresholds too
    strict. Hold rows out before the network is trained.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import SeenRowsWarning
    >>> warnings.simplefilter("ignore", SeenRowsWarning)    # the scores of training rows are meant
    """


class SlowWarning(UncertaintyWarning):
    """A run will take more than ten minutes; says what would make it shorter.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import SlowWarning
    >>> warnings.simplefilter("ignore", SlowWarning)    # there is time
    """
