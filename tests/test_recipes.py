"""The guide on other tools: its code runs, and does what is said."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

from .test_documented_code import code_blocks

PAGE = Path(__file__).parent.parent / "docs" / "guide" / "recipes.rst"


@pytest.fixture(scope="module")
def names():
    """Return what the first piece of code defines."""
    calibration = code_blocks(PAGE)[0]
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            exec(calibration, found)
        except ValueError as error:
            assert "'method' parameter of CalibratedClassifierCV" in str(error)  # noqa: PT017
            pytest.skip("scikit-learn has no temperature scaling before 1.8")
    return found


def test_the_temperature_is_in_the_network(names):
    X, y, scaled, net = (names[name] for name in ("X_new", "y_new", "scaled", "net"))
    expected = scaled.predict_proba(X)
    np.testing.assert_allclose(names["calibrated"].predict_proba(X), expected, atol=1e-6)
    np.testing.assert_allclose(names["est"].predict_proba(X), expected, atol=1e-5)
    assert log_loss(y, expected) < log_loss(y, net.predict_proba(X))


@pytest.mark.slow
def test_a_drift_is_seen_and_nothing_else(names):
    exec(code_blocks(PAGE)[2], names)
    assert names["alarms"] == [False, False, True]


def test_mapie_takes_our_estimators(names):
    pytest.importorskip("mapie")
    exec(code_blocks(PAGE)[1], names)
    in_set, y = names["in_set"][:, :, 0], names["y_new"]
    covered = in_set[np.arange(len(y)), y].mean()
    # 450 rows, calibrated on 449: 0.9 with a standard error of 0.02.
    assert 0.84 < covered < 0.96
    assert in_set.sum(axis=1).mean() < 2
