"""Detectors of anything: scores, or words about what is wrong."""

from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import IsolationForest

from sklearn_quam.ood import CombinedDetector, EnergyDetector, read_features

from ..ood.common import NAMES, make_data, make_detector, make_module
from .cases import ANYTHING, assert_no_nan, calmly, fuzz

X, Y = make_data()


def combined():
    detectors = [EnergyDetector(make_module()), IsolationForest(n_estimators=5, random_state=0)]
    return CombinedDetector(detectors, random_state=0)


def unfitted(name):
    return combined() if name == "combined" else make_detector(name)


EVERY = [*NAMES, "combined"]
FITTED = {}


def a_fitted(name):
    if name not in FITTED:
        FITTED[name] = unfitted(name).fit(X, Y)
    return FITTED[name]


@fuzz
@given(
    name=st.sampled_from(EVERY),
    ask=st.sampled_from(["predict", "decision_function", "score_samples"]),
    rows=ANYTHING,
)
def test_scores_of_anything(name, ask, rows):
    assert_no_nan(calmly(lambda: getattr(a_fitted(name), ask)(rows)))


@fuzz
@given(
    name=st.sampled_from(EVERY),
    passed=ANYTHING,
    y=ANYTHING,
    what=st.sampled_from(["X", "y", "both", "X_val", "X alone"]),
)
def test_fits_of_anything(name, passed, y, what):
    arguments = {
        "X": (passed, Y),
        "X alone": (passed,),
        "y": (X, passed),
        "both": (passed, y),
        "X_val": (X, Y),
    }[what]
    options = {"X_val": passed} if what == "X_val" else {}
    calmly(lambda: unfitted(name).fit(*arguments, **options))


@fuzz
@given(
    name=st.sampled_from(NAMES),
    passed=ANYTHING,
    what=st.sampled_from(["features", "y", "logits", "score"]),
)
def test_features_of_anything(name, passed, what):
    features, logits = read_features(make_module(), X)
    arguments = {"features": features, "y": Y, "logits": logits}
    if what == "score":
        assert_no_nan(calmly(lambda: a_fitted(name).score_features(passed, logits=logits[:1])))
    else:
        arguments[what] = passed
        calmly(lambda: unfitted(name).fit_features(**arguments))


@fuzz
@given(
    name=st.sampled_from([name for name in NAMES if hasattr(make_detector(name), "partial_fit")]),
    passed=ANYTHING,
    y=st.one_of(ANYTHING, st.none()),
)
def test_batches_of_anything(name, passed, y):
    detector = unfitted(name).fit(X, Y)
    calmly(lambda: detector.partial_fit(passed, y))
    assert_no_nan(detector.score_samples(X))
