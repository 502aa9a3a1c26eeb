"""Scorers, the table and the reject option of anything."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import IsolationForest
from sklearn.model_selection import GroupKFold, PredefinedSplit, ShuffleSplit

from sklearn_quam import LaplaceRegressor, ReferenceClassifier, ReferenceRegressor
from sklearn_quam import model_selection as tools
from sklearn_quam.ood import EnergyDetector

from ..networks import LABELS, TARGET, X, dense
from .cases import ANYTHING, assert_no_nan, calmly, fuzz
from .test_estimators import seeded
from .test_metrics import columns

CLASSES, VALUES = seeded(dense, LABELS), seeded(lambda: dense(1), TARGET)
FITTED = {
    "classes": ReferenceClassifier(CLASSES).fit(X, LABELS),
    "values": ReferenceRegressor(VALUES).fit(X, TARGET),
    "sampled values": LaplaceRegressor(VALUES, n_samples=3, random_state=0).fit(X, TARGET),
    "detector": EnergyDetector(CLASSES).fit(X, LABELS),
    "forest": IsolationForest(n_estimators=5, random_state=0).fit(X),
}
ESTIMATORS = st.one_of(
    st.sampled_from(sorted(FITTED)).map(FITTED.get),
    st.sampled_from([None, 3, ReferenceClassifier(), ReferenceClassifier, "text", CLASSES]),
)
ROWS = st.one_of(st.just(X[:6]), ANYTHING)
TARGETS = st.one_of(st.sampled_from([LABELS[:6], TARGET[:6]]), columns(6), ANYTHING)
FOLDS = [0.5, 2, "prefit", 1, None, 40, 1e-9, 0.999, "half", b"half", [0.5], np.nan]
FOLDS += [PredefinedSplit([-1] * 6), ShuffleSplit(1, test_size=2), GroupKFold(2), True, TARGET]
COMPONENTS = st.sampled_from(["total", "epistemic", "aleatoric", "other", None, 3])


@fuzz
@given(
    scorer=st.sampled_from(["misclassification_scorer", "rejection_scorer", "log_score_scorer"]),
    estimator=ESTIMATORS,
    rows=ROWS,
    y=TARGETS,
    options=st.one_of(st.just({}), st.builds(lambda c: {"component": c}, COMPONENTS)),
)
def test_scorers_of_anything(scorer, estimator, rows, y, options):
    if scorer == "log_score_scorer":
        options = {}
    found = calmly(lambda: getattr(tools, scorer)(estimator, rows, y, **options))
    # Without mistakes, or without anything else, there is nothing to find: NaN, with a warning.
    if scorer != "misclassification_scorer":
        assert_no_nan(found)


@fuzz
@given(
    estimator=ESTIMATORS,
    rows=ROWS,
    strange=ROWS,
    component=COMPONENTS,
    metric=st.sampled_from(["roc_auc", "neg_fpr95", "aupr", "other", None, np.mean]),
)
def test_ood_scorers_of_anything(estimator, rows, strange, component, metric):
    def score():
        scorer = tools.make_ood_scorer(strange, component=component, metric=metric)
        return scorer(estimator, rows)

    if metric is not np.mean:
        assert_no_nan(calmly(score))


@fuzz
@given(
    passed=st.one_of(
        st.lists(ESTIMATORS, max_size=2), st.dictionaries(st.text(), ESTIMATORS, max_size=2)
    ),
    data=st.tuples(ROWS, TARGETS, ROWS, TARGETS, st.one_of(st.none(), ROWS)),
    component=COMPONENTS,
)
def test_tables_of_anything(passed, data, component):
    options = {"n_resamples": 2, "random_state": 0, "verbose": 0}
    calmly(lambda: tools.compare_uncertainty(passed, *data, component=component, **options))


@fuzz
@given(
    estimator=ESTIMATORS,
    rows=ROWS,
    y=TARGETS,
    new=ROWS,
    options=st.fixed_dictionaries(
        {},
        optional={
            "coverage": st.sampled_from([0.5, 1, 0, 2, None]),
            "max_risk": st.sampled_from([0.5, 0, None, "a"]),
            "doubt": st.sampled_from(["total", "other", FITTED["forest"], None]),
            "cv": st.sampled_from(FOLDS),
        },
    ),
)
def test_reject_option_of_anything(estimator, rows, y, new, options):
    def ask():
        reject = tools.RejectOptionClassifier(estimator, random_state=0, **options).fit(rows, y)
        return reject.predict_proba(new), reject.predict(new), reject.accepts(new)

    assert_no_nan(calmly(ask))
