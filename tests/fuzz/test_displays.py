"""Pictures of anything: drawn, or refused in plain words before anything is drawn."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from sklearn_quam import (
    PenaltySearch,
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    Uncertainty,
    display,
)
from sklearn_quam.ood import EnergyDetector

from ..networks import LABELS, TARGET, X, dense
from .cases import ANYTHING, calmly, fuzz
from .test_estimators import seeded
from .test_metrics import columns

plt = pytest.importorskip("matplotlib.pyplot")

CLASSES, VALUES = seeded(dense, LABELS), seeded(lambda: dense(1), TARGET)
SHORT = {"search": PenaltySearch(n_steps=2), "random_state": 0}
FITTED = [
    QUAMClassifier(CLASSES, **SHORT).fit(X, LABELS),
    QUAMRegressor(VALUES, **SHORT).fit(X, TARGET),
    ReferenceClassifier(CLASSES).fit(X, LABELS),
    EnergyDetector(CLASSES).fit(X, LABELS),
]
ESTIMATORS = st.one_of(st.sampled_from(FITTED), st.sampled_from([None, CLASSES, "text", 3]))
ROWS = st.one_of(
    st.sampled_from([X[:6], X[:1], X[0], csr_matrix(X[:1]), pd.Series(X[0])]), ANYTHING
)
VECTORS = st.one_of(columns(6), columns(6, good=True), ANYTHING)
PLANE = np.meshgrid(np.arange(3.0), np.arange(2.0))
GRIDS = st.one_of(st.sampled_from(PLANE), ANYTHING)
TRIPLES = st.one_of(st.builds(Uncertainty, VECTORS, VECTORS, VECTORS), ANYTHING)
NAMES = sorted(display.__all__)
# What `from_estimator` and `from_predictions` take by position.
ARGUMENTS = {
    "AccuracyRejectionDisplay": ([ROWS, VECTORS], [VECTORS] * 2),
    "ProbabilityBoundsDisplay": ([ROWS], [VECTORS] * 3),
    "RegressionUncertaintyDisplay": ([ROWS, VECTORS], [VECTORS] * 4),
    "UncertainSamplesDisplay": ([ROWS], [st.one_of(st.just(X[:6]), ANYTHING), VECTORS]),
    "UncertaintyHistogramDisplay": ([ROWS] * 2, [VECTORS] * 2),
    "UncertaintyMapDisplay": ([ROWS, VECTORS], [GRIDS, GRIDS, TRIPLES]),
}
OPTIONS = {
    "component": st.sampled_from(["total", "epistemic", "other", None]),
    "grid_resolution": st.sampled_from([2, 5, 2, 5, 1, 0, -1, 1.5, "x", None, X]),
    "feature": st.sampled_from([0, -1, 9, "a", None]),
    "image_shape": st.sampled_from([(2, 2), (3, 3), None, 4]),
    "log": st.booleans(),
    "xlim": st.sampled_from([None, None, (0, 1), (1, 0), (0, np.inf), "x", 3, (1, 2, 3)]),
}
TAKEN = {
    "AccuracyRejectionDisplay": ["component"],
    "RegressionUncertaintyDisplay": ["feature", "grid_resolution", "xlim"],
    "UncertainSamplesDisplay": ["image_shape"],
    "UncertaintyHistogramDisplay": ["component", "log"],
    "UncertaintyMapDisplay": ["component", "grid_resolution"],
}


def test_every_display_is_tried():
    assert sorted(ARGUMENTS) == NAMES


def drawn(make):
    try:
        result = calmly(make)
        if result is not None:
            calmly(result.figure_.canvas.draw)
    finally:
        plt.close("all")


@fuzz
@given(data=st.data(), name=st.sampled_from(NAMES), estimator=ESTIMATORS)
def test_pictures_of_any_estimator(data, name, estimator):
    arguments = [data.draw(argument) for argument in ARGUMENTS[name][0]]
    options = {option: data.draw(OPTIONS[option]) for option in TAKEN.get(name, [])}
    kind = getattr(display, name)
    drawn(lambda: kind.from_estimator(estimator, *arguments, **options))


@fuzz
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_pictures_of_any_predictions(data, name):
    arguments = [data.draw(argument) for argument in ARGUMENTS[name][1]]
    kind = getattr(display, name)
    drawn(lambda: kind.from_predictions(*arguments))
