"""What paths say, by hand."""

import numpy as np
import torch

from sklearn_quam._network.predictions import Categorical
from sklearn_quam._search.natural.paths import Paths, Point, weighted


def path(scores, costs):
    """Return a path of a classifier with two classes, towards the second one."""
    points = []
    for score, cost in zip(scores, costs, strict=True):
        logits = torch.tensor([[0.0, score]]).double()
        points.append(
            Point(
                Categorical(logits.log_softmax(-1)),
                torch.tensor([cost]).double(),
                torch.tensor([score]).double(),
            )
        )
    return Paths(points, torch.tensor([len(scores) - 1]), torch.tensor([False]))


def weights_of(scores, costs, temperature=10.0):
    def log_odds(prediction):
        return prediction.log_proba[:, 1] - prediction.log_proba[:, 0]

    models, log_weights = weighted(path(scores, costs), log_odds, temperature)
    assert models.log_proba.shape[:2] == log_weights.shape
    return log_weights.exp()[:, 0].numpy()


def test_a_model_weighs_what_it_costs_times_the_width_of_its_part_of_the_path():
    found = weights_of([-2.0, 0.0, 3.0], [0.0, 1.0, 5.0])
    np.testing.assert_allclose(found, [1, 2.5 * np.exp(-0.1), 1.5 * np.exp(-0.5)])


def test_a_model_that_goes_further_for_less_could_have_stopped_before():
    found = weights_of([-2.0, 0.0, 3.0], [0.0, 7.0, 5.0])
    np.testing.assert_allclose(found, [1, 2.5 * np.exp(-0.5), 1.5 * np.exp(-0.5)])


def test_a_model_behind_the_start_takes_nothing_from_the_others():
    found = weights_of([-2.0, -4.0, 0.0, 3.0], [0.0, 0.1, 1.0, 5.0])
    np.testing.assert_allclose(found, [1, 0, 2.5 * np.exp(-0.1), 1.5 * np.exp(-0.5)])


def test_models_after_the_end_of_a_search_take_nothing_from_the_others():
    found = weights_of([-2.0, 0.0, 3.0, 3.0, 3.0], [0.0, 1.0, 5.0, np.inf, np.inf])
    np.testing.assert_allclose(found, [1, 2.5 * np.exp(-0.1), 1.5 * np.exp(-0.5), 0, 0])


def test_a_path_that_leads_nowhere_has_the_given_network():
    np.testing.assert_allclose(weights_of([-2.0, -3.0], [0.0, 1.0]), [1, 0])
    np.testing.assert_allclose(weights_of([-2.0, -2.0], [0.0, np.inf]), [1, 0])
