"""Curvatures and Kronecker factors as explicit matrices, slowly."""

import itertools

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn import functional


def jacobian(module, names, inputs, scores_of=lambda output: output):
    """Return the derivatives of the scores by some parameters, (n_rows, n_scores, n_values)."""
    start = dict(module.named_parameters())

    def scores(values):
        # A copy of the inputs: the first layer may write into them.
        output = functional_call(module, values, (torch.tensor(inputs),), tie_weights=False)
        return scores_of(output)

    by_name = jacrev(scores)({name: start[name].detach() for name in names})
    return torch.cat([by_name[name].flatten(2) for name in names], dim=2).detach()


def log_softmax(output):
    return torch.log_softmax(output, dim=-1)


def categorical_root(log_proba):
    """Return a root of the Fisher information, a column for each class.

    They are the gradients of the loss by the scores, times roots of the probabilities.
    """
    proba = log_proba.exp()
    gradients = proba[..., :, None] - torch.eye(proba.shape[-1]).double()
    return gradients * proba.sqrt()[..., None, :]


def categorical_fisher(log_proba):
    root = categorical_root(log_proba)
    return root @ root.mT


def score_covariance(jacobians, hessian, precision):
    inverse = torch.linalg.inv(hessian + precision * torch.eye(len(hessian)).double())
    return jacobians @ inverse @ jacobians.mT


def log_evidence(loss, hessian, values, precision):
    whole = hessian + precision * torch.eye(len(hessian)).double()
    log_det = torch.linalg.slogdet(whole)[1] - len(hessian) * np.log(precision)
    return float(-loss - 0.5 * (precision * values.square().sum() + log_det))


def close(first, second, tolerance=1e-9):
    np.testing.assert_allclose(np.asarray(first), np.asarray(second), tolerance, tolerance)


def patches(layer, values):
    """Return what each output of a layer sees of one row, (n_places, n_in), by loops."""
    if isinstance(layer, nn.Linear):
        return values.reshape(-1, values.shape[-1])
    padding = [amount for size in reversed(layer.padding) for amount in (size, size)]
    values = functional.pad(values, padding)
    spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    corners = itertools.product(
        *(
            range(0, n - span, s)
            for n, span, s in zip(values.shape[1:], spans, layer.stride, strict=True)
        )
    )
    offsets = [range(0, span + 1, d) for span, d in zip(spans, layer.dilation, strict=True)]
    return torch.stack(
        [
            torch.stack(
                [
                    values[(channel, *(c + o for c, o in zip(corner, offset, strict=True)))]
                    for channel in range(len(values))
                    for offset in itertools.product(*offsets)
                ]
            )
            for corner in corners
        ]
    )


def kronecker(parts, n_rows, *, weight=True, bias=True):
    """Return the factors of a layer out of the inputs and scaled gradients of each row."""
    first, second = 0.0, 0.0
    for inputs, gradients in parts:
        seen = [inputs] * weight + [torch.ones(len(inputs), 1).double()] * bias
        seen = torch.cat(seen, dim=1)
        for place in range(len(seen)):
            first = first + torch.outer(seen[place], seen[place]) / n_rows
            for score in range(len(gradients)):
                column = gradients[score, place]
                second = second + torch.outer(column, column) / len(seen)
    return torch.kron(second, first)


def joint_jacobian(module, layer, inputs, *, weight=True, bias=True, scores_of=log_softmax):
    """Return the derivatives of the scores by a layer's weights, each output's bias behind them."""
    n_out = len(module.get_submodule(layer).weight)
    names = [f"{layer}.weight"] * weight + [f"{layer}.bias"] * bias
    parts = [
        jacobian(module, [name], inputs, scores_of).unflatten(2, (n_out, -1)) for name in names
    ]
    return torch.cat(parts, dim=3).flatten(2)


def seeded(build, *args):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build(*args).double()
