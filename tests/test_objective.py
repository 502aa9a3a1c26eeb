"""What a search minimises, against closed forms and torch.distributions."""

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torch.nn.functional import cross_entropy

from sklearn_quam._network.likelihood import Gaussian
from sklearn_quam._search.targets import (
    ClassTargets,
    DirectionTargets,
    Schedule,
    UntargetedClasses,
    UntargetedOutputs,
    choose_targets,
)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def classes(n_rows=5, n_classes=4, seed=0):
    return (2 * normal(n_rows, n_classes, seed=seed)).log_softmax(dim=-1)


def gaussian(n_rows=5, n_outputs=2, seed=0):
    return Gaussian(normal(n_rows, n_outputs, seed=seed), normal(n_rows, n_outputs, seed=9).exp())


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


# -- schedule --------------------------------------------------------------------------------


def test_schedule_changes_by_a_factor_every_so_many_steps():
    schedule = Schedule(0.5, 2.0, 3.0, 1.5, every=4)
    for step in range(40):
        assert schedule.learning_rate_at(step) == pytest.approx(0.5 * 0.5 ** math.floor(step / 4))
        assert schedule.penalty_at(step) == pytest.approx(3.0 * 1.5 ** math.floor(step / 4))


@pytest.mark.parametrize(
    ("step", "rate", "penalty"),
    [(0, 0.5, 3.0), (3, 0.5, 3.0), (4, 0.25, 4.5), (7, 0.25, 4.5), (8, 0.125, 6.75)],
)
def test_schedule_in_numbers(step, rate, penalty):
    schedule = Schedule(0.5, 2.0, 3.0, 1.5, every=4)
    assert (schedule.learning_rate_at(step), schedule.penalty_at(step)) == (rate, penalty)


def test_factors_of_one_change_nothing():
    schedule = Schedule(0.5, 1.0, 3.0, 1.0, every=1)
    assert {schedule.learning_rate_at(step) for step in range(50)} == {0.5}
    assert {schedule.penalty_at(step) for step in range(50)} == {3.0}


def test_schedule_of_every_step():
    schedule = Schedule(1.0, 2.0, 1.0, 2.0, every=1)
    assert [schedule.penalty_at(step) for step in range(4)] == [1, 2, 4, 8]
    assert [schedule.learning_rate_at(step) for step in range(4)] == [1, 0.5, 0.25, 0.125]


# -- classes ---------------------------------------------------------------------------------


def test_all_classes_are_searched_for_in_every_row():
    chosen = ClassTargets().choose(classes(), "all")
    assert torch.equal(chosen, torch.arange(4).repeat(5, 1))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_most_probable_classes_are_chosen_row_by_row(number):
    given = classes()
    chosen = ClassTargets().choose(given, number)
    assert chosen.shape == (5, number)
    for row, targets in zip(given.tolist(), chosen.tolist(), strict=True):
        ranked = sorted(range(4), key=lambda index: -row[index])
        assert targets == ranked[:number]


def test_more_targets_than_classes_are_all_of_them():
    chosen = ClassTargets().choose(classes(), 100)
    assert torch.equal(chosen.sort(dim=1).values, torch.arange(4).repeat(5, 1))


@pytest.mark.parametrize("targets", ["all", 2])
def test_targets_of_a_row_do_not_depend_on_the_other_rows(targets):
    given = classes()
    together = ClassTargets().choose(given, targets)
    for row in range(5):
        alone = ClassTargets().choose(given[row : row + 1], targets)
        assert torch.equal(alone[0], together[row])


def test_class_loss_is_the_cross_entropy_of_the_target():
    logits, target = normal(6, 4), torch.tensor([0, 3, 1, 1, 2, 0])
    loss = ClassTargets().loss(logits.log_softmax(-1), classes(6), target)
    assert_close(loss, cross_entropy(logits, target, reduction="none"))


def test_gradient_of_the_class_loss_is_that_of_the_cross_entropy():
    logits, target = normal(6, 4).requires_grad_(), torch.tensor([0, 3, 1, 1, 2, 0])
    loss = ClassTargets().loss(logits.log_softmax(-1), classes(6), target)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    one_hot = torch.nn.functional.one_hot(target, 4)
    assert_close(gradient, logits.detach().softmax(-1) - one_hot)


def test_class_loss_is_finite_where_the_target_is_all_but_impossible():
    prediction = torch.tensor([[0.0, -300.0]])
    loss = ClassTargets().loss(prediction, prediction, torch.tensor([1]))
    assert loss.tolist() == [300.0]


