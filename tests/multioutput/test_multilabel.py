"""Several labels a row: each gets what the binary method around its own score says."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import TensorDataset

from sklearn_quam import LaplaceClassifier, QUAMClassifier
from sklearn_quam.multioutput import MultiLabelClassifier

from ..networks import IMAGES, X_NEW, X, fitted, module_state

K = 3
Y = np.column_stack([X[:, 0] > 0, X[:, 1] + X[:, 2] > 0, X[:, 3] > 1]).astype(int)
OF_IMAGES = np.column_stack([IMAGES[:, 0].mean((1, 2)) > 0, IMAGES[:, 1, 0, 0] > 0, Y[:, 2]])
OF_IMAGES = OF_IMAGES.astype(int)


def trained(module, inputs, labels, n_epochs=60):
    optimizer = torch.optim.Adam(module.parameters(), lr=0.03)
    for _ in range(n_epochs):
        optimizer.zero_grad()
        scores = module(torch.tensor(inputs))
        binary_cross_entropy_with_logits(scores, torch.tensor(labels).float()).backward()
        optimizer.step()
    return module.eval()


@pytest.fixture(scope="module")
def dense():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return trained(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, K)), X, Y)


@pytest.fixture(scope="module")
def convolutional():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten()]
        return trained(nn.Sequential(*body, nn.Linear(64, K)), IMAGES, OF_IMAGES)


def alone(module, label):
    """Return a network with the score of one label, made by hand."""
    head = nn.Linear(module[-1].in_features, 1)
    head.weight.data = module[-1].weight.data[label][None]
    head.bias.data = module[-1].bias.data[label][None]
    return nn.Sequential(*module[:-1], head).eval()


METHODS = {
    "natural": lambda net, **o: QUAMClassifier(net, random_state=0, **o),
    "linear": lambda net, **o: QUAMClassifier(net, search="linear", random_state=0, **o),
    "last layer": lambda net, **o: QUAMClassifier(
        net, parameters="last_layer", random_state=0, **o
    ),
    "Laplace": lambda net, **o: LaplaceClassifier(net, random_state=0, **o),
}


@pytest.mark.parametrize(
    ("kind", "images"),
    [("natural", False), ("linear", True), ("last layer", False), ("Laplace", True)],
)
def test_each_label_is_a_binary_question(kind, images, dense, convolutional):
    network, rows, y = (convolutional, IMAGES, OF_IMAGES) if images else (dense, X, Y)
    before, method = module_state(network), METHODS[kind]
    est = MultiLabelClassifier(method(network)).fit(rows, y)
    u, proba = est.predict_uncertainty(rows[:9]), est.predict_proba(rows[:9])
    assert u.epistemic.shape == proba.shape == (9, K)
    for label in range(K):
        one = method(alone(network, label), link="binary_logit").fit(rows, y[:, label])
        for own, other in zip(u, one.predict_uncertainty(rows[:9]), strict=True):
            np.testing.assert_allclose(own[:, label], other, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(proba[:, label], one.predict_proba(rows[:9])[:, 1], rtol=1e-5)
    assert module_state(network) == before
    # Behind convolutions, and where it is asked for, features are computed once for all labels.
    searched = est.estimators_[0]._fitted.reference.module
    assert isinstance(searched, nn.Linear) == (images or kind in ("last layer", "Laplace"))


@pytest.mark.parametrize(("parameters", "is_head"), [("3.*", True), ("lora", False)])
def test_what_is_searched_stays_what_was_asked_for(parameters, is_head, convolutional):
    method = METHODS["linear"]
    if parameters != "3.*":
        method = METHODS["natural"]
    est = MultiLabelClassifier(method(convolutional, parameters=parameters)).fit(IMAGES, OF_IMAGES)
    one = method(alone(convolutional, 1), link="binary_logit", parameters=parameters)
    one.fit(IMAGES, OF_IMAGES[:, 1])
    assert est.estimators_[1].n_parameters_searched_ == one.n_parameters_searched_
    assert isinstance(est.estimators_[1]._fitted.reference.module, nn.Linear) == is_head
    np.testing.assert_allclose(
        est.predict_uncertainty(IMAGES[:3]).epistemic[:, 1],
        one.predict_uncertainty(IMAGES[:3]).epistemic,
        rtol=1e-3,
        atol=1e-6,
    )


def test_predictions(dense):
    est = MultiLabelClassifier(METHODS["linear"](dense)).fit(X, Y)
    with torch.no_grad():
        scores = dense(torch.tensor(X_NEW)).numpy()
    np.testing.assert_array_equal(est.predict(X_NEW), scores > 0)
    u = est.predict_uncertainty(X_NEW)
    np.testing.assert_allclose(u.per_row("sum").total, u.total.sum(axis=1))
    with torch.no_grad():
        right = (dense(torch.tensor(X)).numpy() > 0) == Y
    assert est.score(X, Y) == right.all(axis=1).mean()
    again = pickle.loads(pickle.dumps(est))
    np.testing.assert_array_equal(again.predict_uncertainty(X_NEW).total, u.total)


def test_sets_of_labels(dense):
    est = MultiLabelClassifier(METHODS["linear"](dense))
    est.fit(X[:30], Y[:30], X_val=X[30:], y_val=Y[30:])
    sets = est.predict_set(X_NEW, coverage=0.8)
    assert sets.shape == (len(X_NEW), K, 2)
    one = METHODS["linear"](alone(dense, 1), link="binary_logit")
    one.fit(X[:30], Y[:30, 1], X_val=X[30:], y_val=Y[30:, 1])
    np.testing.assert_array_equal(sets[:, 1], one.predict_set(X_NEW, coverage=0.8))


def test_a_sigmoid_at_the_end(dense):
    behind = nn.Sequential(*dense, nn.Sigmoid())
    for options in ({}, {"parameters": "last_layer"}):
        u, other = (
            MultiLabelClassifier(METHODS["linear"](net, **options))
            .fit(X, Y)
            .predict_uncertainty(X_NEW)
            for net in (dense, behind)
        )
        np.testing.assert_allclose(u.epistemic, other.epistemic, rtol=0.05)


def test_networks_of_scikit_learn_and_data_sets(dense):
    net = fitted(MLPClassifier((6,), max_iter=30, random_state=0), X, Y)
    est = MultiLabelClassifier(METHODS["linear"](net)).fit(X, Y)
    np.testing.assert_allclose(est.predict_proba(X_NEW), net.predict_proba(X_NEW), rtol=1e-5)
    items = TensorDataset(torch.tensor(X), torch.tensor(Y))
    by_items = MultiLabelClassifier(METHODS["linear"](dense)).fit(items)
    by_array = MultiLabelClassifier(METHODS["linear"](dense)).fit(X, Y)
    u, other = (one.predict_uncertainty(X_NEW) for one in (by_items, by_array))
    np.testing.assert_allclose(u.epistemic, other.epistemic, rtol=1e-5)


def test_sample_weights_reach_every_label(dense):
    weight = np.where(np.arange(len(X)) < 30, 1.0, 3.0)
    est = MultiLabelClassifier(METHODS["linear"](dense)).fit(X, Y, weight)
    one = METHODS["linear"](alone(dense, 2), link="binary_logit").fit(X, Y[:, 2], weight)
    np.testing.assert_allclose(
        est.predict_uncertainty(X_NEW).epistemic[:, 2],
        one.predict_uncertainty(X_NEW).epistemic,
        rtol=1e-4,
    )


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y[:, :2], "zeros and ones in 3 columns.*shape .60, 2."),
        (Y * 2, "zeros and ones"),
        (Y[:, 0], "zeros and ones in 3 columns"),
    ],
)
def test_labels_that_do_not_fit(y, message, dense):
    with pytest.raises(ValueError, match=message):
        MultiLabelClassifier(METHODS["linear"](dense)).fit(X, y)


def test_networks_that_do_not_fit(dense):
    with pytest.raises(ValueError, match="y is None, and X is no data set"):
        MultiLabelClassifier(METHODS["linear"](dense)).fit(X)
    with pytest.raises(ValueError, match="X_val and y_val go together"):
        MultiLabelClassifier(METHODS["linear"](dense)).fit(X, Y, X_val=X)
    pipeline = make_pipeline(StandardScaler(), dense)
    with pytest.raises(TypeError, match="behind transformers"):
        MultiLabelClassifier(METHODS["linear"](pipeline)).fit(X, Y)
    behind = nn.Sequential(*dense, nn.Softmax(dim=1))
    with pytest.raises(ValueError, match="ends in a softmax, which allows one label"):
        MultiLabelClassifier(METHODS["linear"](behind)).fit(X, Y)
