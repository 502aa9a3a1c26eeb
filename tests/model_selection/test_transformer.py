"""Uncertainties as columns beside others."""

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from sklearn_quam import LaplaceClassifier, ReferenceClassifier
from sklearn_quam.model_selection import UncertaintyTransformer

from .common import FRAME, NAMED, TEST, TRAIN

NET = make_pipeline(StandardScaler(), LogisticRegression())


@pytest.mark.parametrize("inside", [True, False])
def test_columns_are_those_of_the_method(inside):
    method = LaplaceClassifier(NET if inside else LogisticRegression(), random_state=0)
    est = method if inside else make_pipeline(StandardScaler(), method)
    components = ["total", "epistemic"]
    columns = UncertaintyTransformer(est, components=components).fit(FRAME[TRAIN], NAMED[TRAIN])
    rows, fitted = FRAME[TEST], columns.estimator_
    if not inside:
        rows, fitted = fitted[0].transform(rows), fitted[-1]
    u = fitted.predict_uncertainty(rows)
    found = columns.transform(FRAME[TEST])
    np.testing.assert_array_equal(found, np.column_stack([u.total, u.epistemic]))


def test_it_goes_beside_other_columns_as_a_frame():
    fitted = LaplaceClassifier(NET, random_state=0).fit(FRAME[TRAIN], NAMED[TRAIN])
    both = make_column_transformer(
        (UncertaintyTransformer(FrozenEstimator(fitted)), list(FRAME.columns)),
        ("passthrough", list(FRAME.columns[:1])),
    ).set_output(transform="pandas")
    found = both.fit_transform(FRAME[TEST])
    names = ["uncertaintytransformer__aleatoric", "uncertaintytransformer__epistemic"]
    assert list(found.columns) == [*names, f"passthrough__{FRAME.columns[0]}"]
    assert found.index.equals(FRAME[TEST].index)


def test_what_is_no_component_is_refused():
    with pytest.raises(ValueError, match="components must be among"):
        UncertaintyTransformer(ReferenceClassifier(NET), components=["error"]).fit(FRAME, NAMED)
    with pytest.raises(TypeError, match="no predict_uncertainty"):
        UncertaintyTransformer(NET).fit(FRAME, NAMED)


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([UncertaintyTransformer(ReferenceClassifier(LogisticRegression()))])
def test_scikit_learn_check(estimator, check):
    check(estimator)
