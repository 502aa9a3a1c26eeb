"""What `peers_on_mnist` compares: a method of the package, or of a peer, ready to be fitted.

pytorch-ood's detectors, torch-uncertainty's and probly's ensembles, torch-uncertainty's MC dropout
and laplace-torch's Kronecker-factored approximation, each with the network and the images that the
package gets.
"""

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from laplace import Laplace
from laplace.curvature import CurvlinopsGGN
from scipy.special import log_softmax
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sklearn_quam

from . import peer_packages

# Images of MNIST that Laplace approximations of all layers learn from: they take the longest.
N_FOR_ALL_LAYERS = 10_000
BATCH_SIZE = 500
# Jacobians of laplace-torch are those of all rows of a batch by each: five were the fastest.
JACOBIANS_AT_ONCE = 5


class Given(NamedTuple):
    """What both packages get."""

    networks: list
    X: np.ndarray
    y: np.ndarray
    X_new: np.ndarray
    sizes: list

    @property
    def network(self):
        return self.networks[0]

    def few(self):
        """Return less training data, of all classes."""
        return self._replace(X=self.X[:N_FOR_ALL_LAYERS], y=self.y[:N_FOR_ALL_LAYERS])

    def batches(self):
        return list(
            zip(
                torch.tensor(self.X).split(BATCH_SIZE),
                torch.tensor(self.y).split(BATCH_SIZE),
                strict=True,
            )
        )


class Side(NamedTuple):
    """One package's method: ``fit(given, seed)``, and ``score(fitted, X)``, higher is stranger."""

    fit: Any
    score: Any


# -- this package ----------------------------------------------------------------------------


def detector(kind, **arguments):
    return Side(
        lambda given, _: kind(given.network, **arguments).fit(given.X, given.y),
        lambda fitted, X: -fitted.score_samples(X),
    )


def mutual_information(kind, **arguments):
    def fit(given, seed):
        est = kind(given.network, setting="expected", random_state=seed, **arguments)
        return est.fit(given.X, given.y)

    return Side(fit, lambda est, X: est.predict_uncertainty(X).epistemic)


def network_entropy():
    return Side(
        lambda given, _: sklearn_quam.ReferenceClassifier(given.network).fit(given.X, given.y),
        lambda est, X: est.predict_uncertainty(X).total,
    )


def ensemble():
    def fit(given, _):
        est = sklearn_quam.DeepEnsembleClassifier(estimators=given.networks, setting="expected")
        return est.fit(given.X, given.y)

    return Side(fit, lambda est, X: est.predict_uncertainty(X).epistemic)


def laplace(parameters):
    def fit(given, seed):
        est = sklearn_quam.LaplaceClassifier(given.network, parameters=parameters)
        est.set_params(prior_precision=1.0, random_state=seed)
        return est.fit(given.X, given.y)

    return Side(fit, lambda est, X: probit_entropy(*est.score_distribution(X)))


def probit_entropy(mean, covariance):
    """Return the entropy of probit probabilities, without what moves all logits alike."""
    mean = mean - mean.mean(axis=1, keepdims=True)
    covariance = covariance - covariance.mean(axis=1, keepdims=True)
    covariance = covariance - covariance.mean(axis=2, keepdims=True)
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    log_proba = log_softmax(mean / np.sqrt(1 + np.pi / 8 * variance), axis=1)
    return -(np.exp(log_proba) * log_proba).sum(axis=1)


# -- peers -----------------------------------------------------------------------------------


@torch.no_grad()
def in_batches(function, X):
    found = [function(rows) for rows in torch.tensor(X).split(BATCH_SIZE)]
    return torch.cat(found).double().numpy()


class Body(nn.Module):
    """The network without its last layer; keeps what that takes."""

    def __init__(self, network):
        super().__init__()
        self.layers = nn.Sequential(
            network.first_layer, network.second_layer, network.projection
        ).eval()
        self.out = network.out

    def forward(self, x):
        self.seen = self.layers(x)
        return self.seen


