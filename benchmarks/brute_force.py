"""How far above the least cost of any model are the costs that searches find?

Small networks, fitted by scikit-learn, with a smooth prior (``alpha`` or ``C``). For some rows and
each class that the network does not give, ``rival_costs`` finds a cost. The cost of a model is the
sum of KL(given || model) over all training rows, plus tau / 2 times the squared distance of its
weights from the given ones; tau is the default prior precision. The least cost of any model is
found by SLSQP: over all weights, with log-odds of the class of at least zero. It starts at the
given weights, at the model on the path of the search and at the refined one, and the cheapest model
counts. SLSQP is local, so that the true least cost is at most this. "solved" says for how many
cases it found one. Columns: medians of the ratio of the found cost to the least one, for refined
costs also the range; the median costs; and how often a cost is more than 10 nats, the default of
``slack``, although the least cost is below.

    python -m benchmarks.brute_force
"""

import warnings
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.datasets import load_digits, make_blobs
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.func import functional_call

from sklearn_quam import LinearSearch, NaturalSearch, QUAMClassifier
from sklearn_quam._search.rivals import cheapest_rivals

from .paper.runs import options, report, run

SEARCHES = ("refined", "path", "linear")
SLACK = 10.0
N_ROWS = 5


def blobs(n_rows, n_features, n_classes):
    X, y = make_blobs(n_rows + N_ROWS, n_features, centers=n_classes, random_state=0)
    # Classes overlap.
    return StandardScaler().fit_transform(X + np.random.default_rng(0).normal(0, 2, X.shape)), y


def digits():
    X, y = load_digits(return_X_y=True)
    X, y = X[np.isin(y, [0, 1, 2, 4])], y[np.isin(y, [0, 1, 2, 4])]
    X = StandardScaler().fit_transform(PCA(8, random_state=0).fit_transform(X))
    return X[: 400 + N_ROWS], y[: 400 + N_ROWS]


def mlp(activation):
    return MLPClassifier(
        (8,), activation=activation, solver="lbfgs", alpha=0.1, max_iter=2000, random_state=0
    )


CASES = {
    "logistic regression, 2 features": (LogisticRegression(), lambda: blobs(200, 2, 2)),
    "softmax, 4 features, 3 classes": (LogisticRegression(), lambda: blobs(300, 4, 3)),
    "MLP 2-8-3, tanh": (mlp("tanh"), lambda: blobs(240, 2, 3)),
    "MLP 2-8-3, ReLU": (mlp("relu"), lambda: blobs(240, 2, 3)),
    "digits 0, 1, 2, 4, PCA: MLP 8-8-4, tanh": (mlp("tanh"), digits),
}


def as_module(net):
    """Return a scikit-learn network as a module in double precision that returns logits."""
    if isinstance(net, LogisticRegression):
        weight, bias = net.coef_, net.intercept_
        if len(weight) == 1:
            # Two classes: the log-odds are one half and minus one half of it.
            weight, bias = np.r_[-weight, weight] / 2, np.r_[-bias, bias] / 2
        weights, biases, activation = [weight.T], [bias], None
    else:
        weights, biases = net.coefs_, net.intercepts_
        activation = {"tanh": nn.Tanh(), "relu": nn.ReLU()}[net.activation]
    steps = []
    for weight, bias in zip(weights, biases, strict=True):
        layer = nn.Linear(*weight.shape, dtype=torch.float64)
        layer.weight.data, layer.bias.data = torch.tensor(weight.T), torch.tensor(bias)
        steps += [layer, activation]
    return nn.Sequential(*[step for step in steps[:-1] if step is not None])


