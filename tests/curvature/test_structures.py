"""Curvatures against explicit matrices: Jacobians by autograd, patches by loops."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import jacrev
from torch.nn import functional

from sklearn_quam import LaplaceClassifier, LaplaceRegressor
from sklearn_quam._curvature.layouts import Matrices
from sklearn_quam._curvature.measure import STRUCTURES
from sklearn_quam._curvature.scores import Features, Fisher, Head
from sklearn_quam._curvature.structures import Curvature, Diagonal, Kronecker, ScoreSpread
from sklearn_quam._network.inputs.rows import Inputs
from sklearn_quam._network.likelihood import CategoricalLikelihood, GaussianLikelihood

from ..networks import (
    BINARY,
    LABELS,
    SEQUENCES,
    TWO_TARGETS,
    X64,
    X64_NEW,
    Attention,
    dense,
)
from .slow_curvature import (
    categorical_fisher,
    categorical_root,
    close,
    jacobian,
    joint_jacobian,
    kronecker,
    log_evidence,
    log_softmax,
    patches,
    score_covariance,
    seeded,
)

PRECISION = 0.7
WEIGHTS = np.random.default_rng(1).uniform(0.1, 3.0, size=len(X64))
WEIGHTS /= WEIGHTS.mean()
IMAGES64 = np.random.default_rng(2).normal(size=(12, 2, 6, 5))
SIGNALS64 = np.random.default_rng(3).normal(size=(12, 2, 9))
SEQUENCES64 = SEQUENCES.astype(np.float64)
NOISE = np.array([0.3, 0.8])
each_structure = pytest.mark.parametrize("structure", STRUCTURES)
seeds = st.integers(0, 2**32 - 1)


def covariance_of(jacobians, hessian):
    return score_covariance(jacobians, hessian, PRECISION)


def fitted(module, X, y, **options):
    """Fit the method that suits the targets, with double precision and a fixed prior."""
    method = LaplaceRegressor if y.dtype.kind == "f" else LaplaceClassifier
    weight = options.pop("sample_weight", None)
    options = {"prior_precision": PRECISION, "random_state": 0, "n_samples": 16, **options}
    if method is LaplaceRegressor and options.get("link") != "mean_log_variance":
        options["noise_variance"] = NOISE[: y[0].size]
    return method(module, **options).fit(X, y, sample_weight=weight)


# -- last layers ---------------------------------------------------------------------------


def binary_fisher(scores):
    return (torch.sigmoid(scores) * (1 - torch.sigmoid(scores)))[..., None]


def binary_loss(scores, target):
    target = target.double()[:, None]
    return functional.binary_cross_entropy_with_logits(scores, target, reduction="none")[:, 0]


def softmax_fisher(scores):
    return categorical_fisher(log_softmax(scores))


def class_loss(scores, target):
    return functional.cross_entropy(scores, target, reduction="none")


def mean_fisher(scores):
    return torch.diag_embed(torch.as_tensor(1 / NOISE).expand(len(scores), -1))


def gaussian_loss(mean, variance, target):
    parts = functional.gaussian_nll_loss(mean, target, variance, full=True, reduction="none")
    return parts.sum(dim=1)


def mean_loss(scores, target):
    return gaussian_loss(scores, torch.as_tensor(NOISE).expand_as(scores), target)


def log_variance_fisher(scores):
    halves = scores.chunk(2, dim=1)
    return torch.diag_embed(torch.cat([(-halves[1]).exp(), torch.full_like(halves[1], 0.5)], dim=1))


def log_variance_loss(scores, target):
    mean, log_variance = scores.chunk(2, dim=1)
    return gaussian_loss(mean, log_variance.exp(), target)


# what the network returns -> its outputs, layers behind the last one, targets, Fisher, losses
HEADS = {
    "logits": (3, [], LABELS, softmax_fisher, class_loss),
    "binary_logit": (1, [], BINARY, binary_fisher, binary_loss),
    "probabilities": (3, [nn.Softmax(dim=1)], LABELS, softmax_fisher, class_loss),
    "log_probabilities": (3, [nn.LogSoftmax(dim=-1)], LABELS, softmax_fisher, class_loss),
    "sigmoid": (1, [nn.Sigmoid()], BINARY, binary_fisher, binary_loss),
    "mean": (2, [], TWO_TARGETS, mean_fisher, mean_loss),
    "mean_log_variance": (4, [], TWO_TARGETS, log_variance_fisher, log_variance_loss),
}


@each_structure
@pytest.mark.parametrize("kind", HEADS)
def test_a_last_layer_has_the_curvature_of_explicit_matrices(kind, structure):
    n_out, after, y, fisher_of, loss_of = HEADS[kind]
    weight = None if kind == "sigmoid" else WEIGHTS
    module = seeded(dense, n_out, *after)
    link = "probability" if kind == "sigmoid" else kind
    est = fitted(module, X64, y, link=link, structure=structure, sample_weight=weight)
    assert isinstance(est._fitted.models.view, Head)

    scores_only, names = module[:3], ["2.weight", "2.bias"]
    features = torch.cat([module[:2](torch.tensor(X64)), torch.ones(len(X64), 1)], dim=1).detach()
    scores = scores_only(torch.tensor(X64)).detach()
    w = torch.ones(len(X64)).double() if weight is None else torch.tensor(weight)
    fisher = fisher_of(scores) * w[:, None, None]
    new = jacobian(scores_only, names, X64_NEW)
    if structure == "kron":
        # Weights in the order of the factors: the bias of an output follows its weights.
        joint = torch.cat(
            [new[..., : 8 * n_out].unflatten(2, (n_out, 8)), new[..., 8 * n_out :, None]], 3
        )
        new = joint.flatten(2)
        hessian = torch.kron(fisher.sum(dim=0), features.T @ (features * w[:, None]) / len(X64))
    else:
        old = jacobian(scores_only, names, X64)
        hessian = torch.einsum("nkp,nkl,nlq->pq", old, fisher, old)
    if structure == "diag":
        hessian = hessian.diagonal().diag()
    mean, covariance = est.score_distribution(X64_NEW)
    close(mean, scores_only(torch.tensor(X64_NEW)).detach())
    close(covariance, covariance_of(new, hessian))
    loss = (
        loss_of(scores, torch.tensor(y).to(torch.int64 if y.dtype.kind == "i" else scores)) * w
    ).sum()
    values = torch.cat([module[2].weight.flatten(), module[2].bias]).detach()
    close(est.log_marginal_likelihood_, log_evidence(loss, hessian, values, PRECISION))


def of_log_proba(logits, covariance):
    """Return the distribution of log-probabilities: equal changes of all logits are gone."""
    log_proba = log_softmax(torch.tensor(logits))
    change = torch.eye(logits.shape[1]) - log_proba.exp()[:, None]
    return log_proba, change @ torch.tensor(covariance) @ change.mT


# -- any parameters ------------------------------------------------------------------------


def images():
    # Without running statistics of their own, batch normalisation would do nothing.
    norm = nn.BatchNorm2d(3)
    norm.running_mean += torch.tensor([0.1, -0.2, 0.3])
    norm.running_var *= 0.5
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), norm, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, 3)
    )


def signals():
    return nn.Sequential(nn.Conv1d(2, 3, 2, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))


CASES = {
    "dense": (dense, X64, LABELS, "all"),
    "biases": (dense, X64, LABELS, "bias"),
    "first weight": (dense, X64, LABELS, ["0.weight"]),
    "regression": (lambda: dense(2), X64, TWO_TARGETS, "all"),
    "images": (images, IMAGES64, LABELS[:12], "all"),
    "normalisation": (images, IMAGES64, LABELS[:12], "norm"),
    "signals": (signals, SIGNALS64, LABELS[:12], "all"),
}


def scores_and_fisher(module, X, y):
    """Return what makes scores of an output, and the Fisher information of some rows."""
    scores_of = (lambda output: output) if y is TWO_TARGETS else log_softmax
    scores = scores_of(copy.deepcopy(module).eval()(torch.tensor(X)).detach())
    return scores_of, mean_fisher(scores) if y is TWO_TARGETS else categorical_fisher(scores)


@pytest.mark.parametrize("structure", ["full", "diag"])
@pytest.mark.parametrize("case", CASES)
def test_any_parameters_have_the_curvature_of_explicit_matrices(case, structure):
    build, X, y, parameters = CASES[case]
    module = seeded(build).eval()
    weight = WEIGHTS[: len(X)] / WEIGHTS[: len(X)].mean()
    est = fitted(module, X, y, parameters=parameters, structure=structure, sample_weight=weight)
    scores_of, fisher = scores_and_fisher(module, X, y)
    jacobians = jacobian(module, est.parameter_names_, X, scores_of)
    hessian = torch.einsum("n,nkp,nkl,nlq->pq", torch.tensor(weight), jacobians, fisher, jacobians)
    if structure == "diag":
        hessian = hessian.diagonal().diag()
    mean, covariance = est.score_distribution(X)
    close(mean, scores_of(module(torch.tensor(X))).detach())
    close(covariance, covariance_of(jacobians, hessian), 1e-8)
    start = dict(module.named_parameters())
    values = torch.cat([start[name].detach().flatten() for name in est.parameter_names_])
    loss = est.reference_loss_ * len(X)
    close(est.log_marginal_likelihood_, log_evidence(loss, hessian, values, PRECISION))


# Where threads wait for each other inside of a layer, while a test wants them to.
MEETING = []


def meet(*_):
    for barrier in MEETING:
        barrier.wait(60)


class Meeting(nn.Module):
    """Runs a layer twice; threads may meet in between."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.layer.register_forward_hook(meet)

    def forward(self, x):
        return self.last(self.layer(self.layer(x).tanh()).tanh()).squeeze()