def peer_detector(make, units=lambda scores, _: scores):
    """Return a detector of pytorch-ood that is made of the network; in units of the package."""

    def fit(given, _):
        made = make(given.network).to("cpu")
        if made.requires_fit:
            made.fit(given.batches())
        return made, len(given.X)

    def score(fitted, X):
        made, n_rows = fitted
        return units(in_batches(made.predict, X), n_rows)

    return Side(fit, score)


def one_thread(knn):
    knn.knn.set_params(n_jobs=1)  # otherwise all cores
    return knn


def pnml(detectors, network):
    # Its own way is to run the head on features of length one; here as the network does.
    body = Body(network)
    return detectors.PNML(body, head=lambda _: network.out(body.seen))


def probabilities(model, n_models):
    """Return what runs a model that puts the logits of all members behind each other."""

    def run_rows(rows):
        logits = model(rows).unflatten(0, (n_models, -1))
        return logits.softmax(dim=-1).swapaxes(0, 1)

    return run_rows


def torch_uncertainty(make):
    """Return a model of several members, by the mutual information of these."""
    methods, measure = peer_packages.torch_uncertainty()

    def fit(given, seed):
        torch.manual_seed(seed)
        model = make(methods, given).eval()
        return probabilities(model, model.num_estimators)

    return Side(fit, lambda run_rows, X: in_batches(lambda rows: measure(run_rows(rows)), X))


def probly_ensemble():
    representation, measures = peer_packages.probly()

    def fit(given, _):
        model = representation.Ensemble(given.network, len(given.networks))
        for member, network in zip(model.models, given.networks, strict=True):
            member.load_state_dict(network.state_dict())
        return model.eval()

    def score(model, X):
        drawn = in_batches(model.predict_representation, X)
        return measures.mutual_information(drawn, base=np.e)

    return Side(fit, score)


class Places(nn.Module):
    """A layer as a linear one, on patches, with the bias as the weight of a constant."""

    def __init__(self, layer):
        super().__init__()
        self.patch = getattr(layer, "kernel_size", None)
        weight = torch.cat([layer.weight.flatten(1), layer.bias[:, None]], dim=1).detach()
        self.linear = nn.Linear(weight.shape[1], len(weight), bias=False)
        self.linear.weight.data = weight

    def forward(self, values):
        inputs = nn.functional.unfold(values, self.patch).mT if self.patch else values
        outputs = self.linear(torch.cat([inputs, torch.ones_like(inputs[..., :1])], dim=-1))
        if self.patch is None:
            return outputs
        side = values.shape[-1] - self.patch[0] + 1
        return outputs.mT.unflatten(2, (side, side))


def without_biases(network):
    """Return a network that computes the same with linear layers that have no bias."""
    network = copy.deepcopy(network)
    layers = {name: layer for name, layer in network.named_modules() if hasattr(layer, "weight")}
    for name, layer in layers.items():
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, Places(layer))
    return network.eval()


def peer_laplace(subset, change, score):
    def fit(given, seed):
        torch.manual_seed(seed)
        approximation = Laplace(
            change(given.network),
            "classification",
            subset_of_weights=subset,
            hessian_structure="kron",
            prior_precision=1.0,
            backend=CurvlinopsGGN,
        )
        data = TensorDataset(torch.tensor(given.X), torch.tensor(given.y))
        approximation.fit(DataLoader(data, batch_size=BATCH_SIZE))
        return approximation

    at_once = JACOBIANS_AT_ONCE if subset == "all" else BATCH_SIZE
    return Side(fit, lambda fitted, X: score(fitted, torch.tensor(X).split(at_once)))


def peer_probit(approximation, batches):
    """Return the entropy of probit probabilities, of laplace-torch's mean and covariance."""
    found = [approximation._glm_predictive_distribution(rows) for rows in batches]
    mean, covariance = (
        torch.cat(part).detach().double().numpy() for part in zip(*found, strict=True)
    )
    return probit_entropy(mean, covariance)


def peer_information(n_samples):
    """Return what gives the mutual information of draws of linearised logits."""
    _, measure = peer_packages.torch_uncertainty()

    def score(approximation, batches):
        drawn = [
            approximation.predictive_samples(rows, pred_type="glm", n_samples=n_samples)
            for rows in batches
        ]
        return measure(torch.cat(drawn, dim=1).swapaxes(0, 1).detach()).double().numpy()

    return score