def test_class_divergence_is_the_kl_from_the_given_prediction():
    given, found = classes(seed=0), classes(seed=1)
    expected = kl_divergence(Categorical(logits=given), Categorical(logits=found))
    assert_close(ClassTargets().divergence(given, found), expected)
    reverse = kl_divergence(Categorical(logits=found), Categorical(logits=given))
    assert not torch.allclose(expected, reverse)


def test_models_disagree_where_their_classes_differ():
    given = torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]]).log()
    found = torch.tensor([[0.51, 0.49], [0.3, 0.7], [0.9, 0.1]]).log()
    assert ClassTargets().disagrees(given, found).tolist() == [False, True, True]


def test_position_of_a_class_prediction_is_its_probabilities():
    found = classes()
    position = ClassTargets().position(found, classes(seed=1))
    assert_close(position, Categorical(logits=found).probs)


# -- directions ------------------------------------------------------------------------------


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_two_directions_for_each_output(n_outputs):
    chosen = DirectionTargets().choose(gaussian(n_outputs=n_outputs), "all")
    assert torch.equal(chosen, torch.arange(2 * n_outputs).repeat(5, 1))


@pytest.mark.parametrize("target", [0, 1, 2, 3])
def test_direction_loss_falls_in_its_direction_only(target):
    given = gaussian()
    chosen = torch.full((5,), target)
    mean = given.mean.clone().requires_grad_()
    loss = DirectionTargets().loss(Gaussian(mean, given.variance), given, chosen)
    assert_close(loss.detach(), torch.zeros(5).double())
    (gradient,) = torch.autograd.grad(loss.sum(), mean)
    output, sign = target // 2, 1 if target % 2 == 0 else -1
    expected = torch.zeros(5, 2, dtype=torch.float64)
    expected[:, output] = -sign / given.variance[:, output].sqrt()
    assert_close(gradient, expected)


def test_up_and_down_are_opposite():
    given, found = gaussian(), gaussian(seed=1)
    for output in (0, 1):
        up, down = (
            DirectionTargets().loss(found, given, torch.full((5,), 2 * output + side))
            for side in (0, 1)
        )
        assert up.all()
        assert_close(up, -down)
        # Up is rewarded with the shift in units of the given standard deviation.
        shift = (found.mean - given.mean)[:, output] / given.variance[:, output].sqrt()
        assert_close(up, -shift)


def test_searches_of_one_call_have_their_own_directions():
    given, found = gaussian(), gaussian(seed=1)
    target = torch.tensor([3, 0, 1, 2, 3])
    together = DirectionTargets().loss(found, given, target)
    for row in range(5):
        alone = DirectionTargets().loss(
            Gaussian(*(part[row : row + 1] for part in found)),
            Gaussian(*(part[row : row + 1] for part in given)),
            target[row : row + 1],
        )
        assert_close(alone[0], together[row])


def test_direction_divergence_is_the_kl_from_the_given_prediction():
    given = gaussian()
    found = Gaussian(normal(5, 2, seed=1), normal(5, 2, seed=2).exp())
    expected = kl_divergence(
        *(Independent(Normal(p.mean, p.variance.sqrt()), 1) for p in (given, found))
    )
    assert_close(DirectionTargets().divergence(given, found), expected)


def test_regressions_disagree_at_one_standard_deviation():
    given = Gaussian(torch.zeros(4, 2), torch.tensor([[4.0, 1.0]]).expand(4, 2))
    mean = torch.tensor([[1.9, 0.9], [2.0, 0.0], [0.0, -1.0], [-1.0, 3.0]])
    found = Gaussian(mean, torch.full((4, 2), 100.0))
    assert DirectionTargets().disagrees(given, found).tolist() == [False, True, True, True]


# -- untargeted ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "make"), [(UntargetedClasses(), classes), (UntargetedOutputs(), gaussian)]
)
def test_untargeted_loss_is_minus_the_divergence(targets, make):
    given, found = make(seed=0), make(seed=1)
    chosen = targets.choose(given, "untargeted")
    assert torch.equal(chosen, torch.zeros(5, 1, dtype=torch.long))
    loss = targets.loss(found, given, chosen[:, 0])
    assert_close(loss, -targets.divergence(given, found))
    assert (loss < 0).all()


@pytest.mark.parametrize(
    ("given", "targets", "kind"),
    [
        (classes(), "all", ClassTargets),
        (classes(), 3, ClassTargets),
        (classes(), "untargeted", UntargetedClasses),
        (gaussian(), "all", DirectionTargets),
        (gaussian(), "untargeted", UntargetedOutputs),
    ],
)
def test_kind_of_targets_follows_the_prediction(given, targets, kind):
    assert type(choose_targets(given, targets)) is kind
