"""Many models at once give what each gives by itself, and the same gradients."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from sklearn_quam import LoRA
from sklearn_quam._network.cut.split import split_module
from sklearn_quam._network.executors import (
    ChainExecutor,
    LoopExecutor,
    VmapExecutor,
    choose_executor,
)
from sklearn_quam._network.inputs.rows import Inputs
from sklearn_quam._network.likelihood import CategoricalLikelihood, GaussianLikelihood
from sklearn_quam._network.parameters import choose_parameters
from sklearn_quam._network.predictions import Prediction

from ..networks import (
    Apply,
    Attention,
    MeanAndVariance,
    Recurrent,
    Residual,
    Tokens,
    dense,
    module_state,
)

LOGITS = CategoricalLikelihood("logits")
BINARY = CategoricalLikelihood("binary_logit")
PROBABILITIES = CategoricalLikelihood("probabilities")
LOG_PROBABILITIES = CategoricalLikelihood("log_probabilities")
MEAN = GaussianLikelihood("mean", torch.tensor([0.5], dtype=torch.float64))
TWO_MEANS = GaussianLikelihood("mean", torch.tensor([0.5, 2.0], dtype=torch.float64))
MEAN_VARIANCE = GaussianLikelihood("mean_variance")


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# -- networks --------------------------------------------------------------------------------


def mlp(*, activation=nn.Tanh, ending=(), widths=(4, 6, 5, 3), bias=True):
    layers = []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out, bias=bias), activation()]
    return nn.Sequential(*layers[:-1], *ending)


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def sequence_of_rows():
    """A linear layer on every step of a sequence."""
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3))


class DataDependent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = dense()

    def forward(self, x):
        output = self.layers(x)
        return output if output.sum() > 0 else 2 * output


class TwoInputs(nn.Module):
    """As behind a cut that several values cross."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, x, skip):
        return torch.tanh(self.left(x)) * self.right(skip) + skip.sum(dim=1, keepdim=True)


def tied_chain():
    module = mlp(widths=(4, 4, 4, 3))
    module[2].weight = module[0].weight
    return module


def weight_norm():
    return nn.Sequential(nn.Linear(4, 4), parametrizations.weight_norm(nn.Linear(4, 3)))


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)) + x)


@dataclass(eq=False)
class Case:
    """A network, what its outputs mean, its inputs, and the executor that should be chosen."""

    make: Any
    likelihood: Any = LOGITS
    inputs: Any = (normal(9, 4),)
    execution: str = "matmul"

    def module(self):
        torch.manual_seed(0)
        return self.make().double().eval().requires_grad_(False)


IMAGES, SEQUENCES = (normal(9, 2, 6, 6),), (normal(9, 5, 4),)
CASES = {
    "mlp": Case(mlp),
    "two linear layers in a row": Case(lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))),
    "bare layer": Case(lambda: nn.Linear(4, 3)),
    "log-softmax": Case(lambda: mlp(ending=[nn.LogSoftmax(dim=1)]), LOG_PROBABILITIES),
    "binary logit": Case(lambda: mlp(widths=(4, 5, 1)), BINARY),
    "tanh and softmax": Case(lambda: mlp(ending=[nn.Tanh(), nn.Softmax(dim=1)]), PROBABILITIES),
    "regression": Case(lambda: mlp(widths=(4, 5, 1)), MEAN),
    "sigmoid regression": Case(lambda: mlp(widths=(4, 5, 2), ending=[nn.Sigmoid()]), TWO_MEANS),
    "mean and variance": Case(MeanAndVariance, MEAN_VARIANCE, execution="vmap"),
    "softmax over rows": Case(lambda: mlp(ending=[nn.Softmax(dim=0)]), execution="vmap"),
    "tied": Case(Residual, execution="vmap"),
    "convolutional": Case(convolutional, LOGITS, IMAGES, "vmap"),
    "attention": Case(Attention, LOGITS, SEQUENCES, "vmap"),
    "tokens": Case(Tokens, LOGITS, (torch.arange(45).reshape(9, 5) % 9,), "vmap"),
    "linear layers on sequences": Case(sequence_of_rows, LOGITS, SEQUENCES, "vmap"),
    "two inputs": Case(TwoInputs, LOGITS, (normal(9, 4), normal(9, 2, seed=1)), "vmap"),
    "lstm": Case(lambda: Recurrent(nn.LSTM, batch_first=True), LOGITS, SEQUENCES, "loop"),
    "data-dependent": Case(DataDependent, execution="loop"),
    "weight norm": Case(weight_norm, execution="vmap"),
    "tied chain": Case(tied_chain, execution="vmap"),
    "skip": Case(Skip, execution="vmap"),
}
N_MODELS = 3