SEEN_BY_LAYERS = {
    "twice": (Meeting, X64, LABELS, "all"),
    **{name: CASES[name] for name in ("dense", "biases", "first weight", "regression", "signals")},
    "images": (lambda: nn.Sequential(*(images()[i] for i in (0, 2, 3, 4))), *CASES["images"][1:]),
}


@pytest.mark.parametrize("case", SEEN_BY_LAYERS)
def test_layers_and_jacobians_show_the_same(case):
    build, X, y, parameters = SEEN_BY_LAYERS[case]
    models = fitted(seeded(build), X, y, parameters=parameters)._fitted.models
    assert models.view.layers
    for n_rows in (1, 5):
        rows = models.view.network.at_cut(Inputs((torch.tensor(X[:n_rows]),)))
        (scores, places), (expected, jacobians) = (
            view.scores_and_design(rows) for view in (models.view, replace(models.view, layers=()))
        )
        close(scores, expected)
        spreads = [models.curvature.spread(each, 1.0) for each in (places, jacobians)]
        close(*(spread.covariance() for spread in spreads))


def test_threads_do_not_see_the_layers_of_each_other(monkeypatch):
    view = fitted(seeded(Meeting), X64, LABELS, parameters="all")._fitted.models.view

    def inputs_of_layer(n_rows):
        rows = view.network.at_cut(Inputs((torch.tensor(X64[:n_rows]),)))
        return view.scores_and_design(rows)[1].places["layer"][0]

    sizes = range(2, 10)
    with ThreadPoolExecutor(4) as pool, monkeypatch.context() as patch:
        patch.setattr(f"{__name__}.MEETING", [threading.Barrier(4)])
        found = list(pool.map(inputs_of_layer, sizes))
    for n_rows, inputs in zip(sizes, found, strict=True):
        close(inputs, inputs_of_layer(n_rows))


