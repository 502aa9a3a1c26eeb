"""What goes wrong is named: an error of our own is never taken for one of the network."""

import io
import tokenize
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sklearn_quam
from sklearn_quam import (
    DeepEnsembleClassifier,
    PenaltySearch,
    QUAMClassifier,
    ReferenceClassifier,
)
from sklearn_quam._network import executors
from sklearn_quam._network.outputs import NETWORK_ERRORS, InvalidOutputError, NetworkErrors
from sklearn_quam._posterior.progress import Progress
from sklearn_quam._search.natural import arguments
from sklearn_quam.exceptions import (
    CurvatureError,
    FailedRowsWarning,
    NetworkError,
    SlowWarning,
    UncertaintyWarning,
)
from sklearn_quam.ood import EnergyDetector

from .networks import LABELS, X_NEW, X, dense, train

FILES = sorted(Path(sklearn_quam.__file__).parent.rglob("*.py"))


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(dense(), X, LABELS)


def test_only_named_errors_are_caught():
    for path in FILES:
        read = io.StringIO(path.read_text()).readline
        words = [token.string for token in tokenize.generate_tokens(read)]
        caught = set()
        for place, word in enumerate(words):
            if word == "except":
                caught |= set(words[place + 1 : words.index(":", place)] or {":"})
        assert not caught & {"Exception", "BaseException", ":"}, path
        assert "BaseException" not in words, path


def test_warnings_and_interrupts_are_no_errors_of_a_network():
    for kind in (Warning, UncertaintyWarning, SlowWarning, KeyboardInterrupt, SystemExit):
        assert not issubclass(kind, NETWORK_ERRORS)
        with pytest.raises(kind), NetworkErrors():
            raise kind
    with pytest.raises(MemoryError), NetworkErrors():
        raise MemoryError
    with pytest.raises(torch.OutOfMemoryError), NetworkErrors():
        raise torch.OutOfMemoryError


@pytest.mark.parametrize("kind", [RuntimeError, KeyError, AssertionError, torch.linalg.LinAlgError])
def test_what_a_network_raises_gets_a_name(kind):
    with pytest.raises(NetworkError, match=kind.__name__) as caught, NetworkErrors():
        raise kind("oh")
    assert type(caught.value.__cause__) is kind
    with pytest.raises(InvalidOutputError, match="as it was"), NetworkErrors():
        raise InvalidOutputError("as it was")


class Picky(nn.Module):
    """Raises an error of a kind for rows whose first value is seven."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.layer = kind, nn.Linear(4, 3)

    def forward(self, x):
        if bool((x[..., 0] == 7).any()):
            raise self.kind("seven is too much")
        return self.layer(x)


@pytest.mark.parametrize("method", [QUAMClassifier, ReferenceClassifier])
@pytest.mark.parametrize("kind", [KeyError])
def test_rows_that_a_network_fails_for_are_named(method, kind):
    est = method(Picky(kind)).fit(X, LABELS)
    rows = X_NEW[:3].copy()
    rows[1, 0] = 7
    with pytest.warns(FailedRowsWarning, match=f"{kind.__name__}: .*seven is too much"):
        u = est.predict_uncertainty(rows)
    np.testing.assert_array_equal(u.epistemic == 1e300, [False, True, False])
    with pytest.raises(NetworkError, match="seven is too much") as caught:
        EnergyDetector(Picky(kind)).fit(X, LABELS).score_samples(rows)
    assert type(caught.value.__cause__) is kind


@pytest.mark.parametrize("kind", [FutureWarning, KeyboardInterrupt])
def test_a_network_that_warns_or_is_stopped_answers_nothing(kind):
    est = ReferenceClassifier(Picky(kind)).fit(X, LABELS)
    rows = X_NEW[:3].copy()
    rows[1, 0] = 7
    with pytest.raises(kind, match="seven"):
        est.predict_uncertainty(rows)


def ours(*_, **__):
    raise TypeError("a mistake of ours")


def test_a_mistake_of_ours_is_no_missing_curvature(network, monkeypatch):
    monkeypatch.setattr(arguments, "make_preconditioner", ours)
    with pytest.raises(TypeError, match="a mistake of ours"):
        QUAMClassifier(network).fit(X, LABELS)


def test_a_mistake_of_ours_is_no_slow_network(network, monkeypatch):
    monkeypatch.setattr(executors.ChainExecutor, "interpret", ours)
    with pytest.raises(TypeError, match="a mistake of ours"):
        QUAMClassifier(network).fit(X, LABELS)


@pytest.mark.parametrize(
    "search", ["natural", PenaltySearch(n_steps=3)], ids=["natural", "penalty"]
)
def test_a_mistake_of_ours_is_no_row_that_cannot_be_processed(network, search, monkeypatch):
    est = QUAMClassifier(network, search=search, random_state=0).fit(X, LABELS)
    monkeypatch.setattr(type(est._fitted.models), "sample", ours)
    with pytest.raises(TypeError, match="a mistake of ours"):
        est.predict_uncertainty(X_NEW[:2])
    with pytest.raises(TypeError, match="a mistake of ours"):
        QUAMClassifier(network, search=search, random_state=0).fit(X, LABELS)


@pytest.mark.parametrize(
    "search", ["natural", PenaltySearch(n_steps=3)], ids=["natural", "penalty"]
)
def test_a_warning_that_is_an_error_is_no_number(network, search, monkeypatch):
    est = QUAMClassifier(network, search=search, random_state=0).fit(X, LABELS)

    def advance(*_):
        warnings.warn("this takes long", SlowWarning, stacklevel=1)

    monkeypatch.setattr(Progress, "advance", advance)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SlowWarning, match="this takes long"):
            est.predict_uncertainty(X_NEW[:2])


class Small(nn.Module):
    """Takes no more than 20 rows at once where derivatives are wanted."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        # Depends on values, so that the network is taken as a whole.
        if bool(x.abs().max() < 1e9) and torch.is_grad_enabled() and len(x) > 20:
            raise RuntimeError("too many rows at once")
        return self.network(x) + 0.1 * x[:, :3]


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.SlowNetworkWarning")
def test_where_the_network_fails_the_curvature_cannot_be_measured(network):
    with pytest.raises(CurvatureError, match="too many rows at once"):
        QUAMClassifier(Small(network), search="natural", parameters="all").fit(X, LABELS)
    with pytest.warns(UserWarning, match=r"measured \(too many rows at once\)") as seen:
        est = QUAMClassifier(Small(network), parameters="all").fit(X, LABELS)
    assert {warning.filename for warning in seen} == {__file__}
    assert isinstance(est.search_, PenaltySearch)


def test_a_calibration_that_fails_leaves_nothing_that_answers(network):
    est = ReferenceClassifier(network)
    with pytest.raises(ValueError, match="y_val has 2"):
        est.fit(X, LABELS, X_val=X[:3], y_val=LABELS[:2])
    assert not hasattr(est, "_fitted")


def test_errors_of_members_are_named():
    with pytest.raises(NetworkError, match="cannot process rows of shape"):
        DeepEnsembleClassifier(estimators=[nn.Linear(5, 3)] * 2).fit(X, LABELS)
