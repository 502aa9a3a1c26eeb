"""QUAM as a plain loop: one point, one target, one model after the other.

Independent of the package. Only random numbers are shared: the mini-batches, and the start of
low-rank factors.
"""

import copy
import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, log_softmax
from torch.nn.utils.parametrize import register_parametrization

# What "auto" stands for, of a regressor and of a classifier.
AUTO = (
    {"learning_rate": 0.02, "penalty": 0.3, "penalty_growth": 2.2, "adam_epsilon": 1e-8}
    | {"sampling": "profile"},
    {"learning_rate": "by_layer", "penalty": 6.0, "penalty_growth": 1.9, "adam_epsilon": 0.1}
    | {"sampling": "trajectory", "targets": "all"},
)


class Sample(NamedTuple):
    """A model: what it predicts at the point, its loss increase, and for how many it stands.

    The expected increase is its mean divergence from the given network on the step's mini-batch.
    """

    prediction: np.ndarray
    increase: float
    share: float = 1.0
    expected_increase: float = 0.0


class Found(NamedTuple):
    """What the searches of a point have come to, a list entry for each target."""

    visits: list
    candidates: list
    n_steps: list


class LowRank(nn.Module):
    """Adds a product of two factors to a weight."""

    def __init__(self, A, B):
        super().__init__()
        self.A, self.B = nn.Parameter(A.clone()), nn.Parameter(B.clone())

    def forward(self, weight):
        return weight + (self.B @ self.A).reshape(weight.shape)


