"""Pictures of uncertainty, after scikit-learn's displays. Drawing needs matplotlib."""

from ._bounds import ProbabilityBoundsDisplay
from ._map import UncertaintyMapDisplay
from ._regression import RegressionUncertaintyDisplay
from ._samples import UncertainSamplesDisplay
from ._scores import AccuracyRejectionDisplay, UncertaintyHistogramDisplay
from ._search import SearchTraceDisplay
from ._simplex import SimplexDisplay

__all__ = [
    "AccuracyRejectionDisplay",
    "ProbabilityBoundsDisplay",
    "RegressionUncertaintyDisplay",
    "SearchTraceDisplay",
    "SimplexDisplay",
    "UncertainSamplesDisplay",
    "UncertaintyHistogramDisplay",
    "UncertaintyMapDisplay",
]