def test_other_parameters_than_those_of_layers_are_the_diagonal_of_a_kronecker_curvature():
    module = seeded(images)
    norm = [
        fitted(module, IMAGES64, LABELS[:12], parameters="norm", structure=structure)
        for structure in ("kron", "diag")
    ]
    close(*[est.score_distribution(IMAGES64)[1] for est in norm], 1e-12)
    # The blocks of a network add up.
    conv, norm, head, whole = (
        fitted(module, IMAGES64, LABELS[:12], parameters=part).score_distribution(IMAGES64)
        for part in (["0.*"], "norm", "last_layer", "all")
    )
    close(conv[1] + norm[1] + of_log_proba(*head)[1].numpy(), whole[1])


# -- Kronecker factors ---------------------------------------------------------------------


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(dim=1)


LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), X64[:12], [nn.ReLU(inplace=True), nn.Linear(3, 3)]),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), X64[:12], [nn.Linear(3, 3)]),
    "sequence": (lambda: nn.Linear(4, 3), SEQUENCES64[:12], [nn.Tanh(), Mean(), nn.Linear(3, 3)]),
    "conv1d": (
        lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2),
        SIGNALS64,
        [nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 3)],
    ),
    "conv2d": (
        lambda: nn.Conv2d(2, 3, (2, 3), stride=(2, 1), padding=(1, 2), dilation=(2, 1)),
        IMAGES64,
        [nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(63, 3)],
    ),
    "conv2d without bias": (
        lambda: nn.Conv2d(2, 3, 3, padding=1, stride=2, bias=False),
        IMAGES64,
        [nn.Tanh(), nn.Flatten(), nn.Linear(27, 3)],
    ),
}
CASES_OF_LAYERS = [
    (kind, *part)
    for kind in LAYERS
    for part in ((True, True), (True, False), (False, True))
    if part == (True, False) or "without bias" not in kind
]


