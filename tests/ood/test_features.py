"""Features that were read before: the same scores, and no network runs."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from sklearn_quam import load
from sklearn_quam.exceptions import UnreadableFileError
from sklearn_quam.ood import (
    EnergyDetector,
    FDBDetector,
    MahalanobisDetector,
    NearestNeighborDetector,
    read_features,
)

from ..networks import fitted as fit_quietly
from .common import EACH, N_FEATURES, make_data, make_detector, make_module

X, Y = make_data()
X_NEW = make_data(n_samples=12, seed=1)[0]
NEEDS_HEAD = ("FDB", "NCI", "ViM", "PNML", "GradientNorm")


@pytest.fixture(params=[*EACH, "MahalanobisDetector, inputs"])
def name(request):
    return request.param


def layer_of(detector):
    return getattr(detector, "layer", "penultimate")


def test_scores_are_those_of_rows(name):
    by_rows = make_detector(name).fit(X, Y)
    layer = layer_of(by_rows)
    features, logits = read_features(make_module(), X, layer=layer)
    new = read_features(make_module(), X_NEW, layer=layer)
    expected = by_rows.score_samples(X_NEW)
    if layer in ("penultimate", "input"):
        found = make_detector(name).fit_features(features, Y, logits=logits)
        found_scores = found.score_features(new.features, logits=new.logits)
        np.testing.assert_allclose(found_scores, expected, rtol=1e-9)
        assert found.offset_ == pytest.approx(by_rows.offset_)
    found_scores = by_rows.score_features(new.features, logits=new.logits)
    np.testing.assert_allclose(found_scores, expected, rtol=1e-9)


def test_the_last_layer_makes_logits(name):
    by_rows = make_detector(name).fit(X, Y)
    if layer_of(by_rows) != "penultimate":
        pytest.skip("these features are not what the last layer takes")
    train, new = (read_features(make_module(), rows).features for rows in (X, X_NEW))
    expected = by_rows.score_samples(X_NEW)
    np.testing.assert_allclose(by_rows.score_features(new), expected, rtol=1e-4, atol=1e-6)
    alone = make_detector(name, make_module()[2]).fit_features(torch.tensor(train), Y)
    np.testing.assert_allclose(alone.score_features(new), expected, rtol=1e-4, atol=1e-6)


def test_no_network_where_none_is_needed(name, tmp_path):
    features, logits = read_features(make_module(), X)
    detector = make_detector(name).set_params(estimator=None)
    if name.startswith(NEEDS_HEAD):
        with pytest.raises(ValueError, match="needs the network's last layer"):
            detector.fit_features(features, Y, logits=logits)
        return
    detector.fit_features(features, Y, logits=logits)
    scores = detector.score_features(features, logits=logits)
    again = pickle.loads(pickle.dumps(detector))
    np.testing.assert_array_equal(again.score_features(features, logits=logits), scores)
    detector.save(tmp_path / "detector")
    again = load(tmp_path / "detector", estimator=None)
    np.testing.assert_array_equal(again.score_features(features, logits=logits), scores)


def test_rows_need_the_network_that_features_came_from(name):
    if make_detector(name).get_params().get("layer") not in (None, "penultimate"):
        pytest.skip("one of them is enough")
    features, logits = read_features(make_module(), X)
    detector = make_detector(name).fit_features(features, Y, logits=logits)
    for ask in (detector.score_samples, detector.predict):
        with pytest.raises(ValueError, match="was fitted to features"):
            ask(X)
    if hasattr(detector, "partial_fit"):
        with pytest.raises(ValueError, match="was fitted to features"):
            detector.partial_fit(X, Y)


def test_networks_of_all_kinds_are_read():
    net = fit_quietly(MLPClassifier((8,), max_iter=20, random_state=0), X, Y)
    scaled = make_pipeline(StandardScaler(), net).fit(X, Y)
    for kind in (net, scaled):
        features, logits = read_features(kind, X_NEW)
        assert features.shape == (12, 8)
        proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(proba, kind.predict_proba(X_NEW), rtol=1e-4)
        detector = FDBDetector(kind).fit_features(features, logits=logits)
        np.testing.assert_array_equal(detector.classes_, net.classes_)
        detector.score_features(features)


def test_two_classes_with_one_logit():
    labels = (Y > 0).astype(int)
    net = fit_quietly(MLPClassifier((8,), max_iter=20, random_state=0), X, labels)
    features, logits = read_features(net, X)
    expected = FDBDetector(net).fit(X, labels).score_samples(X)
    for one_logit in (logits, 2 * logits[:, 1], 2 * logits[:, 1:]):
        found = FDBDetector(net).fit_features(features, labels, logits=one_logit)
        np.testing.assert_allclose(found.score_features(features), expected, rtol=1e-5)


def test_logits_that_the_last_layer_does_not_make_are_asked_for():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = make_module()

        def forward(self, x):
            return 10 * self.layers(x)

    detector = EnergyDetector(Scaled()).fit(X, Y)
    features, logits = read_features(Scaled(), X)
    with pytest.raises(ValueError, match="needs logits, too"):
        detector.score_features(features)
    found = detector.score_features(features, logits=logits)
    np.testing.assert_allclose(found, detector.score_samples(X), rtol=1e-9)
    with pytest.raises(ValueError, match="needs the network's last layer"):
        FDBDetector(Scaled()).fit_features(features, Y, logits=logits)


def test_what_does_not_fit_is_refused(tmp_path):
    features, logits = read_features(make_module(), X)
    with pytest.raises(ValueError, match="Which layer of the network"):
        EnergyDetector(make_module()).fit_features(features, Y)
    with pytest.raises(TypeError, match="trains no network"):
        EnergyDetector(MLPClassifier()).fit_features(features, Y)
    with pytest.raises(ValueError, match="needs logits, too"):
        EnergyDetector().fit_features(features, Y)
    with pytest.raises(ValueError, match="no logits to take labels from"):
        MahalanobisDetector().fit_features(features)
    with pytest.raises(ValueError, match="inconsistent numbers"):
        EnergyDetector().fit_features(features, Y, logits=logits[:5])
    with pytest.raises(ValueError, match="60 samples, but 3 labels"):
        EnergyDetector().fit_features(features, [0, 1, 2], logits=logits)
    detector = NearestNeighborDetector().fit_features(features, Y)
    with pytest.raises(ValueError, match="There are 3 features, but 8"):
        detector.score_features(features[:, :3])
    with pytest.raises(ValueError, match="NaN"):
        detector.score_features(features * np.nan)
    by_rows = NearestNeighborDetector(make_module()).fit(X, Y)
    by_rows.save(tmp_path / "detector")
    with pytest.raises(UnreadableFileError, match="it needs a network"):
        load(tmp_path / "detector", estimator=None)


def test_absurd_features_never_look_safe(name):
    detector = make_detector(name).fit(X, Y)
    features, logits = read_features(make_module(), X[:1], layer=layer_of(detector))
    with pytest.warns(UserWarning, match="minus infinity"):
        scores = detector.score_features(1e4 * features, logits=1e4 * logits)
    assert scores == -np.inf


def test_a_head_is_a_network_of_its_own():
    """Features are the inputs of the last layer, which all methods and detectors take."""
    features = read_features(make_module(), X).features.astype(np.float32)
    head = make_module()[2]
    assert head.in_features == features.shape[1] != N_FEATURES
    found = MahalanobisDetector(head).fit(features, Y).score_samples(features)
    expected = MahalanobisDetector(head).fit_features(features, Y).score_features(features)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
