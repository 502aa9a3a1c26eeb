"""The costs of another answer on the training samples."""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import NaturalSearch, QUAMClassifier, QUAMRegressor
from sklearn_quam._search.natural import arguments, engine

from ..networks import train

_rng = np.random.default_rng(0)
X = np.concatenate([_rng.normal(size=(20, 2)) + 3 * np.array(c) for c in ((0, 0), (1, 0), (0, 1))])
Y = np.repeat([0, 1, 2], 20)
NEAR = np.array([[0.3, 0.1]])


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    return train(layers, X, Y, n_epochs=60)


def losses(model, weights=None):
    """Return the losses of a model, by plain torch."""
    model.load_state_dict(weights or model.state_dict())
    with torch.no_grad():
        logits = model(torch.as_tensor(X))
        return nn.functional.cross_entropy(logits, torch.as_tensor(Y), reduction="none").numpy()


@pytest.mark.parametrize("search", ["natural", "linear", "penalty"])
def test_every_search_explains_another_answer(module, search):
    est = QUAMClassifier(module, search=search, random_state=0).fit(X, Y)
    between = np.array([[1.5, 0.1]])
    target = 1 - est.predict(between)[0]
    table = est.explain_rival(between, target)
    assert table.attrs["target"] == target
    assert sorted(table["row"]) == list(range(60))
    assert (np.diff(table["cost"]) <= 0).all()
    assert table["share"].clip(lower=0).sum() == pytest.approx(1)


def test_samples_of_other_classes_cost_most(module):
    search = NaturalSearch(n_steps=20, n_rows=60)
    est = QUAMClassifier(module, search=search, random_state=0).fit(X, Y)
    for target in (1, 2):
        table = est.explain_rival(NEAR, target)
        assert (Y[table["row"][:3]] != target).all()
        # The cost of the answer is that of a model before this one.
        assert table["cost"].sum() >= est.rival_costs(NEAR, refine=False)[0, target] - 1e-9


def test_costs_are_exact(monkeypatch):
    monkeypatch.setattr(arguments, "SLACK", 1e9)
    monkeypatch.setattr(engine, "_CLOSE_STEPS", 1)
    torch.manual_seed(0)
    module = train(nn.Linear(2, 3).double(), X, Y, n_epochs=60)
    # A single step leads a linear network to the goal: there is one model only.
    search = NaturalSearch(n_steps=1, n_rows=60)
    est = QUAMClassifier(module, search=search, random_state=0).fit(X, Y)
    (models,) = est.adversarial_models(NEAR)
    (model,) = [m for m in models if m["target"] == 2]
    assert model["prediction"].argmax() == 2
    other = nn.Linear(2, 3).double()
    expected = losses(other, model["state_dict"]) - losses(module)
    table = est.explain_rival(NEAR, 2)
    np.testing.assert_allclose(table["cost"], expected[table["row"]], rtol=1e-8, atol=1e-10)
    assert table["cost"].sum() == pytest.approx(60 * model["loss_increase"])


def test_the_cheapest_answer_is_explained_by_default(module):
    est = QUAMClassifier(module, random_state=0).fit(X, Y)
    costs = {target: est.explain_rival(NEAR, target)["cost"].sum() for target in (1, 2)}
    assert est.explain_rival(NEAR).attrs["target"] == min(costs, key=costs.get)


def test_what_cannot_be_explained_is_said(module):
    est = QUAMClassifier(module, random_state=0).fit(X, Y)
    with pytest.raises(ValueError, match=r"answer 0: the network gives it already.*for: 1, 2"):
        est.explain_rival(NEAR, 0)
    with pytest.raises(ValueError, match=r"target=\[1\] is no answer of the network"):
        est.explain_rival(NEAR, [1])
    with pytest.raises(ValueError, match="single row; got 2 rows"):
        est.explain_rival(X[:2])


def test_regressors_explain_directions():
    y = X[:, 0]
    torch.manual_seed(0)
    net = train(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double(), X, y, 60)
    est = QUAMRegressor(net, search=NaturalSearch(n_corrections=1), random_state=0).fit(X, y)
    for direction in ("up", "down"):
        assert est.explain_rival(NEAR, direction)["cost"].sum() > 0
