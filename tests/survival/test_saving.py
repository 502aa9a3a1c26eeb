"""Fitted estimators in files without code."""

import json
import pickle

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn_quam._storing.pack import Packed, pack, unpack
from torch import nn

from sklearn_quam import (
    DeepEnsembleClassifier,
    LaplaceRegressor,
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    load,
)
from sklearn_quam._storing.files import read_packed, write_packed

from ..network.test_inputs import PARTS, VALUES, TwoInputs
from ..network.test_inputs import Y as LABELS
from ..networks import fitted
from ..test_contract import METHODS, is_classifier, make_data, make_estimator
from .run import X_NEW, X, Y

WORDS = np.array(["ape", "bat", "cat"])[Y]


def assert_same(first, second, rtol=1e-6):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-9)


def other_weights(network):
    """Return a network of the same structure that knows nothing."""
    torch.manual_seed(99)
    duplicate = pickle.loads(pickle.dumps(network))
    for part in duplicate.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    return duplicate


@pytest.mark.parametrize(
    "method", [m for m in METHODS if m.name != "QUAMRegressor"], ids=lambda m: m.name
)
def test_every_method_comes_back(method, tmp_path):
    est = make_estimator(method).fit(*make_data(method))
    rows = make_data(method)[0][:4]
    est.save(tmp_path / "est.npz")
    if getattr(est, "estimators", None) is not None:
        given = [other_weights(net) for net in est.estimators]
    else:
        given = est.estimator_
        given = other_weights(given) if isinstance(given, nn.Module) else given
    again = load(tmp_path / "est.npz", estimator=given)
    assert type(again) is type(est)
    assert_same(again.predict_uncertainty(rows), est.predict_uncertainty(rows))
    np.testing.assert_array_equal(again.predict(rows), est.predict(rows))
    if is_classifier(method):
        np.testing.assert_array_equal(again.classes_, est.classes_)
    for name, value in est.get_params().items():
        if not name.startswith("estimator") and isinstance(value, int | float | str | None):
            assert again.get_params()[name] == value
    with np.load(tmp_path / "est.npz", allow_pickle=False) as arrays:
        assert all(arrays[name].dtype != object for name in arrays.files)


def dense():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def test_the_weights_come_from_the_file_and_the_passed_network_stays(tmp_path):
    est = QUAMClassifier(dense(), random_state=0).fit(X, WORDS)
    est.save(tmp_path / "est.npz")
    passed = other_weights(dense())
    before = {name: value.clone() for name, value in passed.state_dict().items()}
    again = load(tmp_path / "est.npz", estimator=passed)
    np.testing.assert_array_equal(again.predict_proba(X_NEW), est.predict_proba(X_NEW))
    assert again.classes_.tolist() == ["ape", "bat", "cat"]
    assert all(torch.equal(before[name], value) for name, value in passed.state_dict().items())
    again.save(tmp_path / "twice.npz")
    twice = load(tmp_path / "twice.npz", estimator=dense())
    assert_same(twice.predict_uncertainty(X_NEW), est.predict_uncertainty(X_NEW))


def test_a_network_of_another_structure_is_refused(tmp_path):
    ReferenceClassifier(dense()).fit(X, Y).save(tmp_path / "est.npz")
    other = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(ValueError, match=r"not like the one that was saved.*0.bias: \(5,\)"):
        load(tmp_path / "est.npz", estimator=other)
    tanh = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match="same structure"):
        load(tmp_path / "est.npz", estimator=tanh)


def test_transformers_are_those_of_the_passed_pipeline(tmp_path):
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    est = QUAMClassifier(pipe).fit(X, Y)
    est.save(tmp_path / "est.npz")
    again = load(tmp_path / "est.npz", estimator=pipe)
    assert_same(again.predict_uncertainty(X_NEW), est.predict_uncertainty(X_NEW))
    with pytest.raises(ValueError, match="pass the fitted pipeline"):
        load(tmp_path / "est.npz", estimator=pipe[-1])
    other = make_pipeline(StandardScaler(), LogisticRegression()).fit(2 * X, Y)
    with pytest.raises(ValueError, match="not those that it was saved with"):
        load(tmp_path / "est.npz", estimator=other)