# -- running them ----------------------------------------------------------------------------


def models(module, names=None, n_models=N_MODELS, size=0.2):
    """Return weights of several models that all differ."""
    names = list(dict(module.named_parameters())) if names is None else names
    weights = {}
    for seed, name in enumerate(names):
        given = module.get_parameter(name).detach().nan_to_num()
        weights[name] = given + size * normal(n_models, *given.shape, seed=seed)
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def rows(inputs, n_models=N_MODELS):
    """Return shared rows, a row for each model that is none of them, and all rows of each model."""
    shared, query = tuple(x[:-n_models] for x in inputs), tuple(x[-n_models:] for x in inputs)
    pairs = zip(shared, query, strict=True)
    own = [torch.stack([torch.cat([a, row[None]]) for row in b]) for a, b in pairs]
    return shared, query, tuple(own)


def flat(output):
    """Return the tensors of a prediction, or of what a module returns."""
    return output.parts if isinstance(output, Prediction) else (output,)


def gradients(prediction, weights):
    """Return the gradients of a random combination of all predictions."""
    total = sum(
        (part * normal(*part.shape, seed=seed)).sum() for seed, part in enumerate(flat(prediction))
    )
    found = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    return {
        name: None if gradient is None else gradient.clone()
        for name, gradient in zip(weights, found, strict=True)
    }


def run(executor, weights, shared, query):
    prediction = executor.predict(weights, shared, query)
    return prediction, gradients(prediction, weights)


def run_each(executor, weights, own):
    prediction = executor.predict_each(weights, own)
    return prediction, gradients(prediction, weights)


def by_hand(case, weights, own):
    """Return what copies of the module with each model's weights predict, and their gradients."""
    copies, parts = [], []
    for index in range(len(own[0])):
        one = case.module()
        for name, weight in weights.items():
            one.get_parameter(name).data = weight.detach()[index].clone()
        copies.append(one.requires_grad_())
        parts.append(flat(case.likelihood.prediction(one(*(x[index] for x in own)))))
    prediction = case.likelihood.kind(*map(torch.stack, zip(*parts, strict=True)))
    separate = {
        (name, i): one.get_parameter(name) for name in weights for i, one in enumerate(copies)
    }
    found = gradients(prediction, separate)
    together = {name: [found[name, i] for i in range(len(copies))] for name in weights}
    return prediction, {k: None if v[0] is None else torch.stack(v) for k, v in together.items()}