@pytest.mark.parametrize(("kind", "weight", "bias"), CASES_OF_LAYERS)
def test_kronecker_factors_are_those_of_a_slow_loop(kind, weight, bias):
    build, X, after = LAYERS[kind]
    module = seeded(lambda: nn.Sequential(build(), *copy.deepcopy(after)))
    names = ["0.weight"] * weight + ["0.bias"] * bias
    est = fitted(module, X, LABELS[:12], parameters=names)

    def scores(output):
        return log_softmax(module[1:](output.clone()[None]))[0]

    rows = []
    for row, output in zip(torch.tensor(X), module[0](torch.tensor(X)).detach(), strict=True):
        root = categorical_root(scores(output).detach())
        gradients = jacrev(scores)(output).detach()
        places = gradients.flatten(2).mT if "conv" in kind else gradients.reshape(3, -1, 3)
        rows.append((patches(module[0], row), torch.einsum("ks,kta->sta", root, places)))
    hessian = kronecker(rows, len(X), weight=weight, bias=bias)
    jacobians = joint_jacobian(module, "0", X, weight=weight, bias=bias)
    close(est.score_distribution(X)[1], covariance_of(jacobians, hessian))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


def test_a_layer_that_runs_twice_has_two_places():
    module, y = seeded(Twice), TWO_TARGETS[:12]
    est = fitted(module, X64[:12], y, parameters=["layer.*"])
    rows = []
    for row in torch.tensor(X64[:12]):
        first = module.layer(row).detach()
        second = module.layer(torch.tanh(first)).detach()
        by_second = jacrev(lambda z: module.head(torch.tanh(z)))(second)
        by_first = jacrev(lambda z: module.head(torch.tanh(module.layer(torch.tanh(z)))))(first)
        gradients = (
            torch.stack([by_first, by_second], dim=1) / torch.tensor(NOISE).sqrt()[:, None, None]
        )
        rows.append((torch.stack([row, torch.tanh(first)]), gradients.detach()))
    jacobians = joint_jacobian(module, "layer", X64_NEW, scores_of=lambda output: output)
    covariance = covariance_of(jacobians, kronecker(rows, 12))
    close(est.score_distribution(X64_NEW)[1], covariance)


@each_structure
def test_single_precision_is_as_good_as_its_rounding(structure):
    module = seeded(images)
    options = {"parameters": "all", "structure": structure}
    exact = fitted(module, IMAGES64, LABELS[:12], **options)
    single = fitted(module.float(), IMAGES64.astype(np.float32), LABELS[:12], **options)
    close(single.score_distribution(IMAGES64)[1], exact.score_distribution(IMAGES64)[1], 1e-3)
    close(single.log_marginal_likelihood_, exact.log_marginal_likelihood_, 1e-4)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_attention_has_kronecker_factors_and_a_diagonal(requires_grad):
    module = seeded(Attention).requires_grad_(requires_grad)
    est = fitted(module, SEQUENCES64, LABELS, parameters="all")
    assert np.linalg.eigvalsh(est.score_distribution(SEQUENCES64)[1]).max(axis=1).min() > 0
    # Each linear layer is a block of its own; all others are one.
    kinds = [type(block) for block in est._fitted.models.curvature.blocks]
    assert kinds == [Kronecker] * 3 + [Diagonal]


# -- properties ----------------------------------------------------------------------------


def spread_of(block, features, precision):
    return Curvature([block]).spread(Features(features), precision)


def finished(kind, layout, *parts):
    """Return a structure that some designs and their Fisher information were added to."""
    block = kind(layout)
    for design, fisher in parts:
        block.add(design, fisher)
    block.finish()
    return block


def of_weight(n_scores, width):
    return Matrices("weight", None, {"weight": torch.Size([n_scores, width])})


