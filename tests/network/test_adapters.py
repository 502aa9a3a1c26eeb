"""Every kind of estimator that can be wrapped predicts as it does on its own."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    Ridge,
    RidgeCV,
)
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from sklearn_quam import ReferenceClassifier, ReferenceRegressor
from sklearn_quam._network.adapters import read_network

from ..networks import (
    BINARY,
    CLASSIFIERS,
    COLUMN,
    LABELS,
    QUIET,
    REGRESSORS,
    TARGET,
    TWO_TARGETS,
    WORDS,
    X64,
    X64_NEW,
    X_NEW,
    GaussianLossOfTuple,
    GaussianNet,
    MeanAndVariance,
    X,
    assert_same,
    dense,
    evaluate,
    fitted,
    predictions,
)

_LOGISTIC_CV = LogisticRegressionCV(Cs=2, cv=2, scoring="accuracy")
if "use_legacy_attributes" in _LOGISTIC_CV.get_params():  # scikit-learn 1.8
    _LOGISTIC_CV.set_params(l1_ratios=(0,), use_legacy_attributes=False)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# -- skorch --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "net",
    [
        lambda: NeuralNetClassifier(dense(3, nn.Softmax(dim=1)), **QUIET),
        lambda: NeuralNetClassifier(
            dense(3, nn.LogSoftmax(dim=1)), criterion=nn.CrossEntropyLoss, **QUIET
        ),
        lambda: NeuralNetClassifier(dense(), criterion=nn.CrossEntropyLoss(), **QUIET),
    ],
    ids=["softmax, NLLLoss", "log-softmax, CrossEntropyLoss", "logits, CrossEntropyLoss"],
)
def test_skorch_classifier(net):
    net = fitted(net())
    est = ReferenceClassifier(net).fit(X, LABELS)
    assert_same(est, net)
    np.testing.assert_array_equal(est.predict(X_NEW), net.predict(X_NEW))
    np.testing.assert_array_equal(est.classes_, [0, 1, 2])


@pytest.mark.parametrize("threshold", [0.5, 0.8])
@pytest.mark.parametrize(
    ("after", "criterion"),
    [([], nn.BCEWithLogitsLoss), ([nn.Sigmoid(), nn.Flatten(0)], nn.BCELoss)],
    ids=["logit (n, 1)", "probability (n,)"],
)
def test_skorch_binary_classifier(after, criterion, threshold):
    net = NeuralNetBinaryClassifier(
        dense(1, *after), criterion=criterion, threshold=threshold, **QUIET
    )
    net = fitted(net, X, BINARY.astype(np.float32))
    est = ReferenceClassifier(net).fit(X, BINARY)
    assert_same(est, net)
    np.testing.assert_array_equal(est.predict(X_NEW), net.predict(X_NEW))


@pytest.mark.parametrize("y", [TARGET, TWO_TARGETS], ids=["one", "two"])
def test_skorch_regressor(y):
    columns = y.reshape(len(y), -1)
    net = fitted(NeuralNetRegressor(dense(columns.shape[1]), **QUIET), X, columns)
    est = ReferenceRegressor(net).fit(X, y)
    assert_same(est, net)
    assert est.predict(X_NEW).shape == X_NEW.shape[:1] + y.shape[1:]


@pytest.mark.parametrize("n_out", [1, 2])
@pytest.mark.parametrize(
    "net",
    [
        lambda module: GaussianNet(module, criterion=nn.GaussianNLLLoss, **QUIET),
        lambda module: NeuralNetRegressor(module, criterion=GaussianLossOfTuple, **QUIET),
    ],
    ids=["own loss", "own criterion"],
)
def test_skorch_regressor_with_mean_and_variance(net, n_out):
    y = TWO_TARGETS[:, :n_out]
    net = fitted(net(MeanAndVariance(n_out)), X, y)
    est = ReferenceRegressor(net, measure="variance").fit(X, y)
    assert_same(est, net)
    variance = evaluate(net.module_, X_NEW)[1].numpy().sum(axis=1)
    np.testing.assert_allclose(est.predict_uncertainty(X_NEW).total, variance, 1e-5)


@pytest.mark.parametrize(
    ("net", "y", "wrapper", "link", "implied"),
    [
        (lambda: CLASSIFIERS["skorch"](), LABELS, ReferenceClassifier, "probabilities", "logits"),
        (
            lambda: NeuralNetClassifier(dense(3, nn.Softmax(dim=1)), **QUIET),
            LABELS,
            ReferenceClassifier,
            "logits",
            "probabilities",
        ),
        (lambda: REGRESSORS["skorch"](), COLUMN, ReferenceRegressor, "mean_variance", "mean"),
    ],
    ids=["cross-entropy", "NLL", "squares"],
)
def test_link_that_contradicts_the_criterion_is_refused(net, y, wrapper, link, implied):
    net = fitted(net(), X, y)
    with pytest.raises(ValueError, match=f"link='{link}' contradicts .* means '{implied}'"):
        wrapper(net, link=link).fit(X, y)


# -- plain modules -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "after", "to_probabilities"),
    [
        (None, [], lambda z: torch.softmax(z, 1)),
        ("logits", [], lambda z: torch.softmax(z, 1)),
        ("log_probabilities", [nn.LogSoftmax(dim=1)], torch.exp),
        ("probabilities", [nn.Softmax(dim=1)], lambda p: p),
    ],
)
def test_module_as_classifier(link, after, to_probabilities):
    module = dense(3, *after)
    est = ReferenceClassifier(module, link=link).fit(X, LABELS)
    expected = to_probabilities(evaluate(module, X_NEW)).numpy()
    np.testing.assert_allclose(est.predict_proba(X_NEW), expected, 1e-5)
    np.testing.assert_array_equal(est.predict(X_NEW), expected.argmax(axis=1))


@pytest.mark.parametrize("link", [None, "mean"])
@pytest.mark.parametrize(
    ("module", "y"),
    [
        (lambda: dense(1), TARGET),
        (lambda: dense(1), COLUMN),
        (lambda: dense(1, nn.Flatten(0)), TARGET),
        (lambda: dense(2), TWO_TARGETS),
    ],
    ids=["one", "a column", "flat", "two"],
)
def test_module_as_regressor(module, y, link):
    module = module()
    est = ReferenceRegressor(module, link=link).fit(X, y)
    assert est.predict(X_NEW).shape == X_NEW.shape[:1] + y.shape[1:]
    expected = evaluate(module, X_NEW).numpy().reshape(len(X_NEW), -1)
    np.testing.assert_allclose(predictions(est), expected, 1e-5, 1e-6)


# -- scikit-learn --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "hidden", "y"),
    [
        ("identity", (), LABELS),
        ("logistic", (7,), BINARY),
        ("tanh", (7, 5), WORDS[LABELS]),
        ("relu", (7,), LABELS),
    ],
)
def test_mlp_classifier_is_converted_exactly(activation, hidden, y):
    net = fitted(MLPClassifier(hidden, activation=activation, max_iter=10, random_state=0), X64, y)
    est = ReferenceClassifier(net).fit(X64, y)
    assert_same(est, net, X64_NEW, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(est.predict(X64_NEW), net.predict(X64_NEW))
    np.testing.assert_array_equal(est.classes_, net.classes_)


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
@pytest.mark.parametrize(("activation", "y"), [("tanh", TARGET), ("relu", TWO_TARGETS)])
def test_mlp_regressor_is_converted_exactly(activation, y, loss):
    y = np.exp(y.astype(np.float64))
    net = MLPRegressor(
        hidden_layer_sizes=(7, 5), activation=activation, loss=loss, max_iter=10, random_state=0
    )
    net = fitted(net, X64, y)
    est = ReferenceRegressor(net).fit(X64, y)
    assert_same(est, net, X64_NEW, rtol=0, atol=1e-6)
    assert est.predict(X64_NEW).shape == net.predict(X64_NEW).shape


@pytest.mark.parametrize(
    ("net", "y"),
    [
        (LogisticRegression(), LABELS),
        (LogisticRegression(), WORDS[LABELS]),
        (LogisticRegression(fit_intercept=False), LABELS),
        (LogisticRegression(solver="liblinear"), BINARY),
        (_LOGISTIC_CV, LABELS),
    ],
    ids=["multinomial", "words", "no intercept", "liblinear", "CV"],
)
def test_logistic_regression_is_a_network_of_one_layer(net, y):
    net = fitted(clone(net), X64, y)
    est = ReferenceClassifier(net).fit(X64, y)
    assert_same(est, net, X64_NEW, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(est.predict(X64_NEW), net.predict(X64_NEW))


@pytest.mark.parametrize(
    ("net", "y"),
    [
        (LinearRegression(), TARGET),
        (LinearRegression(fit_intercept=False), COLUMN),
        (Ridge(alpha=0.1), TWO_TARGETS),
        (RidgeCV(), TWO_TARGETS),
    ],
)
def test_linear_regression_is_a_network_of_one_layer(net, y):
    net = clone(net).fit(X64, y.astype(np.float64))
    est = ReferenceRegressor(net).fit(X64, y)
    assert_same(est, net, X64_NEW, rtol=0, atol=1e-12)
    assert est.predict(X64_NEW).shape == (len(X_NEW), *y.shape[1:])


def test_multilabel_network_is_refused():
    net = fitted(CLASSIFIERS["mlp"](), X, np.column_stack([BINARY, LABELS > 0]))
    with pytest.raises(ValueError, match="MultiLabelClassifier"):
        read_network(net, task="classifier")


@pytest.mark.parametrize(
    ("wrapper", "net", "message"),
    [
        (ReferenceClassifier, RandomForestClassifier(2), "RandomForestClassifier holds no network"),
        (ReferenceRegressor, RandomForestRegressor(2), "RandomForestRegressor holds no network"),
        (ReferenceClassifier, LinearRegression(), "LinearRegression is a regressor"),
        (ReferenceRegressor, LogisticRegression(), "LogisticRegression is a classifier"),
        (ReferenceRegressor, CLASSIFIERS["mlp"](), "MLPClassifier is a classifier"),
        (ReferenceRegressor, CLASSIFIERS["skorch"](), "NeuralNetClassifier is a classifier"),
        (
            ReferenceClassifier,
            GridSearchCV(RandomForestClassifier(2), {"max_depth": [2]}, cv=2),
            "RandomForestClassifier holds no network",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unsuitable_estimator_is_refused(wrapper, net, message):
    for one in (clone(net), fitted(clone(net))):
        with pytest.raises(TypeError, match=message):
            wrapper(one).fit(X, LABELS)


# -- classes -------------------------------------------------------------------------------


def test_classes_named_by_a_given_net_are_its_columns():
    order = [2, 0, 1]
    column = np.argsort(order)[LABELS]  # the net is trained on the position in its classes
    net = fitted(CLASSIFIERS["skorch"]().set_params(classes=WORDS[order].tolist()), X, column)
    est = ReferenceClassifier(net).fit(X, WORDS[LABELS])
    np.testing.assert_array_equal(est.predict(X_NEW), WORDS[order][net.predict(X_NEW)])
    expected = -np.log(net.predict_proba(X)[np.arange(len(X)), column]).mean()
    assert est.reference_loss_ == pytest.approx(expected, rel=1e-4)


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.MissingClassesWarning")
@pytest.mark.parametrize("kind", ["module", "skorch", "mlp"])
def test_labels_may_miss_from_y(kind):
    net = dense() if kind == "module" else fitted(CLASSIFIERS[kind]())
    seen = LABELS != 1
    est = ReferenceClassifier(net).fit(X[seen], LABELS[seen])
    np.testing.assert_array_equal(est.classes_, [0, 1, 2])
    assert est.predict_proba(X_NEW).shape == (len(X_NEW), 3)
    loss = -np.log(est.predict_proba(X[seen])[np.arange(seen.sum()), LABELS[seen]]).mean()
    assert est.reference_loss_ == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize(
    ("n_out", "y", "message"),
    [
        (5, WORDS[LABELS], "it has 5 columns, and y has 3 classes"),
        (2, LABELS, "it has 2 columns, and y has 3 classes"),
        (3, LABELS + (X[:, 2] > 0), "it has 3 columns, and y has 4 classes"),
    ],
)
def test_mismatch_of_columns_and_classes_names_both(n_out, y, message):
    with pytest.raises(ValueError, match=message):
        ReferenceClassifier(dense(n_out)).fit(X, y)


@pytest.mark.parametrize("kind", ["mlp", "logistic"])
def test_labels_unknown_to_a_scikit_learn_network_are_refused(kind):
    net = fitted(CLASSIFIERS[kind](), X, WORDS[LABELS])
    with pytest.raises(ValueError, match=r"y has 3 classes: .*'yak', but .* trained with .*'owl'"):
        ReferenceClassifier(net).fit(X, np.array(["cat", "dog", "yak"])[LABELS])
