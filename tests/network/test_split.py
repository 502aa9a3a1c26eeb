"""A network cut in two gives the same numbers, and its frozen part is run once."""

import copy
import functools
import inspect
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from sklearn_quam._network.cut import split as splitting
from sklearn_quam._network.cut.chain import Chained
from sklearn_quam._network.cut.replayed import Replay
from sklearn_quam._network.inputs.rows import Inputs

from ..networks import Recurrent, Tokens, module_state

PROBE_ROWS = 4


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def split_module(module, names, rows):
    return splitting.split_module(module, names, Inputs((rows,)))


def at_cut(split, rows):
    return split.at_cut(Inputs((rows,)))


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


ROWS, IMAGES, SEQUENCES = normal(12, 4), normal(12, 2, 6, 6), normal(12, 5, 4)
TOKENS = torch.arange(60).reshape(12, 5) % 9


# -- networks --------------------------------------------------------------------------------


def network(forward, **parts):
    """Return a module with these parts and this way to run them."""

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

    Network.forward = forward
    return Network()


def parameter(*shape):
    return nn.Parameter(torch.randn(*shape))


def linear(n_out=4, n_in=4):
    return nn.Linear(n_in, n_out)


def layers():
    return {"first": linear(), "middle": linear(), "head": linear(3)}


def chain():
    return network(
        lambda self, x: self.head(torch.tanh(self.middle(torch.tanh(self.first(x))))), **layers()
    )


def convolutional():
    return network(
        lambda self, x: self.head(
            self.body(x).view(x.size(0), -1)  # the number of rows is needed behind the cut
        ),
        body=nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        ),
        head=linear(3, 16),
    )


def residual():
    """Skip connections over both blocks; the second one adds in place."""

    def forward(self, x):
        h = torch.relu(self.stem(x))
        h = torch.relu(h + self.one(h))
        g = self.three(torch.relu(self.two(h)))
        g += h
        return self.head(torch.relu(g).mean(dim=(2, 3)))

    convolutions = {k: nn.Conv2d(4, 4, 3, padding=1) for k in ("one", "two", "three")}
    return network(forward, stem=nn.Conv2d(2, 4, 3), **convolutions, head=linear(3))


def branches():
    """Three values and the input cross the cut."""

    def forward(self, x):
        a, b, c = self.a(x), torch.tanh(self.b(x)), self.c(x).sigmoid()
        h = self.middle(torch.cat([a, b * c], dim=1))
        return self.head(h * a + x) - b[:, :3]

    parts = {name: linear() for name in "abc"}
    return network(forward, **parts, middle=linear(4, 8), head=linear(3))


def tied():
    """The first and the last hidden layer share their weight."""
    module = network(
        lambda self, x: self.head(self.last(torch.relu(self.middle(self.first(self.pre(x)))))),
        pre=linear(),
        last=linear(),
        **layers(),
    )
    module.last.weight = module.first.weight
    return module


def vision():
    def forward(self, x):
        h = torch.cat([self.token.expand(x.shape[0], -1, -1), self.patches(x)], dim=1)
        h = h + self.position[:, : h.size(1)]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h[:, 0]))

    return network(
        forward,
        token=parameter(1, 1, 4),
        position=parameter(1, 9, 4),
        patches=linear(),
        blocks=nn.ModuleList(
            nn.TransformerEncoderLayer(4, nhead=2, dim_feedforward=8, batch_first=True)
            for _ in range(2)
        ),
        norm=nn.LayerNorm(4),
        head=linear(3),
    )


def time_first():
    """Rows are the second axis on the way through the recurrent layers."""

    def forward(self, x):
        lower, _ = self.lower(self.first(x).transpose(0, 1))
        return self.head(self.upper(lower)[0][-1])

    recurrent = {"lower": nn.LSTM(4, 5), "upper": nn.GRU(5, 6)}
    return network(forward, first=linear(), **recurrent, head=linear(3, 6))


# -- frozen part + rest == whole -------------------------------------------------------------


@dataclass(eq=False)
class Case:
    """A network, what is searched, and the parts that are run once or for each model."""

    make: Any
    searched: str
    inputs: torch.Tensor = None
    once: str = ""
    again: str = ""

    def module(self):
        torch.manual_seed(0)
        return self.make().double().eval().requires_grad_(False)

    @functools.cache  # noqa: B019
    def split(self, rows=PROBE_ROWS):
        inputs = ROWS if self.inputs is None else self.inputs
        module, names = self.module(), tuple(self.searched.split())
        return module, names, inputs, split_module(module, names, inputs[:rows])


