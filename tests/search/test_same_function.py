"""The same function has the same uncertainties, however it is written."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sklearn_quam import NaturalSearch, QUAMClassifier

from ..networks import LABELS, X_NEW, X, train


class OwnParameters(nn.Module):
    """A chain of linear layers as functions of parameters that the network holds itself."""

    def __init__(self, chain):
        super().__init__()
        for number, layer in enumerate(part for part in chain if isinstance(part, nn.Linear)):
            self.register_parameter(f"w{number}", nn.Parameter(layer.weight.detach().clone()))
            self.register_parameter(f"b{number}", nn.Parameter(layer.bias.detach().clone()))

    def forward(self, x):
        x = torch.relu(functional.linear(x, self.w0, self.b0))
        x = torch.relu(functional.linear(x, self.w1, self.b1))
        return functional.linear(x, self.w2, self.b2)


class OwnLayer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x):
        return functional.linear(x, self.weight, self.bias)


class NotTraced(nn.Module):
    """A chain behind control flow: it runs by vmap or one by one."""

    def __init__(self, chain):
        super().__init__()
        self.chain = chain

    def forward(self, x):
        # A step that no chain has.
        return self.chain(torch.where(x > 1e9, 0.0, x))


def exported(chain):
    rows = torch.export.Dim("rows", min=1)
    return torch.export.export(chain, (torch.zeros(3, 4),), dynamic_shapes=({0: rows},)).module()


def own_layers(chain):
    return nn.Sequential(*(OwnLayer(p) if isinstance(p, nn.Linear) else p for p in chain))


FORMS = {
    "own parameters": OwnParameters,
    "own layers": own_layers,
    "exported": exported,
    "no chain": NotTraced,
}
# torch's own export warns of what it will do in the future.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def chain():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)
        return train(nn.Sequential(*layers), X, LABELS, 40).eval()


def fitted(module, **arguments):
    return QUAMClassifier(module, random_state=0, **arguments).fit(X, LABELS)


@pytest.mark.parametrize(
    ("form", "search"),
    [("no chain", "linear"), *((form, NaturalSearch(n_rows=20)) for form in FORMS)],
)
def test_the_same_function_has_the_same_uncertainties(form, search):
    wanted = fitted(chain(), search=search)
    found = fitted(FORMS[form](chain()), search=search)
    for setting in ("given", "expected"):
        expected, got = (
            est.set_params(setting=setting).predict_uncertainty(X_NEW) for est in (wanted, found)
        )
        np.testing.assert_allclose(got.epistemic, expected.epistemic, rtol=0.05, atol=1e-6)
    costs = [est.rival_costs(X_NEW, refine=False) for est in (wanted, found)]
    np.testing.assert_allclose(costs[1], costs[0], rtol=0.05, atol=1e-6)


def test_models_have_the_names_of_the_network():
    module = OwnParameters(chain())
    (models,) = fitted(module).adversarial_models(X_NEW[:1])
    assert any(model["feasible"] and model["divergence"] > 0 for model in models)
    rows = torch.as_tensor(X_NEW[:1])
    for model in models:
        rival = OwnParameters(chain())
        rival.load_state_dict(model["state_dict"])
        proba = rival(rows).softmax(dim=1).detach()[0]
        np.testing.assert_allclose(proba, model["prediction"], rtol=1e-4, atol=1e-6)
