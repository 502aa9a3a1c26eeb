"""Pictures of uncertainty, after scikit-learn's displays. Drawing needs matplotlib."""

from ._bounds import ProbabilityBoundsDisplay
from ._histogram import UncertaintyHistogramDisplay
from ._map import UncertaintyMapDisplay
from ._regression import RegressionUncertaintyDisplay
from ._rejection import AccuracyRejectionDisplay
from ._samples import UncertainSamplesDisplay

__all__ = [
    "AccuracyRejectionDisplay",
    "ProbabilityBoundsDisplay",
    "RegressionUncertaintyDisplay",
    "UncertainSamplesDisplay",
    "UncertaintyHistogramDisplay",
    "UncertaintyMapDisplay",
]