HEAD = "head.weight head.bias"
CASES = {
    "mlp, head": Case(chain, HEAD, None, "first middle", "head"),
    "cnn, head": Case(convolutional, HEAD, IMAGES, "body.0 body.3 body.6", "head"),
    "skip, block": Case(residual, "one.weight", IMAGES, "stem", "one two three head"),
    "branches, middle": Case(branches, "middle.weight", None, "a b c", "middle head"),
    "tied, between": Case(tied, "middle.weight", None, "pre first", "middle last head"),
    "tokens, embedding": Case(Tokens, "embedding.weight", TOKENS, "", "embedding head"),
    "lstm, head": Case(
        lambda: Recurrent(nn.LSTM, batch_first=True), HEAD, SEQUENCES, "recurrent", "head"
    ),
    "time first, upper": Case(
        time_first, "upper.bias_ih_l0", SEQUENCES, "first lower", "upper head"
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def parts(output):
    return output if isinstance(output, tuple) else (output,)


def assert_same(actual, expected):
    assert len(parts(actual)) == len(parts(expected))
    for a, b in zip(parts(actual), parts(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def moved(module, names, size=0.3):
    generator = torch.Generator().manual_seed(1)
    given = {name: module.get_parameter(name) for name in names}
    return {
        name: p + size * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        for name, p in given.items()
    }


@each_case
def test_the_two_parts_do_the_same_as_the_network(case):
    module, names, inputs, split = case.split()
    assert split.frozen is not None or split.place == "at_input"
    weights = moved(module, names)
    for n_rows in (12, 2):
        rows = inputs[:n_rows]
        values = at_cut(split, rows)
        found = functional_call(split.rest, weights, values)
        assert_same(found, functional_call(module, weights, (rows,)))
        # And back: nothing of the other weights is kept.
        assert_same(split.rest(*values), module(rows))
    # Each weight by itself, so that none is left where it was.
    values = at_cut(split, inputs)
    for name in names:
        one = {name: weights[name]}
        expected = functional_call(module, one, (inputs,))
        assert_same(functional_call(split.rest, one, values), expected)
        assert not torch.allclose(parts(expected)[0], parts(module(inputs))[0])


@each_case
def test_values_at_the_cut_depend_on_their_sample_alone(case):
    module, names, inputs, split = case.split()
    values = at_cut(split, inputs)
    assert all(len(value) == len(inputs) and not value.requires_grad for value in values)
    for rows in (slice(7, 8), [11, 3, 5]):
        assert_same(at_cut(split, inputs[rows]), tuple(value[rows] for value in values))
    other = copy.deepcopy(module)
    for name, weight in moved(module, names).items():
        other.get_parameter(name).data = weight
    # Neither do they depend on the searched weights, or on the number of probe rows.
    assert_same(at_cut(split_module(other, names, inputs[:3]), inputs), values)


@each_case
def test_frozen_part_is_run_once_and_the_network_stays_as_it_is(case):
    module, names = case.module().requires_grad_(), tuple(case.searched.split())
    inputs = (ROWS if case.inputs is None else case.inputs).clone()
    before, state, count = inputs.clone(), module_state(module), Counter()
    for name in [*case.once.split(), *case.again.split()]:
        # Copies count as well.
        hook = functools.partial(lambda name, *_: count.update([name]), name)
        module.get_submodule(name).register_forward_hook(hook)
    split = split_module(module, names, inputs[:PROBE_ROWS])
    count.clear()
    values = at_cut(split, inputs)
    assert all(count[name] == 1 for name in case.once.split())
    count.clear()
    for size in (0.1, 0.2, 0.3):
        functional_call(split.rest, moved(module, names, size), values)
    # A chain has layers of its own.
    again = [] if isinstance(split.rest, Chained) else case.again.split()
    assert count == Counter(again * 3)
    assert module_state(module) == state
    assert torch.equal(inputs, before)
    named = dict(split.rest.named_parameters(remove_duplicate=False))
    assert all(named[name] is module.get_parameter(name) for name in names)


# -- fallback --------------------------------------------------------------------------------


def depends_on_data():
    def forward(self, x):
        h = self.first(x)
        if h.sum() > 0:
            h = torch.relu(h)
        return self.head(self.middle(h))

    return network(forward, **layers())


def overwrites_behind_the_cut():
    """The searched layer sees the values before they are overwritten."""

    def forward(self, x):
        h = self.first(x)
        early = self.head(h)
        return early + functional.relu(h, inplace=True)[:, :3]

    return network(forward, **layers())


def packed_sequences():
    """The number of steps is in the data; the layers behind are found by what they get."""

    def forward(self, x):
        lengths = 1 + (x[:, 1:, 0] > 0).sum(dim=1)
        steps = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, (state, _) = self.recurrent(steps)
        return self.head(torch.relu(self.middle(state[-1])))

    return network(forward, recurrent=nn.LSTM(4, 4, batch_first=True), **layers())


def taken_at_a_position():
    """The head is run on all steps; the last one that is not empty counts."""

    def forward(self, x):
        last = (x[..., 0] > 0).long().cumsum(dim=1).argmax(dim=1).tolist()
        scores = self.head(functional.gelu(self.middle(self.first(x))))
        return scores[torch.arange(len(x)), last]

    return network(forward, **layers())


def normalised():
    def forward(self, x):
        if x.sum() > 1e9:
            return self.first(x)
        return functional.log_softmax(self.head(self.drop(torch.tanh(self.middle(x)))), dim=-1)

    return network(forward, drop=nn.Dropout(0.5), **layers())


def positive_by_chance():
    """With the given weights, nothing tells that there is a function behind the head."""

    def forward(self, x):
        h = self.first(x) if x.sum() > 1e9 else self.middle(x)
        return self.head(h).clamp(min=0)

    module = network(forward, **layers())
    nn.init.constant_(module.head.bias, 20.0)
    return module


# Of these only what goes into layers and what comes out is known.
BY_LAYERS = {
    depends_on_data: ROWS,
    packed_sequences: SEQUENCES,
    taken_at_a_position: SEQUENCES,
    normalised: ROWS,
}
# No chains: their own code runs again, with what the first layer returned.
REPLAYED = [overwrites_behind_the_cut, positive_by_chance]


@pytest.mark.parametrize(("make", "inputs"), BY_LAYERS.items())
@pytest.mark.parametrize("searched", [HEAD, "middle.weight middle.bias " + HEAD])
def test_cut_before_the_first_searched_layer(make, inputs, searched):
    module, names = make().double().eval().requires_grad_(False), tuple(searched.split())
    if "middle.weight" in names and "self.middle" not in inspect.getsource(make):
        pytest.skip("this layer is not run")
    split = split_module(module, names, inputs[:PROBE_ROWS])
    assert isinstance(split.rest, Chained)
    assert split.place == ("at_input" if make is normalised and len(names) > 2 else "inside")
    for n_rows in (12, 2, 1):
        rows = inputs[:n_rows]
        values, weights = at_cut(split, rows), moved(module, names)
        assert all(len(value) == n_rows for value in values)
        twice = rows.repeat_interleave(2, dim=0) if n_rows == 1 else rows
        expected = functional_call(module, weights, (twice,))[:n_rows]
        assert_same(functional_call(split.rest, weights, values), expected)


def test_another_way_behind_a_chain_is_an_error():
    def forward(self, x):
        h = self.first(x)
        return self.middle(h)[:, :3] if h.max() > 50 else self.head(h)

    module = network(forward, **layers()).double().eval()
    split = split_module(module, tuple(HEAD.split()), ROWS[:PROBE_ROWS])
    assert isinstance(split.rest, Chained)
    at_cut(split, ROWS)
    with pytest.raises(ValueError, match="does not run the searched layers"):
        at_cut(split, 1000 * ROWS)


def remembers():
    """A part leaves something behind that it does not return."""

    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = linear(), None

        def forward(self, x):
            self.seen = torch.tanh(self.layer(x))
            return self.seen

    def forward(self, x):
        h = self.body(x)
        seen, self.body.seen = self.body.seen, None
        return self.head(h) * self.head(seen)

    return network(forward, body=Body(), head=linear(3))


@pytest.mark.parametrize("make", [*REPLAYED, remembers])
def test_numbers_are_right_whether_or_not_it_can_be_cut(make):
    module = make().double().eval()
    names = ("head.weight", "head.bias")
    split = split_module(module, names, ROWS[:PROBE_ROWS])
    assert split.place == ("failed" if make is remembers else "inside")
    assert isinstance(split.rest, Replay) == (make is not remembers)
    assert (split.rest is module) == (make is remembers)
    weights = moved(module, names)
    for n_rows in (12, 3, 2):
        expected = functional_call(module, weights, (ROWS[:n_rows],))
        values = at_cut(split, ROWS[:n_rows])
        assert_same(functional_call(split.rest, weights, values), expected)


def test_only_the_shape_of_what_has_no_influence_is_kept():
    """The values of all blocks but the last are not needed behind it."""
    module, inputs = vision().double().eval(), SEQUENCES
    split = split_module(module, ("norm.weight",), inputs[:PROBE_ROWS])
    images, *values = at_cut(split, inputs)
    numbers = [value for value in values if value.numel()]
    assert images is not inputs
    assert len(values) == 3  # patches and two blocks
    assert [tuple(value.shape) for value in numbers] == [(12, 6, 4)]


def test_unknown_parameter_is_not_hidden_by_the_fallback():
    with pytest.raises(AttributeError):
        split_module(chain(), ("haed.weight",), ROWS[:PROBE_ROWS].float())
