"""What a search is after, against closed forms and torch.distributions."""

import numpy as np
import pytest
import torch
from torch import distributions
from torch.nn.functional import cross_entropy

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


def classes(n_rows=5, n_classes=4, seed=0):
    return Categorical((2 * normal(n_rows, n_classes, seed=seed)).log_softmax(dim=-1))


def gaussian(n_rows=5, n_outputs=2, seed=0):
    return Gaussian(normal(n_rows, n_outputs, seed=seed), normal(n_rows, n_outputs, seed=9).exp())


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


# -- classes ---------------------------------------------------------------------------------


def test_all_classes_are_searched_for_in_every_row():
    chosen = CLASSES.choose(classes())
    assert torch.equal(chosen, torch.arange(4).repeat(5, 1))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_most_probable_classes_are_chosen_row_by_row(number):
    original, targets = classes(), ClassTargets(LABELS, number)
    chosen = targets.choose(original)
    assert chosen.shape == (5, number)
    assert targets.count == number
    for row, numbers in zip(original.log_proba.tolist(), chosen.tolist(), strict=True):
        ranked = sorted(range(4), key=lambda index: -row[index])
        assert numbers == ranked[:number]


def test_more_targets_than_classes_are_all_of_them():
    targets = ClassTargets(LABELS, 100)
    chosen = targets.choose(classes())
    assert targets.count == 4
    assert torch.equal(chosen.sort(dim=1).values, torch.arange(4).repeat(5, 1))


@pytest.mark.parametrize("limit", [None, 2])
def test_targets_of_a_row_do_not_depend_on_the_other_rows(limit):
    original, targets = classes(), ClassTargets(LABELS, limit)
    together = targets.choose(original)
    for row in range(5):
        alone = targets.choose(original[row : row + 1])
        assert torch.equal(alone[0], together[row])


def test_class_loss_is_the_cross_entropy_of_the_target():
    logits, target = normal(6, 4), torch.tensor([0, 3, 1, 1, 2, 0])
    loss = CLASSES.loss(Categorical(logits.log_softmax(-1)), classes(6), target)
    assert_close(loss, cross_entropy(logits, target, reduction="none"))


def test_gradient_of_the_class_loss_is_that_of_the_cross_entropy():
    logits, target = normal(6, 4).requires_grad_(), torch.tensor([0, 3, 1, 1, 2, 0])
    loss = CLASSES.loss(Categorical(logits.log_softmax(-1)), classes(6), target)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    one_hot = torch.nn.functional.one_hot(target, 4)
    assert_close(gradient, logits.detach().softmax(-1) - one_hot)


def test_class_loss_is_finite_where_the_target_is_all_but_impossible():
    prediction = Categorical(torch.tensor([[0.0, -300.0]]))
    loss = ClassTargets(LABELS[:2]).loss(prediction, prediction, torch.tensor([1]))
    assert loss.tolist() == [300.0]


def test_class_divergence_is_the_kl_from_the_original_prediction():
    original, found = classes(seed=0), classes(seed=1)
    p, q = (distributions.Categorical(logits=part.log_proba) for part in (original, found))
    expected = distributions.kl_divergence(p, q)
    assert_close(original.kl(found), expected)
    assert not torch.allclose(expected, distributions.kl_divergence(q, p))


def test_the_rival_is_the_most_likely_class_but_the_given_one():
    original = Categorical(torch.tensor([[0.6, 0.3, 0.1], [0.6, 0.4, 0.0], [0.1, 0.0, 0.9]]).log())
    found = Categorical(torch.tensor([[0.4, 0.25, 0.35], [0.3, 0.7, 0.0], [0.9, 0.1, 0.0]]).log())
    targets = ClassTargets(LABELS[:3])
    assert targets.rival_names(found, original).tolist() == [LABELS[2], "bee", "ant"]


def test_position_of_a_class_prediction_is_its_probabilities():
    found = classes()
    position = CLASSES.position(found, classes(seed=1))
    assert_close(position, distributions.Categorical(logits=found.log_proba).probs)


def test_targets_are_called_by_the_names_of_their_classes():
    assert [CLASSES.name(target) for target in range(4)] == LABELS.tolist()


# -- directions ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_two_directions_for_each_output(n_outputs):
    targets = DirectionTargets(n_outputs)
    chosen = targets.choose(gaussian(n_outputs=n_outputs))
    assert torch.equal(chosen, torch.arange(2 * n_outputs).repeat(5, 1))
    assert targets.count == 2 * n_outputs
    assert [targets.name(target) for target in chosen[0].tolist()] == ["up", "down"] * n_outputs


