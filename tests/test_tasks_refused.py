"""Networks and targets of tasks that take another estimator, or another link, say which."""

import warnings

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_quam import LaplaceClassifier, QUAMClassifier, ReferenceClassifier, ReferenceRegressor
from sklearn_quam.exceptions import LinkWarning, TrainingLossWarning

from .networks import (
    BINARY,
    LABELS,
    QUIET,
    SEQUENCES,
    TARGET,
    X_NEW,
    Apply,
    X,
    dense,
    evaluate,
    fitted,
    train,
)

SEVERAL = np.column_stack([BINARY, LABELS > 0])
ONE_HOT = np.eye(3, dtype=int)[LABELS]


@pytest.fixture(scope="module")
def logistic():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(dense(1).double(), X, BINARY > 0)


@pytest.mark.parametrize("kind", [QUAMClassifier, LaplaceClassifier])
def test_one_probability_is_the_same_as_its_logit(logistic, kind):
    options = {"random_state": 0, "parameters": "last_layer"}
    behind = nn.Sequential(*logistic, nn.Sigmoid())
    wanted = kind(logistic, link="binary_logit", **options).fit(X, BINARY)
    found = kind(behind, link="probability", **options).fit(X, BINARY)
    np.testing.assert_allclose(found.predict_proba(X_NEW), wanted.predict_proba(X_NEW), 1e-6)
    for one, other in zip(
        found.predict_uncertainty(X_NEW), wanted.predict_uncertainty(X_NEW), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0.02)


def test_a_second_sigmoid_is_warned_about(logistic):
    behind = nn.Sequential(*logistic, nn.Sigmoid())
    with pytest.warns(LinkWarning, match="ends in a sigmoid, pass link='probability'"):
        ReferenceClassifier(behind, link="binary_logit").fit(X, BINARY)


def test_one_probability_has_its_threshold_in_the_middle(logistic):
    est = ReferenceClassifier(nn.Sequential(*logistic, nn.Sigmoid()), link="probability")
    labels = est.fit(X, BINARY).predict(X_NEW)
    np.testing.assert_array_equal(labels, evaluate(logistic, X_NEW)[:, 0] > 0)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (dense(2), "'mean_variance'; if they are log variances, link='mean_log_variance'"),
        (dense(3), r"quantiles, .* returns the median alone, output\[:, \[k\]\]"),
    ],
    ids=["mean and log variance", "quantiles"],
)
def test_columns_that_are_no_means(module, message):
    with pytest.raises(ValueError, match=message):
        ReferenceRegressor(module).fit(X, TARGET)


def test_cumulative_logits():
    with pytest.raises(ValueError, match=r"ordered classes.*link='log_probabilities'"):
        ReferenceClassifier(dense(2)).fit(X, LABELS)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (SEVERAL, r"2 labels a row.*Wrap it: .*MultiLabelClassifier"),
        (torch.tensor(SEVERAL).float(), r"2 labels a row.*MultiLabelClassifier"),
        (ONE_HOT, r"one of which is 1.*y.argmax\(axis=1\)"),
        (np.zeros((60, 6, 6), int), r"shape \(60, 6, 6\).*pixels.*DenseClassifier"),
    ],
    ids=["labels", "tensor", "one-hot", "pixels"],
)
def test_several_labels_a_row(y, message):
    with pytest.raises(ValueError, match=message):
        QUAMClassifier(dense(2)).fit(X, y)


def test_scores_of_tokens():
    module = nn.Linear(4, 3)
    with pytest.raises(ValueError, match=r"\(16, 5, 3\).*DenseClassifier.*causal language model"):
        QUAMClassifier(module).fit(SEQUENCES, LABELS)


class Graph:
    """Has what a graph of torch_geometric has."""

    x, edge_index = X, np.zeros((2, 9), int)


def test_graphs():
    for graph in (Graph(), (X, Graph.edge_index), {"x": X, "edge_index": Graph.edge_index}):
        with pytest.raises((TypeError, ValueError), match=r"graph.*the head alone.*for each node"):
            QUAMClassifier(Apply(lambda x, _: x)).fit(graph, LABELS)


class FocalLoss(nn.CrossEntropyLoss):
    """Has the name of one."""


@pytest.mark.parametrize(
    ("criterion", "options", "message"),
    [
        (nn.CrossEntropyLoss, {"weight": torch.tensor([1.0, 2.0, 3.0])}, "class weights.*sample_w"),
        (nn.CrossEntropyLoss, {"label_smoothing": 0.1}, "label_smoothing=0.1"),
        (FocalLoss, {}, "a focal loss"),
    ],
)
def test_another_loss_than_costs_are_measured_in(criterion, options, message):
    options = {f"criterion__{name}": value for name, value in options.items()}
    net = NeuralNetClassifier(dense(), criterion=criterion, **options, **QUIET)
    est = ReferenceClassifier(fitted(net), link="logits")
    with pytest.warns(TrainingLossWarning, match=message):
        est.fit(X, LABELS)


def test_class_weights_become_weights_of_rows():
    """With them, the loss is the one that the net was trained with, but for its scale."""
    weight = torch.tensor([1.0, 2.0, 3.0])
    criterion = {"criterion": nn.CrossEntropyLoss, "criterion__weight": weight}
    net = fitted(NeuralNetClassifier(dense(), **criterion, **QUIET))
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingLossWarning)
        est = ReferenceClassifier(net).fit(X, LABELS, sample_weight=weight.numpy()[LABELS])
    with torch.no_grad():
        loss = nn.CrossEntropyLoss(weight)(evaluate(net.module_, X), torch.tensor(LABELS))
    assert est.reference_loss_ == pytest.approx(float(loss), rel=1e-5)