def assert_close(actual, expected, rtol=1e-10, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def assert_same(actual, expected):
    assert type(actual[0]) is type(expected[0])
    for a, b in zip(flat(actual[0]), flat(expected[0]), strict=True):
        assert_close(a.detach(), b.detach())
    assert actual[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        if gradient is None:
            assert actual[1][name] is None or not actual[1][name].any()
        else:
            assert gradient.any()
            assert_close(actual[1][name], gradient)


# -- every executor gives the same -----------------------------------------------------------


def chosen(module, likelihood, inputs, names=None):
    names = list(dict(module.named_parameters())) if names is None else names
    weights = {name: module.get_parameter(name).detach() for name in names}
    probe = tuple(x[:4] for x in inputs)
    if len(probe) == 1:
        # As it is run in fact: by its steps, where it can be traced.
        split = split_module(module, tuple(dict(module.named_parameters())), Inputs(probe))
        module = split.rest if split.place == "at_input" else module
    return choose_executor(module, likelihood, weights, probe)


def chain_executor(module, likelihood):
    """Return the executor of a network that is a chain from its input on."""
    names = tuple(dict(module.named_parameters()))
    n_in = module.get_parameter(names[0]).shape[1]
    split = split_module(module, names, Inputs((normal(4, n_in),)))
    assert split.place == "at_input"
    return ChainExecutor(split.rest, likelihood)


def executors_for(case, module, names=None):
    """Return the executor that is chosen, and those that would do as well."""
    executor = chosen(module, case.likelihood, case.inputs, names)
    assert executor.name == case.execution
    kinds = [LoopExecutor] + [VmapExecutor] * (case.execution == "matmul")
    return [executor, *(kind(module, case.likelihood) for kind in kinds)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_executors_give_what_copies_of_the_module_give(case):
    module = case.module()
    state, output = module_state(module), flat(module(*case.inputs))
    weights, (shared, query, own) = models(module), rows(case.inputs)
    expected = by_hand(case, weights, own)
    for executor in executors_for(case, module):
        assert_same(run(executor, weights, shared, query), expected)
        assert_same(run_each(executor, weights, own), expected)
        with torch.no_grad():
            found = flat(executor.predict(weights, shared, query))
        for a, b in zip(found, flat(expected[0]), strict=True):
            assert not a.requires_grad
            assert_close(a, b.detach())
    assert module_state(module) == state
    for a, b in zip(flat(module(*case.inputs)), output, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_executor_with_wrong_gradients_is_not_chosen(monkeypatch):
    predict = VmapExecutor.predict
    monkeypatch.setattr(
        VmapExecutor, "predict", lambda self, *data: predict(self, *data).map(torch.Tensor.detach)
    )
    case = CASES["skip"]
    assert chosen(case.module(), case.likelihood, case.inputs).name == "loop"


# -- activations -----------------------------------------------------------------------------


def function(call):
    return lambda: Apply(call)


SPELLINGS = {
    "functional.relu in place": function(lambda x: functional.relu(x, inplace=True)),
    "nn.Tanh": nn.Tanh,
    ".tanh()": function(lambda x: x.tanh()),
    "nn.Sigmoid": nn.Sigmoid,
    "nn.Dropout": nn.Dropout,
}
# Every elementwise module of torch.nn, but PReLU: its slope is a parameter that is searched, too.
ELEMENTWISE = {
    "nn.LeakyReLU": lambda: nn.LeakyReLU(0.2),
    "nn.ELU": lambda: nn.ELU(alpha=1.5),
    "nn.GELU": nn.GELU,
    "nn.Softplus": lambda: nn.Softplus(beta=2),
    "nn.Threshold": lambda: nn.Threshold(0.1, 0.0),
    "nn.Hardswish in place": lambda: nn.Hardswish(inplace=True),
    "functional.gelu": function(lambda x: functional.gelu(x, approximate="tanh")),
    "functional.dropout": function(lambda x: functional.dropout(x, training=False)),
    "sine": function(torch.sin),
    "twice": lambda: nn.Sequential(nn.Tanh(), nn.ReLU()),
    "of keyword": function(lambda x: functional.relu(input=x)),
}
OTHERS = {
    "nn.PReLU": nn.PReLU,
    "nn.Softmax over rows": lambda: nn.Softmax(dim=0),
    "sum of two": function(lambda x: torch.relu(x) + torch.tanh(x)),
}


@pytest.mark.parametrize("name", [*SPELLINGS, *ELEMENTWISE, *OTHERS, "before the first layer"])
def test_activations(name):
    """Elementwise ones are matrix products, however they are written, and all are right."""
    if name == "before the first layer":
        module = nn.Sequential(nn.Softplus(), *mlp())
    else:
        module = mlp(activation=(SPELLINGS | ELEMENTWISE | OTHERS)[name])
    module, inputs = module.double().eval().requires_grad_(False), (normal(9, 4),)
    executor = chosen(module, LOGITS, inputs)
    if name in SPELLINGS | ELEMENTWISE:
        assert executor.name == "matmul"
    weights, (shared, query, own) = models(module), rows(inputs)
    loop = LoopExecutor(module, LOGITS)
    assert_same(run(executor, weights, shared, query), run(loop, weights, shared, query))
    assert_same(run_each(executor, weights, own), run_each(loop, weights, own))


# -- some of the parameters ------------------------------------------------------------------

PARTS = {
    "biases": ["0.bias", "2.bias", "4.bias"],
    "middle weight": ["2.weight"],
    "last layer": ["4.weight", "4.bias"],
    "first bias and last weight": ["0.bias", "4.weight"],
}


@pytest.mark.parametrize("names", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU])
def test_parameters_that_are_not_searched_stay_as_given(names, activation):
    check_some(Case(lambda: mlp(activation=activation)), names)


def check_some(case, names):
    module = case.module()
    weights, (shared, query, own) = models(module, names), rows(case.inputs)
    expected = by_hand(case, weights, own)
    for executor in executors_for(case, module, names):
        assert_same(run(executor, weights, shared, query), expected)


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("attention", ["encoder.self_attn.in_proj_bias", "head.bias"]),
        ("tokens", ["embedding.weight"]),
        ("lstm", ["recurrent.weight_ih_l0", "head.weight"]),
    ],
)
def test_some_parameters_of_other_networks(key, names):
    check_some(CASES[key], names)


@pytest.mark.parametrize(
    ("key", "lora"),
    [
        ("mlp", LoRA(rank=2)),
        ("convolutional", LoRA(rank=2)),
        ("tied", LoRA(rank=2, layers="second")),
    ],
)
def test_gradients_of_low_rank_updates(key, lora):
    case = CASES[key]
    module = case.module()
    free = choose_parameters(module, lora, [])
    probe = tuple(x[:4] for x in case.inputs)
    rest = module
    if case.execution == "matmul":
        rest = split_module(module, free.names, Inputs(probe)).rest
    executor = choose_executor(rest, case.likelihood, free.weights(free.start), probe)
    assert executor.name == case.execution
    values = {
        k: (v + 0.3 * normal(N_MODELS, *v.shape, seed=i)).requires_grad_()
        for i, (k, v) in enumerate(free.start.items())
    }
    shared, query, _ = rows(case.inputs)
    found = [
        gradients(way.predict(free.weights(values), shared, query), values)
        for way in (executor, LoopExecutor(module, case.likelihood))
    ]
    for name in values:
        assert found[1][name].any()
        assert_close(found[0][name], found[1][name])


# -- any shape -------------------------------------------------------------------------------


@st.composite
def networks(draw):
    widths = draw(st.lists(st.integers(1, 7), min_size=2, max_size=5))
    activation = draw(st.sampled_from([nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.Identity]))
    ending = draw(st.sampled_from([None, nn.Tanh, nn.Sigmoid, lambda: nn.LogSoftmax(dim=-1)]))
    module = mlp(
        activation=activation,
        ending=[ending()] if ending else [],
        widths=widths,
        bias=draw(st.booleans()),
    )
    names = list(dict(module.named_parameters()))
    searched = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    sizes = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    return module.double().eval().requires_grad_(False), searched, sizes, widths


@settings(deadline=None, max_examples=25)
@given(networks(), st.booleans())
def test_any_chain_gives_what_the_loop_gives(network, classify):
    module, names, (n_models, n_shared), widths = network
    likelihood = LOGITS if classify and widths[-1] > 1 else GaussianLikelihood("mean")
    weights = models(module, names, n_models)
    shared, query = (normal(n_shared, widths[0]),), (normal(n_models, widths[0], seed=1),)
    found = run(chain_executor(module, likelihood), weights, shared, query)
    expected = run(LoopExecutor(module, likelihood), weights, shared, query)
    for a, b in zip(flat(found[0]), flat(expected[0]), strict=True):
        assert_close(a.detach(), b.detach())
    for name in names:
        if expected[1][name] is not None:
            assert_close(found[1][name], expected[1][name])


# -- one call after the other ----------------------------------------------------------------