def test_versions_and_other_files_are_told(tmp_path):
    file = tmp_path / "est.npz"
    ReferenceClassifier(dense()).fit(X, Y).save(file)
    packed = read_packed(file)
    packed.tree["format"] = 99
    write_packed(file, packed)
    with pytest.raises(ValueError, match=r"in a format that this version.*does not read"):
        load(file, estimator=dense())
    np.savez(file, a=np.zeros(3))
    with pytest.raises(ValueError, match="cannot be read"):
        load(file, estimator=dense())


@pytest.mark.parametrize(
    "tree",
    [
        {"object": "os:system", "arguments": ["true"]},
        {"object": "sklearn_quam._storing.files:os.system", "arguments": ["true"]},
        {"object": "sklearn_quam._storing.files:write_first", "arguments": ["a", "b"]},
        {"type": "subprocess:Popen"},
        {"type": "sklearn_quam._storing.files:Path"},
    ],
)
def test_no_code_is_run_from_a_file(tree):
    with pytest.raises(ValueError, match="tampered with"):
        unpack(Packed(tree))


def test_functions_cannot_be_saved_and_say_so(tmp_path):
    est = QUAMClassifier(dense(), parameters=lambda name, _: "2" in name).fit(X, Y)
    with pytest.raises(TypeError, match="Pass names instead"):
        est.save(tmp_path / "est.npz")


def test_what_is_packed_comes_back():
    value = {
        "a": [1, 2.5, None, True, "x"],
        ("b", 3): (np.float32(2), np.arange(3), {"y", "z"}),
        "t": torch.arange(4, dtype=torch.bfloat16),
        "o": np.array([None, "q", 2], dtype=object),
        "d": torch.float16,
        "s": torch.Size([2, 3]),
    }
    packed = pack(value)
    back = unpack(Packed(json.loads(json.dumps(packed.tree)), packed.arrays))
    assert back["a"] == value["a"]
    scalar, array, texts = back["b", 3]
    assert scalar.dtype == np.float32
    assert array.tolist() == [0, 1, 2]
    assert texts == {"y", "z"}
    assert torch.equal(back["t"], value["t"])
    assert back["o"].tolist() == [None, "q", 2]
    assert back["d"] is torch.float16
    assert back["s"] == torch.Size([2, 3])


SKLEARN = {
    "logistic": (QUAMClassifier, LogisticRegression(), WORDS),
    "mlp": (DeepEnsembleClassifier, MLPClassifier((5,), max_iter=20), WORDS),
    "linear": (QUAMRegressor, LinearRegression(), X[:, 0]),
    "pipeline": (
        LaplaceRegressor,
        make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(5,))),
        X[:, 0],
    ),
}


@pytest.mark.parametrize("name", SKLEARN)
def test_skops_stores_estimators_around_networks_of_scikit_learn(name, tmp_path):
    skops = pytest.importorskip("skops.io")
    kind, net, y = SKLEARN[name]
    est = kind(fitted(net, X, y) if name != "mlp" else net, random_state=0)
    if name == "mlp":
        est.set_params(n_estimators=2)
    est.fit(X, y)
    text = skops.dumps(est)
    unknown = skops.get_untrusted_types(data=text)
    # An optimiser is part of scikit-learn's own networks.
    assert all(name.startswith(("sklearn_quam.", "sklearn.")) for name in unknown), unknown
    again = skops.loads(text, trusted=unknown)
    assert_same(again.predict_uncertainty(X_NEW), est.predict_uncertainty(X_NEW))


NAMED = [PARTS, tuple(PARTS.values())]


@pytest.mark.parametrize("rows", NAMED, ids=["by name", "in order"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_several_inputs_come_back(method, rows, tmp_path):
    classifier = is_classifier(method)
    network = TwoInputs(3 if classifier else 2)
    arguments = method.arguments
    arguments = arguments(network) if callable(arguments) else arguments
    est = method.kind(network, random_state=0, **arguments).fit(
        rows, LABELS if classifier else VALUES
    )
    est.save(tmp_path / "est.npz")
    if getattr(est, "estimators", None) is not None:
        passed = [other_weights(net) for net in est.estimators]
    else:
        passed = other_weights(network)
    again = load(tmp_path / "est.npz", estimator=passed)
    assert_same(again.predict_uncertainty(rows), est.predict_uncertainty(rows))
    np.testing.assert_array_equal(again.predict(rows), est.predict(rows))