class Brute:
    """Costs and log-odds as functions of all weights of a network."""

    def __init__(self, net, X, precision):
        self.net, self.X, self.precision = net, torch.tensor(X), precision
        self.shapes = {name: p.shape for name, p in net.named_parameters()}
        self.given = torch.cat([p.detach().flatten() for p in net.parameters()]).numpy()
        with torch.no_grad():
            self.log_proba = net(self.X).log_softmax(-1)

    def logits(self, vector, rows):
        parts = vector.split([shape.numel() for shape in self.shapes.values()])
        weights = {n: p.view(s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}
        return functional_call(self.net, weights, (rows,))

    def cost(self, vector):
        change = self.log_proba - self.logits(vector, self.X).log_softmax(-1)
        distance = (vector - torch.tensor(self.given)).square().sum()
        return (self.log_proba.exp() * change).sum() + self.precision / 2 * distance

    def log_odds(self, vector, row, target):
        logits = self.logits(vector, row)[0]
        others = torch.cat([logits[:target], logits[target + 1 :]])
        return logits[target] - others.logsumexp(0)

    def least(self, row, target, starts):
        """Return the least cost of a model that gives the answer; None if none was found."""
        row = torch.tensor(row)[None]

        def with_gradient(function, vector):
            tensor = torch.tensor(vector, requires_grad=True)
            value = function(tensor)
            return value.item(), torch.autograd.grad(value, tensor)[0].numpy()

        def odds(vector):
            return self.log_odds(vector, row, target)

        constraint = {
            "type": "ineq",
            "fun": lambda v: with_gradient(odds, v)[0],
            "jac": lambda v: with_gradient(odds, v)[1],
        }
        found = []
        for start in starts:
            with warnings.catch_warnings():
                # SLSQP tries weights that overflow on its way.
                warnings.simplefilter("ignore", RuntimeWarning)
                result = minimize(
                    lambda v: with_gradient(self.cost, v),
                    start,
                    jac=True,
                    method="SLSQP",
                    constraints=[constraint],
                    options={"maxiter": 1000, "ftol": 1e-9},
                )
            if np.isfinite(result.fun) and constraint["fun"](result.x) > -1e-6:
                found.append(result.fun)
        return min(found, default=None)

    def start_of(self, model, row, target):
        """Return the weights on the straight line to a model where the answer is given first."""
        end = torch.cat([model["state_dict"][name].flatten() for name in self.shapes]).numpy()
        row = torch.tensor(row)[None]
        for share in np.linspace(0, 1, 21):
            vector = self.given + share * (end - self.given)
            if self.log_odds(torch.tensor(vector), row, target) >= 0:
                return vector
        return None


def refined_models(est, rows):
    """Return the refined weights for each row and class."""
    inputs, fitted = est._check_inputs(rows), est._fitted
    limits = est._question(inputs).limits
    found = {}
    parts = cheapest_rivals(fitted.models, inputs[:], fitted.predict(inputs)[0], limits)
    for some, targets, _, models in parts:
        every = zip(targets.tolist(), models.unflatten(0, targets.shape), strict=True)
        for number, (of_row, rivals) in enumerate(every, some.start):
            found |= {(number, t): m.numpy() for t, m in zip(of_row, rivals, strict=True)}
    return found


def without_slack(est):
    """Let an estimator show models whatever they cost."""
    models = est._fitted.models
    models = replace(models, engine=replace(models.engine, slack=1e6))
    est._fitted = replace(est._fitted, models=models)
    return est


def judge(case):
    net, make = CASES[case]
    X, y = make()
    train, rows = X[:-N_ROWS], X[-N_ROWS:]
    y = np.unique(y, return_inverse=True)[1][:-N_ROWS]
    module = as_module(net.fit(train, y))
    cheap = QUAMClassifier(module, search=LinearSearch(), random_state=0).fit(train, y)
    way = NaturalSearch(n_rows=len(train))
    est = without_slack(QUAMClassifier(module, search=way, random_state=0).fit(train, y))
    found = {"refined": est.rival_costs(rows), "path": est.rival_costs(rows, refine=False)}
    found["linear"] = cheap.rival_costs(rows, refine=False)
    refined, on_path = refined_models(est, rows), est.adversarial_models(rows)
    brute = Brute(module, train, est._fitted.models.engine.precision)
    costs = []
    for number, target in zip(*np.nonzero(found["path"]), strict=True):
        row = rows[number]
        ends = [m for m in on_path[number] if m["target"] == target]
        starts = [brute.given, refined[number, target]]
        starts += [brute.start_of(end, row, target) for end in ends]
        least = brute.least(row, target, [start for start in starts if start is not None])
        costs.append({"least": least} | {k: float(v[number, target]) for k, v in found.items()})
    return costs


def summarise(case, costs):
    solved = [c for c in costs if c["least"] is not None]
    least = np.array([c["least"] for c in solved])
    row = {"network": case, "solved": f"{len(solved)} of {len(costs)}"}
    values = {name: np.array([c[name] for c in solved]) for name in SEARCHES}
    for name, cost in values.items():
        row |= {name: float(np.median(cost / least))}
        if name == "refined":
            row |= {"smallest": float((cost / least).min()), "largest": float((cost / least).max())}
    row |= {"nats": float(np.median(values["refined"])), "least nats": float(np.median(least))}
    for name in ("refined", "path"):
        wrong = int(((values[name] > SLACK) & (least <= SLACK)).sum())
        row |= {f"only {name} > 10": f"{wrong} of {len(solved)}"}
    return row


def main():
    chosen = options(__doc__)
    path = chosen.out / "brute_force.json"
    settings = {"n_rows": N_ROWS, "slack": SLACK}
    results = run(path, settings, {case: lambda case=case: judge(case) for case in CASES})
    report(path, [summarise(case, results[case]) for case in CASES])


if __name__ == "__main__":
    main()
