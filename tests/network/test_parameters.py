"""Which parameters a search may change, and what the module's weights become."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import LoRA
from sklearn_quam._network.cut.layers import layers_in_order
from sklearn_quam._network.parameters import choose_parameters

from ..networks import Attention, Recurrent, Residual, dense

ROWS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
SEQUENCES = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def choose(module, parameters, inputs=ROWS, seed=0):
    layers = layers_in_order(module.eval(), lambda: module(inputs))
    return choose_parameters(module, parameters, layers, seed)


def names(module, parameters, inputs=ROWS):
    return list(choose(module, parameters, inputs).names)


def random_like(start, *leading, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {k: torch.randn(*leading, *v.shape, generator=generator) for k, v in start.items()}


class Backwards(nn.Module):
    """Runs its layers from the last that was registered to the first."""

    def __init__(self):
        super().__init__()
        self.head, self.middle, self.first = nn.Linear(4, 3), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.head(torch.relu(self.middle(torch.relu(self.first(x)))))


class Normed(nn.Module):
    """Every normalisation layer there is."""

    def __init__(self):
        super().__init__()
        self.conv, self.batch = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.instance, self.group = nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4)
        self.local, self.layer = nn.LocalResponseNorm(2), nn.LayerNorm(4)
        self.rms, self.head = nn.RMSNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.local(self.group(self.instance(self.batch(self.conv(x))))).mean(dim=(2, 3))
        return self.head(self.rms(self.layer(h)))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv1d(2, 3, 2, bias=False), nn.Conv2d(2, 6, (3, 2), groups=2)
        self.three, self.head = nn.Conv3d(1, 2, 2), nn.Linear(11, 3)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x):
        parts = [self.one(x.flatten(2)), self.norm(self.two(x)), self.three(x[:, None])]
        return self.head(torch.cat([part.flatten(2).mean(dim=2) for part in parts], dim=1))


# -- selections ------------------------------------------------------------------------------


def test_all_takes_every_parameter_at_its_given_value():
    module = dense()
    free = choose(module, "all")
    assert free.names == tuple(dict(module.named_parameters()))
    assert free.size == sum(p.numel() for p in module.parameters())
    for name, start in free.start.items():
        torch.testing.assert_close(start, module.get_parameter(name).detach(), rtol=0, atol=0)
        assert not start.requires_grad
    assert free.weights(free.start) is free.start


@pytest.mark.parametrize(
    ("count", "layers"),
    [("last_layer", ["head"]), (np.int64(2), ["head", "middle"]), (3, ["head", "middle", "first"])],
)
def test_number_counts_layers_from_the_end_of_the_run(count, layers):
    expected = [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]
    assert names(Backwards(), count) == expected


def test_bias_takes_those_of_attention_and_recurrent_layers():
    attention = names(Attention(), "bias", SEQUENCES)
    assert "encoder.self_attn.in_proj_bias" in attention
    assert "encoder.self_attn.out_proj.bias" in attention
    assert all("bias" in name for name in attention)
    recurrent = names(Recurrent(nn.LSTM, batch_first=True), "bias", SEQUENCES)
    assert recurrent == ["recurrent.bias_ih_l0", "recurrent.bias_hh_l0", "head.bias"]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (["head.weight"], ["head.weight"]),
        ("head*", ["head.weight", "head.bias"]),
        ("*.weight", ["head.weight", "middle.weight", "first.weight"]),
        (["first.bias", "head.bias"], ["head.bias", "first.bias"]),
        (
            ["f*", "first.bias", "*.bias"],
            ["head.bias", "middle.bias", "first.weight", "first.bias"],
        ),
        (("mid*.weight", "[fh]*.bias"), ["head.bias", "middle.weight", "first.bias"]),
        ("bias", ["head.bias", "middle.bias", "first.bias"]),
        (lambda name, p: "middle" in name, ["middle.weight", "middle.bias"]),
    ],
)
def test_names_globs_and_predicates(parameters, expected):
    assert names(Backwards(), parameters) == expected


@pytest.mark.parametrize("alias", ["first.weight", "second.weight"])
def test_tied_weight_is_found_by_each_of_its_names(alias):
    free = choose(Residual(), [alias])
    assert free.names == ("first.weight",)
    assert free.size == 16


def to_the_end():
    return nn.Sequential(nn.Conv2d(2, 3, 6), nn.Flatten())


@pytest.mark.parametrize(
    ("build", "inputs", "expected"),
    [
        (dense, ROWS, {"0", "2"}),
        (Normed, IMAGES, {"head"}),
        (to_the_end, IMAGES, {"0"}),
        (lambda: Recurrent(nn.GRU, batch_first=True), SEQUENCES, {"head"}),
        (Attention, SEQUENCES, {"head"}),
    ],
)
def test_auto_takes_the_linear_layers_at_the_end(build, inputs, expected):
    assert {name.rpartition(".")[0] for name in names(build(), "auto", inputs)} == expected


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [4, 0, -1])
def test_more_layers_than_there_are_is_refused(parameters):
    with pytest.raises(ValueError, match=rf"parameters={parameters} asks .* has 3 layers"):
        choose(Backwards(), parameters)


@pytest.mark.parametrize(
    ("parameters", "near"),
    [("haed.weight", "'head.weight'"), ("last-layer", "last_layer"), ("zzz*", "'head.weight'")],
)
def test_unknown_name_is_refused_with_the_nearest(parameters, near):
    with pytest.raises(ValueError, match=f"is called .* the nearest are .*{near}"):
        choose(Backwards(), parameters)


@pytest.mark.parametrize("parameters", ["norm", [], lambda name, p: False])
def test_empty_selection_is_refused(parameters):
    with pytest.raises(ValueError, match="selects none"):
        choose(Backwards(), parameters)


@pytest.mark.parametrize(
    ("module", "lora", "message"),
    [
        (nn.Sequential(nn.LayerNorm(4)), "lora", "linear or convolutional"),
        (dense(), LoRA(rank=0), "rank"),
        (dense(), LoRA(layers="1"), "'1'.* nearest"),
        (Backwards(), LoRA(layers=["head", "frist"]), "nearest are .*'first'"),
        (dense(), LoRA(layers=[]), "selects none|no layer"),
    ],
    ids=["no layers", "rank 0", "no linear layer", "unknown in list", "empty"],
)
def test_low_rank_updates_that_fit_nothing_are_refused(module, lora, message):
    with pytest.raises(ValueError, match=message):
        choose(module, lora)


# -- low-rank updates ------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 5])
@pytest.mark.parametrize(
    ("make", "inputs", "layers"),
    [(Backwards, ROWS, "head middle first"), (Convolutions, IMAGES, "one two three head")],
)
def test_low_rank_search_starts_at_the_given_weights_exactly(make, inputs, layers, rank):
    module = make()
    free = choose(module, LoRA(rank=rank), inputs)
    assert set(free.names) == {f"{layer}.weight" for layer in layers.split()}
    weights = free.weights(free.start)
    assert weights.keys() == set(free.names)
    for name, weight in weights.items():
        assert torch.equal(weight, module.get_parameter(name))
    again, other = (choose(module, LoRA(rank=rank), inputs, seed).start for seed in (0, 1))
    for name, value in free.start.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value, other[name]) == name.endswith(".B")
    sizes = [(p.shape[0], math.prod(p.shape[1:])) for p in map(module.get_parameter, free.names)]
    assert free.size == sum(rank * (rows + columns) for rows, columns in sizes)


@pytest.mark.parametrize("leading", [(), (3,)], ids=["one model", "three models"])
@pytest.mark.parametrize(("rank", "alpha"), [(2, None), (2, 6.0)])
def test_low_rank_change_is_the_scaled_product_of_its_factors(rank, alpha, leading):
    module = Convolutions()
    free = choose(module, LoRA(rank=rank, alpha=alpha), IMAGES)
    values = random_like(free.start, *leading)
    for name, weight in free.weights(values).items():
        given = module.get_parameter(name).detach()
        assert weight.shape == (*leading, *given.shape)
        change = (weight - given).flatten(len(leading) + 1).double()
        scale = 1 if alpha is None else alpha / rank
        product = scale * values[f"{name}.B"] @ values[f"{name}.A"]
        torch.testing.assert_close(change, product.double(), rtol=1e-4, atol=1e-5)
        singular = torch.linalg.svdvals(change)
        assert (singular[..., rank:] < 1e-4 * singular[..., :1]).all()
        assert (singular[..., 0] > 1e-2).all()