@st.composite
def heads(draw):
    """Return a curvature of a random last layer, and new features."""
    rng = np.random.default_rng(draw(seeds))
    n_rows, width, n_scores = draw(st.tuples(*[st.integers(1, n) for n in (9, 4, 4)]))
    scale = 10.0 ** draw(st.integers(-3, 3))
    features, new = (torch.tensor(scale * rng.normal(size=(n, width))) for n in (n_rows, 6))
    scores = torch.tensor(3 * rng.normal(size=(n_rows, n_scores)))
    fisher = Fisher(CategoricalLikelihood("logits"), scores)
    kind = draw(st.sampled_from(list(STRUCTURES.values())))
    return finished(kind, of_weight(n_scores, width), (Features(features), fisher)), new


@settings(max_examples=60, deadline=None)
@given(heads(), st.floats(1e-3, 1e3))
def test_covariances_are_valid_shrink_with_the_prior_and_know_their_row_only(head, precision):
    curvature, new = head
    spread = spread_of(curvature, new, precision)
    covariance = spread.covariance()
    size = covariance.diagonal(dim1=1, dim2=2).amax(dim=1)
    prior = new.square().sum(dim=1) / precision
    assert (torch.linalg.eigvalsh(covariance)[:, 0] >= -1e-9 * size).all()
    assert (size <= prior * (1 + 1e-9)).all()
    variance, tighter = (
        spread_of(curvature, new, p).covariance().diagonal(dim1=1, dim2=2)
        for p in (precision, 2 * precision)
    )
    assert (tighter <= variance * (1 + 1e-9) + 1e-9 * prior[:, None]).all()
    one = spread_of(curvature, new[2:3], precision).covariance()[0]
    close(one / prior[2], covariance[2] / prior[2])
    assert (curvature.eigenvalues >= 0).all()


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 4), st.sampled_from(["none", "shared", "own"]))
def test_deviations_have_the_covariance_they_promise(seed, n_scores, kind):
    rng = np.random.default_rng(seed)
    shape = {"shared": (n_scores, n_scores), "own": (5, n_scores, n_scores)}.get(kind)
    basis = None if shape is None else torch.linalg.qr(torch.tensor(rng.normal(size=shape)))[0]
    spread = ScoreSpread(basis, torch.tensor(rng.uniform(0, 3, size=(5, n_scores))))
    # Two opposite steps along each direction: numbers whose covariance is exactly one.
    steps = torch.eye(n_scores).double() * np.sqrt(n_scores)
    deviations = spread.deviations(torch.cat([steps, -steps]))
    close(deviations.mean(dim=0), torch.zeros(5, n_scores))
    close(
        torch.einsum("mni,mnj->nij", deviations, deviations) / (2 * n_scores), spread.covariance()
    )


# -- dense linear algebra ------------------------------------------------------------------

LINKS = {
    "logits": CategoricalLikelihood("logits"),
    "log_probabilities": CategoricalLikelihood("log_probabilities"),
    "probabilities": CategoricalLikelihood("probabilities"),
    "binary_logit": CategoricalLikelihood("binary_logit"),
    "mean": GaussianLikelihood("mean", torch.tensor([0.3, 0.8, 2.0, 0.1], dtype=torch.float64)),
    "mean of unknown noise": GaussianLikelihood("mean"),
    "mean_variance": GaussianLikelihood("mean_variance"),
    "mean_log_variance": GaussianLikelihood("mean_log_variance"),
}


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def same(first, second, atol=1e-10):
    torch.testing.assert_close(first, second, rtol=1e-8, atol=atol)


def fisher_of(link, n_rows, weighted):
    scores = normal(n_rows, 1 if link == "binary_logit" else 4, seed=1)
    if link == "mean_variance":
        scores = scores.abs() + 0.1
    weight = torch.linspace(0, 3, n_rows, dtype=torch.float64) if weighted else None
    return Fisher(LINKS[link], scores, weight)


@pytest.mark.parametrize("link", LINKS)
def test_sums_diagonals_and_roots_of_the_fisher_information_are_those_of_its_matrices(link):
    n_rows = 6
    fisher = fisher_of(link, n_rows, weighted=True)
    matrices, n_scores = fisher.matrices(), fisher.scores.shape[1]
    assert matrices.shape == (n_rows, n_scores, n_scores)
    same(fisher.total(), matrices.sum(dim=0))
    same(fisher.diagonal(), matrices.diagonal(dim1=1, dim2=2))
    same(fisher.root() @ fisher.root().mT, matrices)
    alone = Fisher(fisher.likelihood, fisher.scores).matrices()
    same(matrices, alone * fisher.weight[:, None, None])
