"""Models with rows of their own, and which layers are searched by default."""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import QUAMClassifier
from sklearn_quam._network.cut.split import split_module
from sklearn_quam._network.executors import ChainExecutor, LoopExecutor, VmapExecutor
from sklearn_quam._network.likelihood import CategoricalLikelihood, GaussianLikelihood

from ..networks import IMAGES, LABELS, SEQUENCES, TOKENS, X


def chain():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("kind", [ChainExecutor, VmapExecutor, LoopExecutor])
@pytest.mark.parametrize("searched", [None, "2.weight", "bias"])
@pytest.mark.parametrize(
    "likelihood", [CategoricalLikelihood("logits"), GaussianLikelihood("mean")]
)
def test_each_model_sees_its_own_rows(kind, searched, likelihood):
    torch.manual_seed(0)
    module = chain().double().eval()
    rows = torch.randn(4, 7, 4, dtype=torch.float64)
    weights = {
        name: p.detach() + 0.3 * torch.randn(4, *p.shape, dtype=torch.float64)
        for name, p in module.named_parameters()
        if searched is None or searched in name
    }
    rest = split_module(module, tuple(dict(module.named_parameters())), rows[0]).rest
    found = kind(rest, likelihood).predict_each(weights, (rows,))
    for number in range(4):
        one = {name: value[number] for name, value in weights.items()}
        output = torch.func.functional_call(module, one, (rows[number],))
        expected = likelihood.prediction(output)
        for part, whole in zip(expected.parts, found.parts, strict=True):
            torch.testing.assert_close(whole[number], part)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(self.layer(x).mean(dim=1))))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 8), nn.ReLU()
    ).append(nn.Linear(8, 3))


def to_the_end():
    return nn.Sequential(nn.Conv2d(2, 3, 6), nn.Flatten())


@pytest.mark.parametrize(
    ("build", "rows", "expected"),
    [
        (chain, X, {"0", "2", "4"}),
        (convolutional, IMAGES, {"4", "6"}),
        (to_the_end, IMAGES, {"0"}),
        (Recurrent, SEQUENCES, {"head"}),
        (Attention, SEQUENCES, {"first", "second"}),
        (lambda: nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(10, 3)), TOKENS, {"2"}),
    ],
)
def test_linear_layers_at_the_end_are_searched(build, rows, expected):
    torch.manual_seed(0)
    est = QUAMClassifier(build()).fit(rows, LABELS)
    assert {name.rpartition(".")[0] for name in est.parameter_names_} == expected
    assert np.isfinite(est.predict_uncertainty(rows[:3]).epistemic).all()
