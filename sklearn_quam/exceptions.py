"""Warnings and errors of the package, so that each can be caught or silenced by itself."""

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

# Modules whose functions run between a method of the package and its caller.
_WRAPPERS = ("contextlib", "sklearn.base", "sklearn.utils._param_validation")


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line outside the package that has called it.

    Parameters
    ----------
    message : str
        The text.
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

    With ``search="auto"``, penalty search runs instead, with a warning.

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
    """The common ancestor of all warnings of the package.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.exceptions import BeyondRangeWarning, UncertaintyWarning
    >>> warnings.simplefilter("error", UncertaintyWarning)    # all are errors
    >>> warnings.simplefilter("ignore", BeyondRangeWarning)    # but this one is silent
    """


class BeyondRangeWarning(UncertaintyWarning):
    """Some samples are far outside the range of the training data.

    A value is more than a hundred times as far from the middle of the training data as these are
    wide, a whole sample is more than ten times as far (root mean square over its features), or
    the numbers of the network overflow, saturate or lose all their digits. The epistemic and total
    uncertainty of such samples is 1e300, which stands for infinite; detectors give them minus
    infinity. Fill values such as 1e20, and features that are not scaled, are the usual reasons.
    """


class CollapsedWeightsWarning(UncertaintyWarning):
    """For most samples, only the given network has a weight.

    The temperature is too low, or costs look higher than they are. The epistemic uncertainty is
    then close to zero, whatever models the searches have found.
    """


class FailedRowsWarning(UncertaintyWarning):
    """The network raises an error for some samples; the others are answered.

    The epistemic and total uncertainty of such samples is 1e300, which stands for infinite. The
    column ``error`` of the diagnostics holds the error.
    """


class LinkWarning(UncertaintyWarning):
    """Outputs of a network are taken for logits, but look like probabilities.

    The softmax that is applied to logits would make all classes almost equally likely.
    """


class MissingClassesWarning(UncertaintyWarning):
    """Some of the network's classes have no training samples.

    Models may predict anything about these classes at no cost: every sample looks doubtful.
    """


class PoorFitWarning(UncertaintyWarning):
    """The network explains the training data worse than a constant prediction would.

    The class frequencies, or the mean of the targets, have a lower loss than ``reference_loss_``.
    Most often X is not scaled, or y not encoded, as it was when the network was trained.
    """


class SeenRowsWarning(UncertaintyWarning):
    """A score or a threshold is taken from samples that the network was trained on.

    Such scores are too good, and such thresholds too strict. Hold samples out before the network
    is trained.
    """


class SlowNetworkWarning(UncertaintyWarning):
    """QUAM runs the whole network, or one model at a time, so that every sample takes long.

    Linear layers at the end of the network are fast: ``parameters="last_layer"``, or the head of
    the network alone, with its features as X.
    """


class SlowWarning(UncertaintyWarning):
    """A run will take more than ten minutes; the message links what makes it shorter."""


class TrainingLossWarning(UncertaintyWarning):
    """A network was trained with another loss than the one that costs are measured in.

    A skorch net's criterion has class weights or label smoothing, or is a focal loss. Costs are
    measured in plain cross-entropy, with equal weights. Pass class weights as ``sample_weight``.
    """