class SlowQUAM:
    """Searches with `torch.optim` on copies of the module; measures in numpy."""

    def __init__(self, estimator, module, X, y, sample_weight=None):
        given = estimator.get_params(deep=False)
        given |= given.pop("search").get_params()
        self.options = given | {
            name: value
            for name, value in AUTO[hasattr(estimator, "classes_")].items()
            if given[name] == "auto"
        }
        self.free = estimator._fitted.models.problem.network.free
        self.batches = estimator._fitted.models.engine.steps.batches
        self.untargeted = self.options["targets"] == "untargeted"
        self.names = estimator.parameter_names_
        # Of the mean loss, as all that is measured here; the estimator's are those of all rows.
        self.temperature = estimator.temperature_ / len(X)
        self.slack = self.options["slack"] / len(X)
        self.module = copy.deepcopy(module).eval()
        self.dtype = next(module.parameters()).dtype
        self.classes = getattr(estimator, "classes_", None)
        self.X = torch.as_tensor(X).to(self.dtype)
        # Steps until all rows have been seen, or the schedule changes.
        n_batches = math.ceil(len(X) / self.options["batch_size"])
        self.window = min(self.options["penalty_every"], n_batches)
        if self.classes is None:
            self.y = torch.as_tensor(y).to(self.dtype).reshape(len(X), -1)
        else:
            self.y = torch.as_tensor(np.searchsorted(self.classes, y))
        weight = np.ones(len(X)) if sample_weight is None else sample_weight / sample_weight.mean()
        self.weight = torch.as_tensor(weight, dtype=self.dtype)
        self.noise = None
        self.found = {}
        with torch.no_grad():
            output = self.module(self.X)
            if self.classes is None and not isinstance(output, tuple):
                squares = (output.reshape(self.y.shape) - self.y).double() ** 2
                self.noise = (squares * torch.as_tensor(weight)[:, None]).mean(0).to(self.dtype)
            self.given_losses = self.losses(self.predict(self.module, self.X), self.y)

    def predict(self, module, rows):
        """Return log-probabilities, or means and variances side by side."""
        output = module(rows)
        if self.classes is not None:
            if output.shape[1] == 1:
                output = torch.cat([torch.zeros_like(output), output], dim=1)
            return log_softmax(output, dim=1)
        if isinstance(output, tuple):
            return torch.cat(output, dim=1)
        mean = output.reshape(len(rows), -1)
        return torch.cat([mean, self.noise.expand_as(mean)], dim=1)

    def losses(self, prediction, y):
        if self.classes is not None:
            return cross_entropy(prediction, y, reduction="none")
        mean, variance = prediction.chunk(2, dim=1)
        return -Normal(mean, variance.sqrt()).log_prob(y).sum(dim=1)

    def targets_of(self, given):
        """Return the targets of a point as functions of a prediction, to be minimised."""
        if self.untargeted:
            return [lambda p: -self.divergence(given, p)]
        if self.classes is None:
            n_outputs = given.shape[1] // 2
            scale = given[0, n_outputs:].sqrt()
            return [
                lambda p, k=k, sign=sign: -sign * (p[0, k] - given[0, k]) / scale[k]
                for k in range(n_outputs)
                for sign in (1, -1)
            ]
        chosen = range(given.shape[1])
        if self.options["targets"] != "all":
            chosen = given[0].argsort(descending=True)[: self.options["targets"]].tolist()
        return [lambda p, c=c: -p[0, c] for c in chosen]

    def copy_of_module(self):
        """Return a module and those of its parameters that are to be searched."""
        module = copy.deepcopy(self.module).requires_grad_(False)
        factors = self.free.start
        free = []
        for name in self.names:
            if self.free.updates:
                layer, _, weight = name.rpartition(".")
                change = LowRank(factors[f"{name}.A"], factors[f"{name}.B"])
                register_parametrization(module.get_submodule(layer), weight, change)
                free += [change.A, change.B]
            else:
                free.append(module.get_parameter(name))
        return module, [parameter.requires_grad_() for parameter in free]

    def search(self, row):
        """Return what is found for a row, which is searched once."""
        key = row.numpy().tobytes()
        if key not in self.found:
            self.found[key] = self.search_all_targets(row)
        return self.found[key]

    def search_all_targets(self, row):
        found = Found([], [], [])
        with torch.no_grad():
            given = self.predict(self.module, row)
        for target_loss in self.targets_of(given):
            visits, candidates, n_steps = self.search_target(row, given, target_loss)
            found.visits.append(visits)
            found.candidates.append(candidates)
            found.n_steps.append(n_steps)
        return found

    def search_target(self, row, given, target_loss):
        o = self.options
        module, free = self.copy_of_module()
        origin = [parameter.detach().clone() for parameter in free]
        if self.untargeted:
            self.perturb(free)
        groups = [{"params": [p]} for p in free]
        optimizer = torch.optim.Adam(
            groups, lr=1.0, eps=o["adam_epsilon"], weight_decay=o["weight_decay"]
        )
        increases = []
        rates = self.rates(free)
        visits, candidates = [], []
        position, still_before = self.position(given, given), False
        for step in range(o["n_steps"] + 1):
            index = self.batches[step]
            stage = step // o["penalty_every"]
            at_row = self.predict(module, row)
            losses = self.losses(self.predict(module, self.X[index]), self.y[index])
            loss = (losses * self.weight[index]).mean()
            reference = (self.given_losses[index] * self.weight[index]).mean()
            increases.append(float(loss.detach() - reference))
            # The mean over the last steps; the start itself counts as long as it is alone.
            moved = increases[1:] or increases
            increase = float(np.mean(moved[-self.window :]))
            expected = 0.0 if self.classes is not None else self.expected_increase(module, index)
            at_point = at_row.detach()[0].double().numpy()
            visits.append(Sample(at_point, increase, expected_increase=expected))
            boundary = step > 0 and step % o["penalty_every"] == 0
            if boundary or step == o["n_steps"]:
                candidates.append(self.candidate(module, row))
            if boundary:
                new = self.position(at_row.detach(), given)
                still = float((new - position).abs().max()) < o["tol"] and increase <= self.slack
                if still and still_before:
                    break
                position, still_before = new, still
            if step == o["n_steps"]:
                break
            objective = target_loss(at_row) + o["penalty"] * o["penalty_growth"] ** stage * loss
            optimizer.zero_grad()
            objective.backward()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate / o["learning_rate_decay"] ** stage
            optimizer.step()
            self.bound(free, origin)
        # A search that has ended stays where it is.
        visits += [visits[-1]] * (o["n_steps"] - step)
        return visits, candidates, step

    @torch.no_grad()
    def perturb(self, free):
        """Leave the given network a little: its divergence from itself has no gradient."""
        for seed, parameter in enumerate(free):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            scale = 1e-3 * parameter.square().mean().sqrt()
            parameter.add_(scale * noise.to(self.dtype))

    def divergence(self, given, found):
        """Return KL(given || found) of each row."""
        if self.classes is not None:
            return (given.exp() * (given - found)).sum(dim=1)
        (mean, variance), (other, other_variance) = given.chunk(2, dim=1), found.chunk(2, dim=1)
        each = kl_divergence(Normal(mean, variance.sqrt()), Normal(other, other_variance.sqrt()))
        return each.sum(dim=1)

    @torch.no_grad()
    def expected_increase(self, module, index):
        """Return how far a model is from the given network on some training rows, on average."""
        given, found = (self.predict(m, self.X[index]).double() for m in (self.module, module))
        return float((self.divergence(given, found) * self.weight[index]).mean())

    def rates(self, free):
        """Return the first learning rate of each parameter."""
        if self.options["learning_rate"] != "by_layer":
            return [self.options["learning_rate"]] * len(free)
        if len({name.partition(".")[0] for name in self.names}) == 1:
            return [0.005] * len(free)
        weights = [
            p if p.ndim > 1 else self.module.get_parameter(name.replace("bias", "weight"))
            for name, p in zip(self.names, free, strict=True)
        ]
        return [0.1 / math.sqrt(weight[0].numel()) for weight in weights]

    def bound(self, free, origin):
        largest = self.options["max_change"]
        if largest is None:
            return
        with torch.no_grad():
            changes = [now - then for now, then in zip(free, origin, strict=True)]
            size = math.sqrt(sum(float((change**2).sum()) for change in changes))
            if size > largest:
                for now, then, change in zip(free, origin, changes, strict=True):
                    now.copy_(then + change * (largest / size))

    def position(self, prediction, given):
        if self.classes is not None:
            return prediction[0].exp()
        n_outputs = given.shape[1] // 2
        return (prediction[0] - given[0])[:n_outputs] / given[0, n_outputs:].sqrt()

    def candidate(self, module, row):
        with torch.no_grad():
            change = self.losses(self.predict(module, self.X), self.y) - self.given_losses
            at_row = self.predict(module, row)[0].double().numpy()
        return Sample(at_row, float((change * self.weight).mean()))

    def samples(self, given, found):
        """Return the models that count."""
        if self.options["sampling"] == "trajectory":
            return [sample for visits in found.visits for sample in visits]
        if self.options["sampling"] == "profile":
            return [
                sample
                for number, visits in enumerate(found.visits)
                for sample in self.profile(given, visits, number, found.n_steps[number])
            ]
        chosen = [Sample(given, 0.0)] * len(found.visits)
        for candidates in found.candidates:
            fine = [s for s in candidates if s.increase <= self.slack and self.kl(given, s[0]) > 0]
            if fine:
                chosen.append(max(fine, key=lambda s: self.kl(given, s.prediction)))
        return chosen

    def profile(self, given, visits, number, n_steps):
        """Return a model for each shift: the cheapest that comes as far, moved back a part."""
        edges = [0.01 * math.sinh(b * math.asinh(1e5) / 96) for b in range(97)]
        shifts = [self.shift(given, visit.prediction, number) for visit in visits]
        found = []
        for step, (visit, shift) in enumerate(zip(visits[: n_steps + 1], shifts, strict=False)):
            if shift >= edges[1]:
                last = range(max(0, step - self.window + 1), step + 1)
                increase = sum(visits[s].expected_increase for s in last)
                found.append((increase / sum(max(shifts[s], 0) ** 2 for s in last), shift, visit))
        samples = []
        for low, high in itertools.pairwise(edges):
            far_enough = [model for model in found if model[1] >= low]
            if far_enough:
                cost, shift, visit = min(far_enough, key=lambda model: model[0])
                middle = (low + high) / 2
                moved = given + min(middle / shift, 1) * (visit.prediction - given)
                samples.append(Sample(moved, cost * middle**2, high - low))
        return samples or [Sample(given, 0.0, edges[1])]

    def shift(self, given, prediction, number):
        """Return how far the mean has moved, in standard deviations: in its direction or any."""
        mean, variance = np.split(given, 2)
        moved = (prediction[: len(mean)] - mean) / np.sqrt(variance)
        if self.untargeted:
            return np.linalg.norm(moved)
        return (1 - 2 * (number % 2)) * moved[number // 2]

    def kl(self, first, second):
        if self.classes is not None:
            return float(np.sum(np.exp(first) * (first - second)))
        (mean, variance), (other_mean, other_variance) = np.split(first, 2), np.split(second, 2)
        ratio = variance / other_variance
        return float(
            np.sum(ratio - 1 - np.log(ratio) + (mean - other_mean) ** 2 / other_variance) / 2
        )

    def uncertainty(self, X_new, **options):
        """Return aleatoric and epistemic uncertainty, effective sample sizes and steps."""
        self.options.update(options)
        rows = torch.as_tensor(X_new).to(self.dtype)
        return np.array([self.uncertainty_of(rows[i : i + 1]) for i in range(len(rows))]).T

    def uncertainty_of(self, row):
        with torch.no_grad():
            given = self.predict(self.module, row)[0].double().numpy()
        found = self.search(row)
        samples = self.samples(given, found)
        weights = np.exp([-max(s.increase, 0.0) / self.temperature for s in samples])
        weights *= [s.share for s in samples]
        weights /= weights.sum()
        predictions = np.array([s.prediction for s in samples])
        split = self.split_classes if self.classes is not None else self.split_values
        return *split(given, predictions, weights), 1 / (weights**2).sum(), sum(found.n_steps)

    def split_classes(self, given, predictions, weights):
        if self.options["setting"] == "given":
            divergence = [self.kl(given, p) for p in predictions]
            return -np.sum(np.exp(given) * given), weights @ divergence
        mean = weights @ np.exp(predictions)
        aleatoric = -weights @ (np.exp(predictions) * predictions).sum(axis=1)
        return aleatoric, -np.sum(mean * np.log(mean)) - aleatoric

    def split_values(self, given, predictions, weights):
        mean, variance = np.split(predictions, 2, axis=1)
        given_mean, given_variance = np.split(given, 2)
        if self.options["setting"] == "given":
            return given_variance.sum(), weights @ ((mean - given_mean) ** 2).sum(axis=1)
        average = weights @ mean
        return weights @ variance.sum(axis=1), weights @ ((mean - average) ** 2).sum(axis=1)
