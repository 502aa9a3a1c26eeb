"""The frozen object that answers for rows: it can be stored, and nothing writes to it."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from sklearn_quam._posterior.fitted import FittedMethod

from ..test_contract import METHODS, fitted_once, is_classifier, make_data

each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda fitted: pickle.loads(pickle.dumps(fitted)),
    "both": lambda fitted: pickle.loads(pickle.dumps(copy.deepcopy(fitted))),
    "for_thread": lambda fitted: fitted.for_thread(),
}


def questions(est):
    """Yield whatever may be asked without another fit."""
    for setting in ("given", "expected"):
        for measure in ("entropy", "brier" if est._task == "classifier" else "variance"):
            yield {"setting": setting, "measure": measure}


def answers(est, fitted, X):
    """Return all that an estimator would say if this was what it has fitted."""
    other = copy.copy(est)
    other._fitted = fitted
    return [other.set_params(**question)._results(X) for question in questions(est)]


def assert_identical(found, expected):
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got.prediction, wanted.prediction)
        np.testing.assert_array_equal(got.variance, wanted.variance)
        for part, other in zip(got.uncertainty, wanted.uncertainty, strict=True):
            np.testing.assert_array_equal(part, other)
        assert type(got.diagnostics) is type(wanted.diagnostics)
        for field in dataclasses.fields(got.diagnostics):
            columns = (getattr(one.diagnostics, field.name) for one in (got, wanted))
            np.testing.assert_array_equal(*columns, err_msg=field.name)


@each_method
def test_a_copy_of_what_was_fitted_answers_alike(method):
    est = fitted_once(method)
    rows = make_data(method, n_samples=3, seed=1)[0]
    fitted = est._fitted
    assert type(fitted) is FittedMethod
    before = answers(est, fitted, rows)
    for duplicate in COPIES.values():
        assert_identical(answers(est, duplicate(fitted), rows), before)
    # Neither copying nor answering has changed it.
    assert_identical(answers(est, fitted, rows), before)


@each_method
def test_predicting_writes_nothing_to_the_estimator(method):
    est = fitted_once(method)
    rows = make_data(method, n_samples=5, seed=1)[0]
    holders = [est, est._fitted, est._fitted.reference, est._fitted.models]
    # The objects themselves, not only their numbers: none may be freed and replaced by another.
    before = [dict(holder.__dict__) for holder in holders]
    est.predict_uncertainty(rows)
    est.predict_uncertainty(rows, return_diagnostics=True)
    est.predict(rows)
    est.predict(rows, return_uncertainty=True)
    est.score_samples(rows)
    if is_classifier(method):
        est.predict_proba(rows)
    if hasattr(est, "adversarial_models"):
        est.adversarial_models(rows[:2])
        est.search_traces(rows[:2])
    for holder, attributes in zip(holders, before, strict=True):
        assert holder.__dict__.keys() == attributes.keys()
        assert all(holder.__dict__[name] is value for name, value in attributes.items())


@each_method
def test_what_was_fitted_cannot_be_changed(method):
    fitted = fitted_once(method)._fitted
    for frozen in filter(dataclasses.is_dataclass, (fitted, fitted.reference, fitted.models)):
        for field in dataclasses.fields(frozen):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(frozen, field.name, None)
