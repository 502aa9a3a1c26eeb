"""What is run here is what the given estimator itself says, or it is refused."""

import numpy as np
import pytest
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from sklearn_quam import QUAMRegressor, ReferenceClassifier, ReferenceRegressor

from .networks import (
    BINARY,
    COLUMN,
    LABELS,
    QUIET,
    TARGET,
    Dense,
    GaussianNet,
    LogProbabilityNet,
    MeanAndVariance,
    X,
    dense,
    each_model,
    fitted,
)


class Normalising(NeuralNetClassifier):
    def infer(self, x, **fit_params):
        return super().infer((x - 3) / 0.5, **fit_params)


class InUnits(NeuralNetRegressor):
    def predict(self, X):
        return 100 * super().predict(X)


class Calibrated(LogisticRegression):
    def predict_proba(self, X):
        return np.sqrt(super().predict_proba(X)) / np.sqrt(super().predict_proba(X)).sum(1)[:, None]


@pytest.mark.parametrize("wrap", [lambda net: net, FrozenEstimator, make_pipeline])
def test_a_net_that_overrides_infer_is_refused(wrap):
    net = fitted(Normalising(Dense, criterion=nn.CrossEntropyLoss, **QUIET))
    with pytest.raises(ValueError, match=r"training rows \d+.*overrides infer.*make_pipeline"):
        ReferenceClassifier(wrap(net)).fit(X, LABELS)


def test_also_where_it_is_trained_here():
    net = Normalising(Dense, criterion=nn.CrossEntropyLoss, **QUIET)
    with pytest.raises(ValueError, match="overrides infer"):
        ReferenceClassifier(net).fit(X, LABELS)


def test_an_overridden_infer_that_changes_nothing_is_fine():
    class Harmless(NeuralNetClassifier):
        def infer(self, x, **fit_params):
            return super().infer(x + 0, **fit_params)

    net = fitted(Harmless(Dense, criterion=nn.CrossEntropyLoss, **QUIET))
    ReferenceClassifier(net).fit(X, LABELS)


def test_predictions_changed_by_a_subclass_are_refused():
    net = fitted(InUnits(Dense, module__n_out=1, **QUIET), X, COLUMN)
    with pytest.raises(ValueError, match="InUnits itself predicts something else"):
        QUAMRegressor(net).fit(X, TARGET)
    with pytest.raises(ValueError, match=r"Calibrated itself .* training rows 0, "):
        ReferenceClassifier(fitted(Calibrated())).fit(X, LABELS)


@each_model
def test_ordinary_estimators_agree(make, wrapper, y):
    wrapper(fitted(make(), X, y)).fit(X, y)


@pytest.mark.parametrize(
    ("make", "y", "kind", "link"),
    [
        (
            lambda: NeuralNetClassifier(dense(3, nn.Softmax(dim=1)), **QUIET),
            LABELS,
            ReferenceClassifier,
            None,
        ),
        (
            lambda: LogProbabilityNet(dense(3, nn.LogSoftmax(dim=1)), **QUIET),
            LABELS,
            ReferenceClassifier,
            "log_probabilities",
        ),
        (
            lambda: NeuralNetBinaryClassifier(nn.Sequential(dense(1), nn.Flatten(0)), **QUIET),
            BINARY.astype(np.float32),
            ReferenceClassifier,
            None,
        ),
        (
            lambda: GaussianNet(MeanAndVariance, criterion=nn.GaussianNLLLoss, **QUIET),
            COLUMN,
            ReferenceRegressor,
            "mean_variance",
        ),
        (lambda: make_pipeline(StandardScaler(), LinearRegression()), TARGET, QUAMRegressor, None),
        (
            lambda: make_pipeline(StandardScaler(), MLPClassifier((4,), max_iter=20)),
            LABELS,
            ReferenceClassifier,
            None,
        ),
    ],
)
def test_other_estimators_agree(make, y, kind, link):
    net = fitted(make(), X, y)
    kind(net, link=link).fit(X, y)


def test_the_net_is_not_changed_by_being_asked():
    net = fitted(NeuralNetClassifier(Dense, criterion=nn.CrossEntropyLoss, **QUIET))
    net.module_.train()
    net.module_.layers[0].eval()
    state = torch.get_rng_state()
    ReferenceClassifier(net).fit(X, LABELS)
    assert net.module_.training
    assert not net.module_.layers[0].training
    assert torch.equal(torch.get_rng_state(), state)