@pytest.mark.parametrize("target", [0, 1, 2, 3])
def test_direction_loss_falls_in_its_direction_only(target):
    original = gaussian()
    chosen = torch.full((5,), target)
    mean = original.mean.clone().requires_grad_()
    loss = DIRECTIONS.loss(Gaussian(mean, original.variance), original, chosen)
    assert_close(loss.detach(), torch.zeros(5).double())
    (gradient,) = torch.autograd.grad(loss.sum(), mean)
    output, sign = target // 2, 1 if target % 2 == 0 else -1
    expected = torch.zeros(5, 2, dtype=torch.float64)
    expected[:, output] = -sign / original.variance[:, output].sqrt()
    assert_close(gradient, expected)


def test_up_and_down_are_opposite():
    original, found = gaussian(), gaussian(seed=1)
    for output in (0, 1):
        up, down = (
            DIRECTIONS.loss(found, original, torch.full((5,), 2 * output + side)) for side in (0, 1)
        )
        assert up.all()
        assert_close(up, -down)
        # Up is rewarded with the shift in units of the given standard deviation.
        shift = (found.mean - original.mean)[:, output] / original.variance[:, output].sqrt()
        assert_close(up, -shift)


def test_searches_of_one_call_have_their_own_directions():
    original, found = gaussian(), gaussian(seed=1)
    target = torch.tensor([3, 0, 1, 2, 3])
    together = DIRECTIONS.loss(found, original, target)
    for row in range(5):
        alone = DIRECTIONS.loss(
            found[row : row + 1], original[row : row + 1], target[row : row + 1]
        )
        assert_close(alone[0], together[row])


def test_direction_divergence_is_the_kl_from_the_original_prediction():
    original = gaussian()
    found = Gaussian(normal(5, 2, seed=1), normal(5, 2, seed=2).exp())
    p, q = (distributions.Normal(part.mean, part.variance.sqrt()) for part in (original, found))
    assert_close(original.kl(found), distributions.kl_divergence(p, q).sum(dim=-1))


def test_the_rival_of_a_regression_is_where_its_mean_is_off_the_most():
    original = Gaussian(torch.zeros(4, 2), torch.tensor([[4.0, 1.0]]).expand(4, 2))
    mean = torch.tensor([[1.9, 0.9], [2.0, 0.0], [0.0, -1.0], [-1.0, 3.0]])
    found = Gaussian(mean, torch.full((4, 2), 100.0))
    assert DIRECTIONS.rival_names(found, original).tolist() == ["up", "up", "down", "up"]


# -- untargeted ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "make"), [(UntargetedClasses(LABELS), classes), (UntargetedOutputs(2), gaussian)]
)
def test_untargeted_loss_is_minus_the_divergence(targets, make):
    original, found = make(seed=0), make(seed=1)
    chosen = targets.choose(original)
    assert torch.equal(chosen, torch.zeros(5, 1, dtype=torch.long))
    assert targets.count == 1
    assert targets.name(0) is None
    loss = targets.loss(found, original, chosen[:, 0])
    if isinstance(original, Gaussian):
        p, q = (distributions.Normal(g.mean, g.variance.sqrt()) for g in (original, found))
        divergence = distributions.kl_divergence(p, q).sum(dim=-1)
    else:
        p, q = (distributions.Categorical(logits=c.log_proba) for c in (original, found))
        divergence = distributions.kl_divergence(p, q)
    assert_close(loss, -divergence)
    assert (loss < 0).all()


def test_an_untargeted_search_may_move_a_mean_in_any_direction():
    original, found = gaussian(seed=0), gaussian(seed=1)
    shift = UntargetedOutputs(2).shift(found, original, torch.zeros(5, dtype=torch.long))
    moved = (found.mean - original.mean) / original.variance.sqrt()
    assert_close(shift, moved.square().sum(dim=-1).sqrt())


@pytest.mark.parametrize(
    ("chosen", "kind", "count"),
    [
        (class_targets(LABELS, "all"), ClassTargets, 4),
        (class_targets(LABELS, 3), ClassTargets, 3),
        (class_targets(LABELS, "untargeted"), UntargetedClasses, 1),
        (direction_targets(2, "all"), DirectionTargets, 4),
        (direction_targets(2, "untargeted"), UntargetedOutputs, 1),
    ],
)
def test_kind_of_targets_is_what_is_asked_for(chosen, kind, count):
    assert type(chosen) is kind
    assert chosen.count == count
    assert chosen.untargeted == (kind in (UntargetedClasses, UntargetedOutputs))
