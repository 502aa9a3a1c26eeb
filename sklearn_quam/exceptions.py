"""What the package warns about and raises, so that each can be caught or silenced by itself."""

from __future__ import annotations

import sys
import warnings

__all__ = [
    "BeyondRangeWarning",
    "CollapsedWeightsWarning",
    "CurvatureError",
    "FailedRowsWarning",
    "LinkWarning",
    "MissingClassesWarning",
    "NetworkError",
    "PoorFitWarning",
    "SeenRowsWarning",
    "SlowNetworkWarning",
    "SlowWarning",
    "TrainingLossWarning",
    "UncertaintyWarning",
    "UnreadableFileError",
]

# Functions of these stand between a method of the package and who has called it.
_WRAPPERS = ("contextlib", "sklearn.base", "sklearn.utils._param_validation")


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line outside the package that has called it.

    Parameters
    ----------
    message : str
        What is to be said.
    category : type
        The kind of warning.
    """
    frame, level, outside = sys._getframe(1), 2, 2
    package = __name__.partition(".")[0]
    was_inside = True
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        inside = name.partition(".")[0] == package or (was_inside and name in _WRAPPERS)
        if inside:
            outside = level + 1
        was_inside = inside
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=outside)


class NetworkError(ValueError):
    """The network, or an estimator around it, raises an error when it is run.

    Its cause (``__cause__``) is the error itself.

    Examples
    --------
    >>> from torch import nn
    >>> from sklearn_quam import ReferenceClassifier
    >>> from sklearn_quam.exceptions import NetworkError
    >>> try:
    ...     ReferenceClassifier(nn.Linear(4, 2)).fit([[0.0, 1.0, 2.0]] * 2, [0, 1])
    ... except NetworkError as error:
    ...     print(type(error.__cause__).__name__)
    RuntimeError
    """


class CurvatureError(ValueError):
    """The curvature of the training loss cannot be measured, or does not fit the memory.

    With ``search="auto"``, the search needs none instead, which is said in a warning.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import QUAMClassifier
    >>> from sklearn_quam.exceptions import CurvatureError
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1]
    >>> network = LogisticRegression().fit(X, y)
    >>> try:
    ...     QUAMClassifier(network, search="natural", memory_limit=10).fit(X, y)
    ... except CurvatureError as error:
    ...     print(error)    # doctest: +ELLIPSIS
    The curvature of what is searched needs ...
    """


class UnreadableFileError(ValueError):
    """A file that cannot be loaded: damaged, of another kind or version, or of another network.

    Examples
    --------
    >>> from sklearn_quam import load
    >>> from sklearn_quam.exceptions import UnreadableFileError
    >>> try:
    ...     load(".", estimator=None)
    ... except UnreadableFileError as error:
    ...     print(error)
    '.' cannot be loaded: it is a folder.
    """


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
    """Some rows are far outside of the range of all training rows.

    A value is more than a hundred times as far from the middle of the training rows' values as
    these are apart, a whole row is more than ten times as far (root mean square over its features),
    or the numbers of the network overflow, saturate or lose all their digits. The epistemic and
    total uncertainty of such rows is 1e300, which stands for infinite, and detectors give them
    minus infinity. Fill values such as 1e20, and features that are not scaled, are the usual
    reasons.

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


class SlowNetworkWarning(UncertaintyWarning):
    """The network of QUAM is run as a whole, or model by model, so that every row takes long.

    ``fit`` says it once. What is fast are linear layers at the end of the network, one after the
    other: ``parameters="last_layer"``, or the head of the network alone, with its features as X.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import SlowNetworkWarning
    >>> warnings.simplefilter("ignore", SlowNetworkWarning)    # there is time
    """


class SlowWarning(UncertaintyWarning):
    """A run will take more than ten minutes; says what would make it shorter.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import SlowWarning
    >>> warnings.simplefilter("ignore", SlowWarning)    # there is time
    """


class TrainingLossWarning(UncertaintyWarning):
    """A network was trained with another loss than the one that costs are measured in.

    A skorch net's criterion has class weights or label smoothing, or is a focal loss. Costs are
    measured in plain cross-entropy, a training row like any other. Class weights become part of
    them as ``sample_weight``.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import TrainingLossWarning
    >>> warnings.simplefilter("ignore", TrainingLossWarning)    # it is known
    """
