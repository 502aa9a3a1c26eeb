"""Natural search as a plain loop: one sample, one target, one model after the other.

Independent of the package. Only the random start of the sample of training rows is shared.
Everything is in double precision: gradients by autograd, Kronecker factors and their inverses as
explicit matrices, models as copies of all weights.
"""

import copy
import itertools
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from ..curvature.slow_curvature import patches

GOAL = 32.0
LEAST_UNSURE = 0.01
FIRST_PARTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)


class Visit(NamedTuple):
    """A model: its log-probabilities for the sample, its cost, and the log-odds of the target."""

    log_proba: np.ndarray
    cost: float
    score: float


class Factors(NamedTuple):
    """Kronecker factors of a layer with its share of the precision, and their inverses."""

    inputs: torch.Tensor
    outputs: torch.Tensor
    inverse_inputs: torch.Tensor
    inverse_outputs: torch.Tensor


class SlowNatural:
    """Natural search in all linear and convolutional layers of a classifier.

    Parameters
    ----------
    module : torch.nn.Module
        Returns logits. Every parameter belongs to such a layer, which has a bias and runs once.
    X, y : ndarray
        Training data; only their number of classes is asked of the labels.
    n_steps, n_rows, temperature, precision
        As in the package.
    start : float
        Where the systematic sample begins.
    searched : tuple of str, default=None
        Names of the searched layers; None takes all.
    """

    def __init__(self, module, X, *, n_steps, n_rows, temperature, precision, start, searched=None):
        self.module = copy.deepcopy(module).double().eval()
        self.X = torch.as_tensor(X).double()
        self.n_steps, self.n_rows, self.start = n_steps, n_rows, start
        self.temperature, self.precision = temperature, precision
        layers = {
            name: layer
            for name, layer in self.module.named_modules()
            if isinstance(layer, (nn.Linear, nn.Conv2d))
        }
        self.layers = {name: layers[name] for name in searched or layers}
        self.given = {
            f"{name}.{part}": getattr(layer, part).detach().clone()
            for name, layer in self.layers.items()
            for part in ("weight", "bias")
        }
        self.on_training = self.log_proba(self.given, self.X).detach()
        self.seen = [self.looked_at(row) for row in self.X]
        self.factors = {name: self.factors_of(name) for name in self.layers}

    # -- the network -----------------------------------------------------------------------

    def log_proba(self, weights, rows):
        return functional_call(self.module, weights, (rows,)).log_softmax(dim=-1)

    def score(self, log_proba, target):
        """Return the log-odds of the target."""
        others = torch.cat([log_proba[:target], log_proba[target + 1 :]])
        return log_proba[target] - others.logsumexp(dim=0)

    def looked_at(self, row):
        """Return what each layer takes for a row, and the scaled gradients at its outputs."""
        calls, handles = {}, []
        for name, layer in self.layers.items():
            note = lambda _, args, out, name=name: calls.update({name: (args[0][0].detach(), out)})  # noqa: E731
            handles.append(layer.register_forward_hook(note))
        log_proba = self.module(row[None]).log_softmax(dim=-1)[0]
        for handle in handles:
            handle.remove()
        found = {}
        for name, (values, output) in calls.items():
            places = patches(self.layers[name], values)
            taken = torch.cat([places, torch.ones(len(places), 1).double()], dim=1)
            gradients = []
            for likely in log_proba:
                # The gradient of the loss of a class, as likely as the network says it is.
                (back,) = torch.autograd.grad(likely, output, retain_graph=True)
                gradients.append(likely.detach().exp().sqrt() * back[0].reshape(len(back[0]), -1).T)
            found[name] = taken, gradients
        return found

    def factors_of(self, name):
        inputs, outputs = 0.0, 0.0
        for seen in self.seen:
            taken, gradients = seen[name]
            for place in taken:
                inputs = inputs + torch.outer(place, place) / len(self.X)
            for of_class in gradients:
                for place in of_class:
                    outputs = outputs + torch.outer(place, place) / len(taken)
        ratio = (inputs.diagonal().mean() / outputs.diagonal().mean()).sqrt()
        inputs = inputs + self.precision**0.5 * ratio * torch.eye(len(inputs)).double()
        outputs = outputs + self.precision**0.5 / ratio * torch.eye(len(outputs)).double()
        return Factors(inputs, outputs, torch.linalg.inv(inputs), torch.linalg.inv(outputs))

    # -- training rows ---------------------------------------------------------------------

    def rows_for(self, row, *, drawn):
        """Return (number, count) of the training rows on which models for a sample are measured."""
        if self.n_rows >= len(self.X):
            return [(number, 1.0) for number in range(len(self.X))]
        own, strength = self.looked_at(row), np.zeros(len(self.X))
        for name, factors in self.factors.items():
            direction = factors.inverse_inputs @ own[name][0].mean(dim=0)
            kernels = [float(seen[name][0].mean(dim=0) @ direction) for seen in self.seen]
            squares = np.square(kernels)
            strength += squares / squares.mean()
        proba = self.on_training.exp().numpy()
        strength *= 1 - (proba**2).sum(axis=1) + LEAST_UNSURE
        n_drawn = self.n_rows // 4 if drawn else 0
        order = np.argsort(-strength)
        top, rest = order[: self.n_rows - n_drawn], np.sort(order[self.n_rows - n_drawn :])
        found = [(int(number), 1.0) for number in top]
        line = np.cumsum(strength[rest])
        for point in range(n_drawn):
            place = int(np.searchsorted(line, (point + self.start) / n_drawn * line[-1]))
            number = int(rest[place])
            found.append((number, line[-1] / (n_drawn * strength[number])))
        return found

    # -- a search --------------------------------------------------------------------------

    def divergences(self, weights):
        """Return KL(given || model) for each training row."""
        found = self.log_proba(weights, self.X)
        return (self.on_training.exp() * (self.on_training - found)).sum(dim=1).tolist()

    def cost(self, weights, rows):
        """Return what a model costs: its divergence on training rows, and the prior."""
        squares = sum(float((weights[name] - self.given[name]).square().sum()) for name in weights)
        divergences = self.divergences(weights)
        nats = sum(count * divergences[number] for number, count in rows)
        return nats + self.precision / 2 * squares

    def search(self, row, target, until=np.inf):
        """Return the models on the path to a target."""
        rows = self.rows_for(row, drawn=True)
        return self.walk(row, target, until, lambda weights: self.cost(weights, rows))

    def walk(self, row, target, until, cost):
        weights, visits = dict(self.given), []
        for step in range(self.n_steps + 1):
            weights = {name: w.detach().requires_grad_() for name, w in weights.items()}
            log_proba = self.log_proba(weights, row[None])[0]
            score = self.score(log_proba, target)
            nats = 0.0 if step == 0 else None
            if step % 2 == 1 or step == self.n_steps:
                nats = cost({n: w.detach() for n, w in weights.items()})
            visits.append(Visit(log_proba.detach().numpy(), nats, float(score.detach())))
            if step == self.n_steps or (nats is not None and nats > until):
                return self.with_every_cost(visits)
            gradients = torch.autograd.grad(score, list(weights.values()))
            directions, slope = {}, 0.0
            by_name = dict(zip(weights, gradients, strict=True))
            for layer, factors in self.factors.items():
                weight, bias = by_name[f"{layer}.weight"], by_name[f"{layer}.bias"]
                joint = torch.cat([weight.reshape(len(weight), -1), bias[:, None]], dim=1)
                direction = factors.inverse_outputs @ joint @ factors.inverse_inputs
                slope += float((joint * direction).sum())
                directions[f"{layer}.weight"] = direction[:, :-1].reshape(weight.shape)
                directions[f"{layer}.bias"] = direction[:, -1]
            length = max(GOAL - visits[-1].score, 0) / (self.n_steps - step) / slope
            weights = {name: w.detach() + length * directions[name] for name, w in weights.items()}
        return visits

    def with_every_cost(self, visits):
        """Return visits with the costs between those that were measured."""
        for number, visit in enumerate(visits):
            if visit.cost is None:
                roots = [visits[number + side].cost ** 0.5 for side in (-1, 1)]
                visits[number] = visit._replace(cost=np.mean(roots) ** 2)
        return visits

    # -- what paths say --------------------------------------------------------------------

    def answer_cost(self, visits):
        """Return what the target costs, interpolated where the path passes even odds."""
        if visits[0].score >= 0:
            return 0.0
        offers = []
        for before, now in itertools.pairwise(visits):
            if before.score < 0 <= now.score:
                part = -before.score / (now.score - before.score)
                root = before.cost**0.5 + part * (now.cost**0.5 - before.cost**0.5)
                offers.append(root**2)
            elif now.score >= 0:
                offers.append(now.cost)
        return min(offers, default=np.inf)

    def models(self, visits, target):
        """Return log-probabilities and weights of the models of a path."""
        start, *others = visits
        between = []
        if others and others[0].cost > self.temperature:
            first = others[0]
            for part in FIRST_PARTS:
                log_proba = start.log_proba + part * (first.log_proba - start.log_proba)
                score = float(self.score(torch.tensor(log_proba), target))
                between.append(Visit(log_proba, first.cost * part**2, score))
        ahead = [v for v in (start, *between, *others) if v.score >= start.score]
        ahead.sort(key=lambda visit: visit.score)
        found = []
        for number, visit in enumerate(ahead):
            least = min(other.cost for other in ahead[number:])
            low, high = max(number - 1, 0), min(number + 1, len(ahead) - 1)
            width = (ahead[high].score - ahead[low].score) / 2
            log_proba = visit.log_proba - np.logaddexp.reduce(visit.log_proba)
            found.append((log_proba, np.exp(-least / self.temperature) * width))
        return found

    def uncertainty(self, row):
        """Return the epistemic uncertainty of a sample, in the settings given and expected."""
        row = torch.as_tensor(row).double()
        given = self.log_proba(self.given, row[None])[0].detach().numpy()
        models = []
        for target in range(len(given)):
            visits = self.search(row, target, until=12 * self.temperature)
            models += self.models(visits, target)
        log_proba, weights = (np.array(part) for part in zip(*models, strict=True))
        weights = weights / weights.sum()
        of_given = weights @ (np.exp(given) * (given - log_proba)).sum(axis=1)
        average = np.log(weights @ np.exp(log_proba))
        of_average = weights @ (np.exp(log_proba) * (log_proba - average)).sum(axis=1)
        return of_given, of_average

    def answer_costs(self, row):
        """Return what each class costs."""
        row = torch.as_tensor(row).double()
        n_classes = self.on_training.shape[1]
        return [self.answer_cost(self.search(row, target)) for target in range(n_classes)]


class SlowHead(SlowNatural):
    """The same in a single linear layer, whose cost is known to second order for all rows."""

    def search(self, row, target, until=np.inf):
        """Return the models on the path to a target."""
        if self.n_rows >= len(self.X):
            return super().search(row, target, until)
        rows = self.rows_for(row, drawn=False)
        ((layer, factors),) = self.factors.items()

        def cost(weights):
            change = [
                weights[f"{layer}.{n}"] - self.given[f"{layer}.{n}"] for n in ("weight", "bias")
            ]
            joint = torch.cat([change[0], change[1][:, None]], dim=1).detach()
            divergences = self.divergences(weights)
            total = float((joint * (factors.outputs @ joint @ factors.inputs)).sum()) / 2
            for number, _ in rows:
                moved = joint @ self.seen[number][layer][0][0]
                proba = self.on_training[number].exp()
                variance = float(proba @ moved.square() - (proba @ moved) ** 2)
                total += divergences[number] - variance / 2
            return max(total, 0.0)

        return self.walk(row, target, until, cost)
