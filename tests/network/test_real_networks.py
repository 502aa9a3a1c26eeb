"""Networks as people have them: how they are cut and run, and what counts of their output."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import (
    MCDropoutClassifier,
    QUAMClassifier,
    ReferenceClassifier,
    ReferenceRegressor,
)
from sklearn_quam._network.outputs import InvalidOutputError, picked
from sklearn_quam.ood import MahalanobisDetector

from ..real_networks import (
    GPT,
    Autocast,
    BackboneOutput,
    Bert,
    Cosine,
    Heads,
    PackedLSTM,
    SequenceClassifierOutput,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3
LENGTHS = RNG.integers(3, 9, size=60)
WORDS = np.where(np.arange(8) < LENGTHS[:, None], RNG.integers(1, 20, size=(60, 8)), 0)


def made(make):
    torch.manual_seed(0)
    return make().eval()


def quam(net, **params):
    params = {"search": "natural", "random_state": 0, **params}
    return QUAMClassifier(net, **params)


# How many linear layers "auto" searches, where the network is cut, and how its rest is run.
NETWORKS = {
    "BERT": (Bert, WORDS, 2, "inside", "matmul"),
    "GPT": (GPT, WORDS, 1, "inside", "matmul"),
    "packed LSTM": (PackedLSTM, WORDS, 1, "inside", "matmul"),
    "cosine": (Cosine, X, 1, "inside", "vmap"),
    "features": (lambda: Heads("features"), X, 2, "at_input", "matmul"),
    "autocast": (Autocast, X, 2, "at_input", "matmul"),
}
each_network = pytest.mark.parametrize("name", NETWORKS)


def logits_of(net, rows):
    tensor = torch.tensor(rows)
    with torch.no_grad():
        output = net(tensor)
    if isinstance(output, dict):
        return output["logits"]
    return output[0] if isinstance(output, tuple) else output


@each_network
def test_network_is_taken_as_it_is(name):
    make, rows, n_layers, cut, execution = NETWORKS[name]
    net = made(make)
    before = copy.deepcopy(net.state_dict())
    est = quam(net).fit(rows, Y)
    assert (est.cut_, est.execution_) == (cut, execution)
    layers = {parameter.rpartition(".")[0] for parameter in est.parameter_names_}
    assert len(layers) == n_layers
    uncertainty = est.predict_uncertainty(rows[:4])
    assert np.isfinite(uncertainty.epistemic).all()
    assert (uncertainty.epistemic > 0).all()
    expected = torch.softmax(logits_of(net, rows).float(), dim=-1).numpy()
    tolerance = 2e-2 if name == "autocast" else 1e-5
    np.testing.assert_allclose(est.predict_proba(rows), expected, atol=tolerance)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


@pytest.mark.parametrize("name", ["BERT", "GPT", "packed LSTM", "cosine"])
def test_last_layer_and_a_row_alone(name):
    make, rows, _, _, _ = NETWORKS[name]
    est = quam(made(make), parameters="last_layer").fit(rows, Y)
    assert est.cut_ == "inside"
    together = est.predict_uncertainty(rows[:5]).epistemic
    alone = [est.predict_uncertainty(rows[i : i + 1]).epistemic[0] for i in range(5)]
    np.testing.assert_allclose(alone, together, rtol=1e-3)
    stored = pickle.loads(pickle.dumps(est))
    np.testing.assert_allclose(stored.predict_uncertainty(rows[:5]).epistemic, together, rtol=1e-4)


# -- which output ----------------------------------------------------------------------------


TENSOR = torch.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize(
    ("output", "which"),
    [
        (TENSOR, None),
        (SequenceClassifierOutput(logits=TENSOR, hidden_states=(TENSOR + 1,)), None),
        (SequenceClassifierOutput(loss=TENSOR.sum(), logits=TENSOR), None),
        (BackboneOutput(TENSOR, TENSOR + 1), None),
        (BackboneOutput(TENSOR + 1, TENSOR), "pooler_output"),
        ({"logits": TENSOR, "features": TENSOR + 1}, None),
        ({"only": TENSOR}, None),
        ({"a": TENSOR + 1, "b": TENSOR}, "b"),
        ({"a": TENSOR + 1, "b": TENSOR}, 1),
        ({"a": TENSOR + 1, "b": TENSOR}, -1),
        ((TENSOR + 1, TENSOR), 1),
        ((TENSOR + 1, {"logits": TENSOR}), 1),
    ],
)
def test_output_that_is_picked(output, which):
    assert torch.equal(picked(output, which), TENSOR)


@pytest.mark.parametrize(
    ("output", "which", "message"),
    [
        (TENSOR, "head", "returns only one"),
        ({"a": TENSOR, "b": TENSOR}, None, r"several outputs: \['a', 'b'\]. Pass output="),
        ({"a": TENSOR, "b": TENSOR}, "c", r"no output 'c'. It returns \['a', 'b'\]"),
        ((TENSOR, TENSOR), 2, "no output 2"),
        ((TENSOR, TENSOR), "head", "no output 'head'"),
    ],
)
def test_output_that_is_not_there(output, which, message):
    with pytest.raises(InvalidOutputError, match=message):
        picked(output, which)


@pytest.mark.parametrize(("form", "output"), [("dict", "kind"), ("tuple", None)])
def test_one_of_several_heads(form, output):
    net = made(lambda: Heads(form))
    est = quam(net, output=output, parameters="last_layer").fit(X, Y)
    assert est.parameter_names_ == ["kind.weight", "kind.bias"]
    assert (est.cut_, est.execution_) == ("inside", "matmul")
    alone = quam(nn.Sequential(net.body, net.kind), parameters="last_layer").fit(X, Y)
    np.testing.assert_allclose(
        est.predict_uncertainty(X[:5]).epistemic,
        alone.predict_uncertainty(X[:5]).epistemic,
        rtol=1e-4,
    )


def test_output_of_every_method_is_an_argument_that_is_checked():
    with pytest.raises(InvalidOutputError, match="several outputs"):
        quam(made(lambda: Heads("dict"))).fit(X, Y)
    with pytest.raises(InvalidOutputError, match="no output 'knid'"):
        ReferenceClassifier(made(lambda: Heads("dict")), output="knid").fit(X, Y)
    with pytest.raises(ValueError, match="output"):
        ReferenceRegressor(made(lambda: Heads("dict")), output=1.5).fit(X, X[:, 0])


# -- which layer is the last -----------------------------------------------------------------


def test_a_matrix_behind_all_layers_is_the_last_layer():
    net = made(Cosine)
    est = quam(net, parameters="last_layer").fit(X, Y)
    assert est.parameter_names_ == ["weight", "scale"]
    two = quam(net, parameters=2).fit(X, Y)
    assert two.parameter_names_ == ["weight", "scale", "body.2.weight", "body.2.bias"]
    for method in (MCDropoutClassifier(net, p=0.1), MahalanobisDetector(net)):
        with pytest.raises(ValueError, match="only a parameter of Cosine"):
            method.fit(X, Y)


class Tempered(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.temperature = nn.Linear(4, 3), nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.head(x) / self.temperature


def test_a_single_scale_is_no_layer():
    est = quam(made(Tempered), parameters="last_layer").fit(X, Y)
    assert est.parameter_names_ == ["head.weight", "head.bias"]


# -- precision, compiled and quantised modules, devices --------------------------------------


def test_autocast_inside_is_left_out():
    net = made(Autocast)
    est = quam(net).fit(X, Y)
    plain = nn.Sequential(net.body, nn.ReLU(), net.head)
    expected = quam(plain).fit(X, Y)
    np.testing.assert_allclose(est.predict_proba(X), expected.predict_proba(X), rtol=1e-5)
    found = est.predict_uncertainty(X[:5]).epistemic
    np.testing.assert_allclose(found, expected.predict_uncertainty(X[:5]).epistemic, rtol=1e-3)
    assert net(torch.tensor(X)).dtype == torch.bfloat16  # the user's network still does


def test_compiled_modules():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is on its way out
        scripted = torch.jit.script(net)
        body = torch.jit.script(net[:2])
    expected = ReferenceClassifier(net).fit(X, Y).predict_proba(X)
    np.testing.assert_allclose(
        ReferenceClassifier(scripted).fit(X, Y).predict_proba(X), expected, rtol=1e-5
    )
    for parameters in ("auto", "last_layer", "all"):
        with pytest.raises(ValueError, match=r"torch\.jit module.*Pass the nn\.Module"):
            quam(scripted, parameters=parameters).fit(X, Y)
    est = quam(nn.Sequential(body, net[2]), parameters="last_layer").fit(X, Y)
    assert (est.cut_, est.execution_) == ("inside", "matmul")
    assert (est.predict_uncertainty(X[:3]).epistemic > 0).all()


class Quantised(nn.Module):
    """A body that computes with whole numbers, and a head."""

    def __init__(self):
        super().__init__()
        self.into, self.out = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
        self.body, self.head = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.out(self.body(self.into(x))))


needs_kernels = pytest.mark.skipif(
    torch.backends.quantized.engine == "none", reason="no quantised kernels on this machine"
)


@needs_kernels
@pytest.mark.filterwarnings("ignore")  # torch's quantisation is on its way out
@pytest.mark.parametrize("everything", [False, True])
def test_quantised_modules(everything):
    quantisation = torch.ao.quantization
    net = made(Quantised)
    net.qconfig = quantisation.get_default_qconfig(torch.backends.quantized.engine)
    if everything:
        net.head = nn.Sequential(quantisation.QuantStub(), net.head, quantisation.DeQuantStub())
    else:
        net.head.qconfig = None
    quantisation.prepare(net, inplace=True)
    net(torch.tensor(X))
    quantisation.convert(net, inplace=True)
    assert ReferenceClassifier(net).fit(X, Y).predict_proba(X).shape == (60, 3)
    if everything:
        for parameters in ("auto", "last_layer", "all"):
            with pytest.raises(ValueError, match="quantised"):
                quam(net, parameters=parameters).fit(X, Y)
        return
    est = quam(net, parameters="last_layer").fit(X, Y)
    assert (est.cut_, est.execution_) == ("inside", "matmul")
    assert (est.predict_uncertainty(X[:3]).epistemic > 0).all()


@pytest.mark.parametrize("device", ["meta", "cuda", "mps", "nowhere"])
def test_devices_that_are_not_there(device):
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if there.get(device):
        pytest.skip("this machine has it")
    with pytest.raises(ValueError, match=f"device='{device}' cannot be used on this machine"):
        quam(nn.Linear(4, 3), device=device).fit(X, Y)


# -- many classes ----------------------------------------------------------------------------
