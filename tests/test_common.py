"""scikit-learn's own checks, on every estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import sklearn_quam
from sklearn_quam import PenaltySearch
from sklearn_quam.base import _reading

# method -> arguments that keep the checks fast; what comes behind a comma tells ways to run the
# same method apart
ARGUMENTS = {
    "Reference": {},
    "QUAM": {},
    "QUAM, linear": {"search": "linear"},
    "QUAM, penalty": {"search": PenaltySearch(n_steps=2)},
    "MCDropout": {"n_samples": 4},
    "DeepEnsemble": {"n_estimators": 2},
    "Laplace": {"n_samples": 8},
    "MixtureLaplace": {"n_estimators": 2, "n_samples": 8},
    "SWAG": {"n_samples": 4, "n_epochs": 2},
    "CyclicalSGHMC": {"n_cycles": 1, "n_steps": 5, "samples_per_cycle": 1, "n_chains": 1},
    "HMC": {"n_samples": 4, "n_warmup": 2, "n_leapfrog": 2, "n_chains": 2},
}
ESTIMATORS = {
    f"{name} {task}": getattr(sklearn_quam, f"{name.partition(',')[0]}{task}")(**arguments)
    for name, arguments in ARGUMENTS.items()
    for task in ("Classifier", "Regressor")
}
# One estimator for each kind of fit: a search, a closed form, several networks. The others share
# what these checks look at; "make test-slow" checks all of them.
FIRST = ["QUAM Classifier", "Laplace Regressor", "DeepEnsemble Classifier"]


def test_every_method_is_checked():
    public = {name for name in sklearn_quam.__all__ if name.endswith(("Classifier", "Regressor"))}
    assert {type(estimator).__name__ for estimator in ESTIMATORS.values()} == public


@pytest.fixture(autouse=True)
def _small_networks(monkeypatch):
    """The checks train thousands of networks: smaller ones than a user gets who passes none."""
    default = _reading.default_network

    def small(task):
        return default(task).set_params(network__hidden_layer_sizes=(8,), network__max_iter=50)

    monkeypatch.setattr(_reading, "default_network", small)


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([ESTIMATORS[name] for name in FIRST])
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([ESTIMATORS[name] for name in ESTIMATORS if name not in FIRST])
def test_scikit_learn_check_of_the_others(estimator, check):
    check(estimator)
