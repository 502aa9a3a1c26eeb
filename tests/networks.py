"""Small networks and data that several tests share."""

import copy
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    dropout,
    gaussian_nll_loss,
    mse_loss,
    nll_loss,
    softplus,
)

from sklearn_quam import ReferenceClassifier, ReferenceRegressor

_rng = np.random.default_rng(0)
X = _rng.normal(size=(60, 4)).astype(np.float32)
X_NEW = _rng.normal(scale=2.0, size=(25, 4)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0)
BINARY = (X[:, 0] + X[:, 2] > 0).astype(np.int64)
TARGET = (np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * _rng.normal(size=60)).astype(np.float32)
COLUMN = TARGET[:, None]
TWO_TARGETS = np.column_stack([TARGET, X[:, 3]]).astype(np.float32)
X64, X64_NEW = X.astype(np.float64), X_NEW.astype(np.float64)
WORDS = np.array(["cat", "dog", "owl"])
IMAGES = _rng.normal(size=(60, 2, 6, 6)).astype(np.float32)
SEQUENCES = _rng.normal(size=(60, 5, 4)).astype(np.float32)
TOKENS = _rng.integers(0, 9, size=(60, 5))

# For skorch: a short, quiet training on all rows.
QUIET = {"max_epochs": 3, "lr": 0.1, "batch_size": 20, "train_split": None, "verbose": 0}


def fitted(estimator, X=X, y=LABELS):
    """Fit without asking for convergence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(X, y)


def train(module, X, y, n_epochs=60):
    """Train a module in place, so that changes of its weights cost something."""
    dtype = next(module.parameters()).dtype
    inputs, target = torch.as_tensor(X).to(dtype), torch.as_tensor(y)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(n_epochs):
        optimizer.zero_grad()
        _loss(module(inputs), target).backward()
        optimizer.step()
    return module


def _loss(output, y):
    if isinstance(output, tuple):
        return gaussian_nll_loss(output[0], y.to(output[0]).reshape(output[0].shape), output[1])
    if y.dtype == torch.bool:
        return binary_cross_entropy_with_logits(output[:, 0], y.to(output))
    if y.is_floating_point():
        return mse_loss(output, y.to(output).reshape(output.shape))
    return cross_entropy(output, y)


def with_ones(X):
    return np.column_stack([X, np.ones(len(X))])


def flat(est):
    """Return the weights that a method has drawn, a row for each model."""
    weights = est._fitted.models.weights.values()
    return torch.cat([value.flatten(1) for value in weights], dim=1).numpy()


def tied():
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    module[2].weight = module[0].weight
    return module


def dense(n_out=3, *after):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, n_out), *after)


def evaluate(module, X):
    """Return the module's own output in evaluation mode, computed on a copy of it."""
    inputs = torch.as_tensor(X)
    weight = next(p for p in module.parameters() if p.is_floating_point())
    if inputs.is_floating_point():
        inputs = inputs.to(weight)
    with torch.no_grad():
        return copy.deepcopy(module).eval()(inputs.to(weight.device))


def module_state(module):
    """Return everything about a module that must not change, as values that compare equal."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return (
        {name: _tensor_state(tensor) for name, tensor in tensors.items()},
        {name: part.training for name, part in module.named_modules()},
    )


def _tensor_state(tensor):
    grad = None if tensor.grad is None else _bytes(tensor.grad)
    kind = (id(tensor), tensor.data_ptr(), tensor.shape, tensor.dtype, tensor.device)
    return (*kind, tensor.requires_grad, _bytes(tensor), grad)


def _bytes(tensor):
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


class Dense(nn.Module):
    """As a class, for nets that build their module themselves."""

    def __init__(self, n_out=3):
        super().__init__()
        self.layers = dense(n_out)

    def forward(self, x):
        return self.layers(x)


class Apply(nn.Module):
    """A layer that calls a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class MeanAndVariance(nn.Module):
    def __init__(self, n_out=1):
        super().__init__()
        self.layers = dense(2 * n_out)

    def forward(self, x):
        mean, raw = self.layers(x).chunk(2, dim=1)
        return mean, softplus(raw) + 0.01


class Residual(nn.Module):
    """Two uses of one weight, and a parameter that forward does not use."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.full((2,), torch.nan))

    def forward(self, x):
        return self.head(x + self.second(torch.relu(self.first(x))))


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM, *, last="output", **options):
        super().__init__()
        self.recurrent, self.last = kind(4, 6, **options), last
        self.head = nn.Linear(12 if options.get("bidirectional") else 6, 3)

    def forward(self, x):
        output, state = self.recurrent(x)
        if self.last == "output":
            return self.head(output[:, -1])
        return self.head((state[0] if isinstance(state, tuple) else state)[-1])


class Attention(nn.Module):
    def __init__(self, *, batch_first=True):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(
            4, nhead=2, dim_feedforward=8, batch_first=batch_first
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(dim=1))


class Tokens(nn.Module):
    def __init__(self, n_out=3):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, n_out)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(dim=1))


class AlwaysRandom(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = dense()

    def forward(self, x):
        return dropout(self.layers(x))  # forgets training=self.training


class LogProbabilityNet(NeuralNetClassifier):
    """Its module returns log-probabilities, so that no logarithm is to be taken of them."""

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        return nll_loss(y_pred, y_true)


class GaussianNet(NeuralNetRegressor):
    """Its module returns (mean, variance)."""

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        mean, variance = y_pred
        return self.criterion_(mean, y_true, variance)


class GaussianLossOfTuple(nn.GaussianNLLLoss):
    """The same as a criterion, for a net without a loss of its own."""

    def forward(self, output, target):
        return super().forward(output[0], target, output[1])


CLASSIFIERS = {
    "skorch": lambda: NeuralNetClassifier(Dense, criterion=nn.CrossEntropyLoss, **QUIET),
    "mlp": lambda: MLPClassifier((8,), solver="lbfgs", max_iter=20, random_state=0),
    "logistic": lambda: LogisticRegression(),
}
REGRESSORS = {
    "skorch": lambda: NeuralNetRegressor(Dense, module__n_out=1, **QUIET),
    "mlp": lambda: MLPRegressor(
        hidden_layer_sizes=(8,), solver="lbfgs", max_iter=20, random_state=0
    ),
    "linear": lambda: LinearRegression(),
    "ridge": lambda: Ridge(),
}
# A function that returns an unfitted estimator, its wrapper, and targets that suit both.
each_model = pytest.mark.parametrize(
    ("make", "wrapper", "y"),
    [
        *(
            pytest.param(make, ReferenceClassifier, LABELS, id=f"{kind} classifier")
            for kind, make in CLASSIFIERS.items()
        ),
        *(
            pytest.param(make, ReferenceRegressor, COLUMN if kind == "skorch" else TARGET, id=kind)
            for kind, make in REGRESSORS.items()
        ),
    ],
)


def predictions(estimator, X=X_NEW):
    """Return probabilities or values, as a matrix."""
    is_classifier = estimator.__sklearn_tags__().estimator_type == "classifier"
    values = estimator.predict_proba(X) if is_classifier else estimator.predict(X)
    return values.reshape(len(values), -1)


def assert_same(estimator, own, X=X_NEW, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(predictions(estimator, X), predictions(own, X), rtol, atol)
