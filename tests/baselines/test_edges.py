"""Networks of unusual build under MC dropout and in ensembles."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import joblib
import numpy as np
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from sklearn_quam import (
    CyclicalSGHMCRegressor,
    DeepEnsembleClassifier,
    HMCClassifier,
    LaplaceClassifier,
    MCDropoutClassifier,
    MixtureLaplaceClassifier,
    ReferenceRegressor,
    SWAGClassifier,
    SWAGRegressor,
)
from sklearn_quam._network.training import _draw_weights

from ..networks import LABELS, QUIET, SEQUENCES, X_NEW, Dense, X


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


@pytest.mark.slow
def test_threads_change_nothing():
    net = NeuralNetClassifier(Dense, criterion=nn.CrossEntropyLoss, **{**QUIET, "max_epochs": 10})
    est = DeepEnsembleClassifier(net, n_estimators=6, random_state=0)
    one = [member.predict_proba(X_NEW) for member in clone(est).fit(X, LABELS).estimators_]
    with joblib.parallel_config("threading"):
        many = clone(est).set_params(n_jobs=4).fit(X, LABELS).estimators_
    np.testing.assert_allclose([member.predict_proba(X_NEW) for member in many], one, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("is_pretrained", [True, False])
def test_sample_weight_of_a_pipeline_with_metadata_routing(is_pretrained, n_jobs):
    weight = np.linspace(0.1, 4.0, len(X))
    with config_context(enable_metadata_routing=True):
        net, scaler = mlp(), StandardScaler()
        if not is_pretrained:
            net.set_fit_request(sample_weight=True)
            scaler.set_fit_request(sample_weight=False)
        pipe = make_pipeline(scaler, net)
        pipe = pipe.fit(X, LABELS) if is_pretrained else pipe
        est = DeepEnsembleClassifier(pipe, n_estimators=3, n_jobs=n_jobs, random_state=0)
        est.fit(X, LABELS, sample_weight=weight)
    for member in est.estimators_[1:]:
        own = clone(member).fit(X, LABELS, mlpclassifier__sample_weight=weight)
        np.testing.assert_allclose(member.predict_proba(X_NEW), own.predict_proba(X_NEW), 1e-5)


def test_given_pipeline_with_a_step_that_does_nothing():
    pipe = make_pipeline("passthrough", mlp()).fit(X, LABELS)
    est = DeepEnsembleClassifier(pipe, n_estimators=2, random_state=0).fit(X, LABELS)
    assert len(est.estimators_) == 2


def test_several_threads_may_ask_one_estimator():
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    est = SWAGClassifier(net, n_samples=8, random_state=0).fit(X, LABELS)
    assert est._fitted.models.network.executor.name == "vmap"
    alone = est.predict_uncertainty(X).epistemic
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: est.predict_uncertainty(X).epistemic, range(12)))
    for epistemic in [*found, est.predict_uncertainty(X).epistemic]:
        np.testing.assert_allclose(epistemic, alone, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("method", [SWAGRegressor, CyclicalSGHMCRegressor])
def test_sorted_rows_make_nothing_diverge(method):
    rows = np.linspace(0, 100, 2000)[:, None]
    y = 0.1 * rows[:, 0] + np.random.default_rng(0).normal(size=2000)
    est = method(Ridge().fit(rows, y), random_state=0).fit(rows, y)
    assert np.isfinite(est.predict_uncertainty(rows[:5]).total).all()


class Folded(nn.Module):
    """Steps of a sequence are rows of the first layer."""

    def __init__(self):
        super().__init__()
        self.steps, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        values = self.steps(x.reshape(-1, 4)).reshape(len(x), -1, 5)
        return self.head(torch.tanh(values).mean(dim=1))


def test_kronecker_factors_leave_out_layers_that_see_rows_otherwise():
    est = LaplaceClassifier(Folded(), parameters="all", random_state=0).fit(SEQUENCES, LABELS)
    assert (est.predict_uncertainty(SEQUENCES[:3]).epistemic > 0).all()


def test_draws_keep_their_shape_when_parameters_change():
    net = nn.Sequential(nn.Linear(4, 3))
    est = HMCClassifier(net, n_samples=6, n_warmup=2, n_leapfrog=2, random_state=0).fit(X, LABELS)
    before = est.predict_uncertainty(X, return_diagnostics=True)[1]
    n_chains = est.n_chains
    est.set_params(n_samples=500, n_chains=2)
    with pytest.raises(ValueError, match=r"n_chains, n_samples .* changed after fit"):
        est.predict_uncertainty(X)
    est.set_params(n_samples=6, n_chains=n_chains)
    after = est.predict_uncertainty(X, return_diagnostics=True)[1]
    np.testing.assert_array_equal(after.standard_error, before.standard_error)


def test_validation_targets_need_a_column_for_each_output():
    y = X[:, :2]
    with pytest.raises(ValueError, match=r"y_val has 1 value\(s\) a row, but y has 2"):
        ReferenceRegressor(nn.Linear(4, 2)).fit(X, y, X_val=X, y_val=y[:, 0])


def test_members_keep_no_data_and_are_cut_before_their_last_layer():
    nets = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(3)]
    est = MixtureLaplaceClassifier(estimators=nets, random_state=0)
    sizes = [
        len(pickle.dumps(clone(est).fit(np.tile(X, (n, 1)), np.tile(LABELS, n))._fitted))
        for n in (1, 50)
    ]
    # A single copy of the rows that came on top would have 50 times their bytes.
    assert sizes[1] - sizes[0] < X.nbytes
    est.fit(X, LABELS)
    places = [method.models.view.network.split.place for method in est._fitted.models.methods]
    assert places == ["inside"] * 3
