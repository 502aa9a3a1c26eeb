"""Targets of searches, against closed forms and torch.distributions."""

import numpy as np
import pytest
import torch
from torch import distributions

from sklearn_quam._network.predictions import Categorical, Gaussian
from sklearn_quam._search.targets import (
    ClassTargets,
    DirectionTargets,
    UntargetedClasses,
    UntargetedOutputs,
    class_targets,
    direction_targets,
)

LABELS = np.array(["ant", "bee", "cat", "dog"])
CLASSES, DIRECTIONS = ClassTargets(LABELS), DirectionTargets(2)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def classes(seed=0):
    return Categorical((2 * normal(5, 4, seed=seed)).log_softmax(dim=-1))


def gaussian(seed=0):
    return Gaussian(normal(5, 2, seed=seed), normal(5, 2, seed=seed + 9).exp())


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


def test_class_score_is_the_log_odds_with_their_gradient():
    logits, target = normal(6, 4).requires_grad_(), torch.tensor([0, 3, 1, 1, 2, 0])
    score = CLASSES.score(Categorical(logits.log_softmax(-1)), None, target)
    proba = logits.softmax(-1).gather(1, target[:, None])[:, 0]
    assert_close(score, (proba / (1 - proba)).log())
    (gradient,) = torch.autograd.grad(score.sum(), logits)
    assert_close(CLASSES.gradient(logits.detach(), target), gradient)


def test_the_rival_is_the_most_likely_other_class():
    original = Categorical(torch.tensor([[0.6, 0.3, 0.1], [0.6, 0.4, 0.0], [0.1, 0.0, 0.9]]).log())
    found = Categorical(torch.tensor([[0.4, 0.25, 0.35], [0.3, 0.7, 0.0], [0.9, 0.1, 0.0]]).log())
    targets = ClassTargets(LABELS[:3])
    assert targets.rival_names(found, original).tolist() == ["cat", "bee", "ant"]
    assert [CLASSES.name(target) for target in range(4)] == LABELS.tolist()


def test_the_rival_of_a_regression_is_the_largest_shift():
    original = Gaussian(torch.zeros(4, 2), torch.tensor([[4.0, 1.0]]).expand(4, 2))
    mean = torch.tensor([[1.9, 0.9], [2.0, 0.0], [0.0, -1.0], [-1.0, 3.0]])
    found = Gaussian(mean, torch.full((4, 2), 100.0))
    assert DIRECTIONS.rival_names(found, original).tolist() == ["up", "up", "down", "up"]


def test_untargeted_searches_move_means_in_any_direction():
    original, found, targets = gaussian(), gaussian(seed=1), UntargetedOutputs(2)
    p, q = (distributions.Normal(part.mean, part.variance.sqrt()) for part in (original, found))
    divergence = distributions.kl_divergence(p, q).sum(dim=-1)
    target = targets.choose(original)[:, 0]
    assert_close(targets.loss(found, original, target), -divergence)
    moved = (found.mean - original.mean) / original.variance.sqrt()
    assert_close(targets.score(found, original, target), moved.square().sum(dim=-1).sqrt())


def test_the_kind_of_targets_is_what_is_asked_for():
    for chosen, kind, count in (
        (class_targets(LABELS, "all"), ClassTargets, 4),
        (class_targets(LABELS, 3), ClassTargets, 3),
        (class_targets(np.arange(30), "auto"), ClassTargets, 11),
        (class_targets(LABELS, "untargeted"), UntargetedClasses, 1),
        (direction_targets(2, "all"), DirectionTargets, 4),
        (direction_targets(2, "untargeted"), UntargetedOutputs, 1),
    ):
        assert (type(chosen), chosen.count) == (kind, count)
        assert chosen.untargeted == (count == 1)
    with pytest.raises(ValueError, match="targets=3 is a number of classes"):
        direction_targets(2, 3)
