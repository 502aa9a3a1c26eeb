"""Networks of unusual build under MC dropout and in ensembles."""

import joblib
import numpy as np
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from sklearn_quam import DeepEnsembleClassifier, MCDropoutClassifier
from sklearn_quam._training import _draw_weights

from .networks import LABELS, QUIET, SEQUENCES, X_NEW, Dense, X


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def mlp(seed=0):
    return MLPClassifier((6,), solver="lbfgs", alpha=1.0, max_iter=25, random_state=seed)


def epistemic(module, X=X, y=LABELS, rows=X_NEW, **params):
    est = MCDropoutClassifier(module, random_state=0, **params).fit(X, y)
    return est.predict_uncertainty(rows).epistemic


def test_dropout_before_a_network_of_one_layer():
    layer = nn.Linear(4, 3)
    explicit = nn.Sequential(nn.Dropout(0.5), layer)
    np.testing.assert_allclose(epistemic(layer, p=0.5), epistemic(explicit), rtol=1e-4)


@torch.fx.wrap
def drop(x):
    return functional.dropout(x, 0.5, training=False)


class DropsInAFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(drop(torch.tanh(self.first(x))))


def test_dropout_in_a_function_that_is_not_traced():
    assert (epistemic(DropsInAFunction()) > 0).all()


class SequenceFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.drop(x.transpose(0, 1)).mean(dim=0))


@pytest.mark.parametrize("n_rows", [1, 2, 3, 5])
def test_sequence_as_long_as_there_are_rows(n_rows):
    # 5 rows of one model, or a sequence of 5 steps
    est = MCDropoutClassifier(SequenceFirst(), n_samples=1, random_state=0).fit(SEQUENCES, LABELS)
    together = est.predict_uncertainty(SEQUENCES[:4]).epistemic
    got = est.predict_uncertainty(SEQUENCES[:n_rows]).epistemic[:1]
    np.testing.assert_allclose(got, together[:1], rtol=1e-4)


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(input=torch.tanh(self.first(x)))


def test_last_layer_that_gets_its_input_by_name():
    assert (epistemic(ByName(), p=0.5) > 0).all()


@pytest.mark.parametrize("normalise", [parametrizations.weight_norm, parametrizations.orthogonal])
def test_computed_weights_are_drawn_anew(normalise):
    layer = normalise(nn.Linear(4, 8))
    before = layer.weight.detach().clone()
    _draw_weights(layer)
    assert (layer.weight - before).abs().max() > 0.01


def test_what_contains_a_layer_has_the_last_word_about_its_weights():
    attention = nn.MultiheadAttention(4, 2)
    assert (attention.out_proj.bias == 0).all()
    _draw_weights(attention)
    assert (attention.out_proj.bias == 0).all()


def test_threads_change_nothing():
    net = NeuralNetClassifier(Dense, criterion=nn.CrossEntropyLoss, **{**QUIET, "max_epochs": 10})
    est = DeepEnsembleClassifier(net, n_estimators=6, random_state=0)
    one = [member.predict_proba(X_NEW) for member in clone(est).fit(X, LABELS).estimators_]
    with joblib.parallel_config("threading"):
        many = clone(est).set_params(n_jobs=4).fit(X, LABELS).estimators_
    np.testing.assert_allclose([member.predict_proba(X_NEW) for member in many], one, rtol=1e-5)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("is_given", [True, False])
def test_sample_weight_of_a_pipeline_with_metadata_routing(is_given, n_jobs):
    weight = np.linspace(0.1, 4.0, len(X))
    with config_context(enable_metadata_routing=True):
        net, scaler = mlp(), StandardScaler()
        if not is_given:
            net.set_fit_request(sample_weight=True)
            scaler.set_fit_request(sample_weight=False)
        pipe = make_pipeline(scaler, net)
        pipe = pipe.fit(X, LABELS) if is_given else pipe
        est = DeepEnsembleClassifier(pipe, n_estimators=3, n_jobs=n_jobs, random_state=0)
        est.fit(X, LABELS, sample_weight=weight)
    for member in est.estimators_[1:]:
        own = clone(member).fit(X, LABELS, mlpclassifier__sample_weight=weight)
        np.testing.assert_allclose(member.predict_proba(X_NEW), own.predict_proba(X_NEW), 1e-5)


def test_given_pipeline_with_a_step_that_does_nothing():
    pipe = make_pipeline("passthrough", mlp()).fit(X, LABELS)
    est = DeepEnsembleClassifier(pipe, n_estimators=2, random_state=0).fit(X, LABELS)
    assert len(est.estimators_) == 2
