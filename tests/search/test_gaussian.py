"""The closed form for the logits of a single linear layer with many classes."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp
from sklearn.linear_model import LogisticRegression

from sklearn_quam import QUAMClassifier

N_CLASSES = 70


@pytest.fixture(scope="module")
def head():
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(N_CLASSES, 6))
    y = np.repeat(np.arange(N_CLASSES), 6)
    X = centres[y] + rng.normal(size=(len(y), 6))
    net = LogisticRegression(C=0.1, max_iter=500).fit(X, y)
    return net, X, y


@pytest.fixture(scope="module")
def fitted(head):
    net, X, y = head
    return QUAMClassifier(net, random_state=0).fit(X, y)


def covariance(est, x):
    """Return logits and their covariance by dense Kronecker products."""
    engine = est._fitted.models.engine
    inputs, outputs = (
        f.double().numpy() for f in vars(engine.gaussian.inverse).values() if torch.is_tensor(f)
    )
    a = np.append(x, 1.0)
    jacobian = np.kron(np.eye(N_CLASSES), a)
    return jacobian @ np.kron(outputs, inputs) @ jacobian.T, outputs, a @ inputs @ a


def test_logits_have_the_covariance_of_the_whole_posterior(fitted, head):
    x = head[1][3]
    dense, outputs, leverage = covariance(fitted, x)
    np.testing.assert_allclose(dense, leverage * outputs, rtol=1e-6)
    draws = fitted._fitted.models.engine.gaussian.draws.double().numpy()
    # The draws are few. They are pairs around zero, of the right size.
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=1e-5)
    assert np.mean(draws**2) == pytest.approx(np.trace(outputs) / N_CLASSES, rel=0.1)


@pytest.mark.parametrize("setting", ["given", "expected"])
def test_uncertainty_is_that_of_drawn_logits(fitted, head, setting):
    net, X, _ = head
    draws = fitted._fitted.models.engine.gaussian.draws.double().numpy()
    given = net.decision_function(X[:5])
    found = fitted.set_params(setting=setting).predict_uncertainty(X[:5])
    for row in range(5):
        leverage = covariance(fitted, X[row])[2]
        log_p = log_softmax(given[row])
        models = log_softmax(given[row] + np.sqrt(fitted.temperature_ * leverage) * draws, axis=1)
        mean = logsumexp(models, axis=0) - np.log(len(models))
        if setting == "given":
            epistemic = np.mean(np.sum(np.exp(log_p) * (log_p - models), axis=1))
            aleatoric = -np.sum(np.exp(log_p) * log_p)
        else:
            epistemic = np.mean(np.sum(np.exp(models) * (models - mean), axis=1))
            aleatoric = -np.mean(np.sum(np.exp(models) * models, axis=1))
        assert found.epistemic[row] == pytest.approx(epistemic, rel=1e-4)
        assert found.aleatoric[row] == pytest.approx(aleatoric, rel=1e-4)


def test_cost_is_least_along_the_direction(fitted, head):
    net, X, _ = head
    costs = fitted.rival_costs(X[:3], refine=False)
    for row in range(3):
        logits = net.decision_function(X[row : row + 1])[0]
        _, outputs, leverage = covariance(fitted, X[row])
        for target in np.argsort(-logits)[1:4]:
            others = np.delete(np.arange(N_CLASSES), target)

            def odds(change, target=target, others=others, logits=logits):
                moved = logits + change
                return moved[target] - logsumexp(moved[others])

            # The least distance in the metric of the posterior, by a general optimiser.
            root = np.linalg.cholesky(leverage * outputs + 1e-12 * np.eye(N_CLASSES))
            best = minimize(
                lambda z: 0.5 * z @ z,
                np.zeros(N_CLASSES),
                jac=lambda z: z,
                constraints={"type": "eq", "fun": lambda z, root=root, odds=odds: odds(root @ z)},
            )
            assert costs[row, target] == pytest.approx(best.fun, rel=0.02)


def test_temperature_gives_log_odds_of_training_samples_their_variance(fitted, head):
    net, X, _ = head
    models = fitted._fitted.models
    inverse = models.engine.gaussian.inverse
    A, G = (part.double().numpy() for part in (inverse.inputs, inverse.outputs))
    features = np.column_stack([X, np.ones(len(X))])
    leverage = np.einsum("ni,ij,nj->n", features, A, features)
    contrast = np.zeros((len(X), N_CLASSES))
    every = np.arange(len(X))
    order = np.argsort(net.predict_log_proba(X), axis=1)
    contrast[every, order[:, -1]], contrast[every, order[:, -2]] = 1, -1
    variance = leverage * np.einsum("ni,ij,nj->n", contrast, G, contrast)
    variance /= np.clip(1 - leverage / len(X), 0.1, None)
    # Of an even number of samples, the lower one in the middle.
    assert fitted.temperature_ * np.sort(variance)[(len(X) - 1) // 2] == pytest.approx(12, rel=1e-4)
