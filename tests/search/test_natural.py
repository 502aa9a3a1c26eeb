"""Natural and linear search: against closed forms, against each other, and against all rows."""

import dataclasses
import itertools
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import spearmanr
from sklearn.datasets import make_blobs
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from torch import nn
from torch._subclasses import FakeTensorMode

from sklearn_quam import (
    LinearSearch,
    LoRA,
    NaturalSearch,
    PenaltySearch,
    QUAMClassifier,
    QUAMRegressor,
)
from sklearn_quam._curvature import influence
from sklearn_quam._curvature.influence import _systematic_sample, make_influence
from sklearn_quam._network.cut.chain import Chain
from sklearn_quam._network.inputs.rows import Inputs
from sklearn_quam._network.limits import short_passes
from sklearn_quam._search.natural import arguments
from sklearn_quam._search.natural.chain import ChainSteps, HeadSteps
from sklearn_quam._search.natural.general import GeneralSteps
from sklearn_quam._search.searches import Searches
from sklearn_quam.exceptions import CurvatureError

from ..networks import IMAGES, LABELS, TARGET, X_NEW, X, dense, train


def trained(n_out, y, build=dense, data=X, n_epochs=60):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return train(build(n_out).double(), data, y, n_epochs)


def blobs(n_rows):
    """Return a network, training data, and samples of known and of one unknown class."""
    rows, y = make_blobs(n_rows, 6, centers=5, center_box=(-4, 4), random_state=1)
    rows, is_known = rows.astype(np.float32), y < 4
    net = MLPClassifier((24, 24), random_state=0, max_iter=30)
    both = np.concatenate([rows[is_known][:40], rows[~is_known][:40]])
    return net.fit(rows[is_known], y[is_known]), rows[is_known], y[is_known], both


# -- closed forms ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("search", "temperature"),
    [
        (NaturalSearch(prior_precision=1e-6), 1.0),
        (LinearSearch(prior_precision=1e-6), 3.0),
        (LinearSearch(prior_precision=20.0), 1.0),
    ],
)
def test_linear_regression_has_the_posterior_variance(search, temperature):
    """Bayesian linear regression with a prior, in closed form."""
    net = LinearRegression().fit(X, TARGET)
    est = QUAMRegressor(
        net,
        search=search,
        measure="variance",
        setting="expected",
        noise_variance=0.04,
        temperature=temperature,
    ).fit(X, TARGET)
    design, rows = np.c_[X, np.ones(len(X))], np.c_[X_NEW, np.ones(len(X_NEW))]
    prior = search.prior_precision * np.eye(design.shape[1])
    inverse = np.linalg.inv(design.T @ design / 0.04 + prior)
    expected = temperature * np.einsum("ni,ij,nj->n", rows, inverse, rows)
    # Paths end at five standard deviations (of a temperature of one), and have ten steps.
    tolerance = 0.005 if temperature == 1 else 0.05
    np.testing.assert_allclose(est.predict_uncertainty(X_NEW).epistemic, expected, rtol=tolerance)
    cost = est.rival_costs(X_NEW, refine=False)
    np.testing.assert_allclose(
        cost, (0.5 * 0.04 * temperature / expected)[:, None].repeat(2, 1), rtol=1e-2
    )


# -- chains and other networks -----------------------------------------------------------------


NATURAL = NaturalSearch(n_corrections=0, n_steps=6, n_rows=60)


@pytest.mark.parametrize(
    ("kind", "n_out", "y", "parameters", "search"),
    [
        # Heads and chains of natural search are compared with a plain loop.
        (QUAMClassifier, 3, LABELS, "all", LinearSearch()),
        # The closed form of a classifier's last layer has tests of its own.
        *((QUAMRegressor, 1, TARGET, part, NATURAL) for part in ("all", "last_layer")),
        *((QUAMRegressor, 1, TARGET, part, LinearSearch()) for part in ("all", "last_layer")),
    ],
)
def test_chains_give_what_automatic_gradients_give(monkeypatch, kind, n_out, y, parameters, search):
    net = trained(n_out, y)
    found = []
    for in_chain in (True, False):
        if not in_chain:
            monkeypatch.setattr(arguments, "_inverses_of_chain", lambda *_: None)
        est = kind(net, search=search, parameters=parameters).fit(X, y)
        steps = est._fitted.models.engine.steps
        if isinstance(search, LinearSearch):
            assert (steps.inverses is not None) == in_chain
        else:
            # Paths of regressions have automatic gradients in any case.
            chained = in_chain and kind is QUAMClassifier
            of_chain = HeadSteps if parameters == "last_layer" else ChainSteps
            assert isinstance(steps, of_chain if chained else GeneralSteps)
        # Where up and down diverge equally, rounding decides which comes first.
        models = est.set_params(setting="given").adversarial_models(X_NEW[:1])[0]
        models = [m["state_dict"] for m in sorted(models, key=lambda m: m["target"])]
        found.append((est.predict_uncertainty(X_NEW), models, est.rival_costs(X_NEW, refine=False)))
    for first, second in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found[0][2], found[1][2], rtol=1e-6)
    for first, second in zip(found[0][1], found[1][1], strict=True):
        for name, value in first.items():
            torch.testing.assert_close(value, second[name], rtol=1e-6, atol=1e-8)


def convolutional(n_out):
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(48, n_out)
    )


@pytest.mark.parametrize(
    ("search", "parameters"),
    [("natural", "all"), ("linear", "all"), ("natural", "norm"), ("linear", LoRA(rank=2))],
)
def test_any_parameters_of_a_convolutional_network(parameters, search):
    net = trained(3, LABELS, convolutional, IMAGES.astype(np.float64), 10)
    rows = IMAGES[:4].astype(np.float64) * 2
    est = QUAMClassifier(net, search=search, parameters=parameters).fit(
        IMAGES.astype(np.float64), LABELS
    )
    u, diagnostics = est.predict_uncertainty(rows, return_diagnostics=True)
    assert np.isfinite(u.epistemic).all()
    assert (u.epistemic > 0).all()
    assert (diagnostics.n_diverged == 0).all()
    alone = np.concatenate([est.predict_uncertainty(row[None]).epistemic for row in rows])
    np.testing.assert_allclose(alone, u.epistemic, rtol=1e-7)


@pytest.mark.parametrize("search", ["natural", "linear"])
def test_where_no_model_is_feasible_the_given_network_is_shown(search, monkeypatch):
    monkeypatch.setattr(arguments, "SLACK", -1.0)
    rows = IMAGES.astype(np.float64)
    net = trained(3, LABELS, convolutional, rows, 2)
    est = QUAMClassifier(net, search=search, parameters="all").fit(rows, LABELS)
    for model in est.adversarial_models(rows[:1])[0]:
        assert not model["feasible"]
        assert model["divergence"] == 0
        np.testing.assert_allclose(model["prediction"], est.predict_proba(rows[:1])[0])


# -- the path and its integral ---------------------------------------------------------------


def test_the_number_of_steps_does_not_matter():
    net, rows, y, both = blobs(750)
    found = [
        QUAMClassifier(net, search=NaturalSearch(n_steps=n, n_rows=128), random_state=0)
        .fit(rows, y)
        .predict_uncertainty(both)
        .epistemic
        for n in (10, 30)
    ]
    assert spearmanr(*found).statistic > 0.98
    assert np.median(np.abs(found[0] / found[1] - 1)) < 0.15


def test_a_sample_of_the_training_rows_stands_for_all():
    net, rows, y, both = blobs(5000)
    options = {"search": NaturalSearch(n_rows=128), "random_state": 0}
    every = QUAMClassifier(net, **options).fit(rows, y)
    some = QUAMClassifier(net, **options, n_training_rows=4000).fit(rows[:1000], y[:1000])
    naive = QUAMClassifier(net, **options).fit(rows[:1000], y[:1000])
    costs = [np.log(est.rival_costs(both, refine=False).clip(1e-9)) for est in (every, some, naive)]
    searched = every.rival_costs(both, refine=False) > 0
    off = [np.median((other - costs[0])[searched]) for other in costs[1:]]
    # Without the number of rows, everything would look about four times as cheap.
    assert abs(off[0]) < 0.25
    assert off[1] < -1
    assert (
        spearmanr(*(est.predict_uncertainty(both).epistemic for est in (every, some))).statistic
        > 0.95
    )


@pytest.mark.parametrize("search", [NaturalSearch, LinearSearch])
def test_untargeted_search_needs_the_penalty(search):
    with pytest.raises(ValueError, match="'targets' parameter of"):
        QUAMClassifier(trained(3, LABELS), search=search(targets="untargeted")).fit(X, LABELS)


def test_where_the_curvature_cannot_be_measured(monkeypatch):
    def fail(*_, **__):
        raise CurvatureError("no second derivatives here")

    monkeypatch.setattr(arguments, "make_preconditioner", fail)
    net = trained(3, LABELS)
    with pytest.warns(UserWarning, match="no second derivatives here.*search='penalty'"):
        est = QUAMClassifier(net).fit(X, LABELS)
    assert isinstance(est.search_, PenaltySearch)
    assert "no second derivatives" in est.search_reason_
    with pytest.raises(CurvatureError, match="no second derivatives"):
        QUAMClassifier(net, search="natural").fit(X, LABELS)


def test_more_training_rows_than_were_trained_on_are_refused():
    with pytest.raises(ValueError, match="n_training_rows=59, but 60 rows"):
        QUAMClassifier(trained(3, LABELS), n_training_rows=59).fit(X, LABELS)


# -- what it costs ---------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.just(0.0), st.floats(0.5, 10)), min_size=3, max_size=20),
    values=st.integers(0, 2**31),
    n_drawn=st.integers(1, 8),
)
def test_the_share_of_the_others_is_unbiased(sizes, values, n_drawn):
    sizes = torch.tensor([sizes], dtype=torch.float64)
    values = torch.tensor(np.random.default_rng(values).normal(size=sizes.shape))
    # A row of size zero is never drawn: nothing is known about it.
    values = torch.where(sizes > 0, values, 0.0)
    # What is drawn changes only where a point passes the end of a sample: the mean over all starts
    # is a sum over the pieces between.
    line = sizes[0].cumsum(0)
    passed = (line * n_drawn / line[-1].clamp(min=1e-9)).remainder(1)
    ends = np.unique(np.r_[0.0, passed.numpy(), 1.0])
    mean = 0.0
    for start, end in itertools.pairwise(ends):
        drawn, count = _systematic_sample(sizes, n_drawn, float(start + end) / 2)
        mean += (end - start) * float((values.gather(1, drawn) * count).sum())
    assert np.isclose(mean, float(values.sum()), atol=1e-9 * float(values.abs().sum()))


def test_sample_weights_count_as_rows_do():
    weight = np.random.default_rng(0).integers(1, 4, size=len(X)).astype(float)
    net = trained(3, LABELS)
    options = {"search": NaturalSearch(n_rows=10**6)}
    total = int(weight.sum())
    weighted = QUAMClassifier(net, **options, n_training_rows=total)
    weighted.fit(X, LABELS, sample_weight=weight)
    index = np.repeat(np.arange(len(X)), weight.astype(int))
    repeated = QUAMClassifier(net, **options).fit(X[index], LABELS[index])
    for first, second in zip(
        weighted.predict_uncertainty(X_NEW), repeated.predict_uncertainty(X_NEW), strict=True
    ):
        np.testing.assert_allclose(first, second, rtol=1e-6)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), n_rows=st.integers(1, 40))
def test_rows_are_chosen_for_each_row_alone(seed, n_rows):
    rng = np.random.default_rng(seed)
    features = torch.tensor(rng.normal(size=(40, 3)))
    query = torch.tensor(rng.normal(size=(5, 3)))
    found_by = make_influence([features], [torch.eye(4).double()], None, rng.uniform())
    index, count = found_by.rows_for([query], n_rows)
    assert index.shape == count.shape == (5, n_rows)
    for row in range(5):
        alone = found_by.rows_for([query[row : row + 1]], n_rows)
        assert torch.equal(alone[0][0], index[row])
        torch.testing.assert_close(alone[1][0], count[row])
    assert bool((count >= 0).all())
    # Two rows at a time where a number for every training row takes much memory.
    with short_passes(2 * 40 * 8 * 8):
        again = found_by.rows_for([query], n_rows)
    assert torch.equal(again[0], index)
    torch.testing.assert_close(again[1], count)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), n_rows=st.integers(8, 30))
def test_rows_that_cost_nothing_are_not_looked_at_and_the_estimate_has_no_bias(seed, n_rows):
    rng = np.random.default_rng(seed)
    features = torch.tensor(rng.normal(size=(40, 3)))
    query = torch.tensor(rng.normal(size=(1, 3)))
    sensitivity = torch.tensor(rng.uniform(0.01, 1, size=40))
    sensitivity[:5] = 0
    moved = (query @ features.T + 1).square()[0]
    exact = (sensitivity * moved).sum()
    found_by = make_influence([features], [torch.eye(4).double()], sensitivity, rng.uniform())
    index, count = found_by.rows_for([query], n_rows)
    assert not (count[index < 5] > 0).any()
    # To first order, what rows cost is what they were chosen by: the sum is then exact.
    found = (count[0] * (sensitivity * moved)[index[0]]).sum()
    torch.testing.assert_close(found, exact)


def test_many_training_samples_are_represented_by_a_pool(monkeypatch):
    rng = np.random.default_rng(0)
    features = torch.tensor(rng.normal(size=(500, 3)))
    query = torch.tensor(rng.normal(size=(4, 3)))
    sensitivity = torch.tensor(rng.uniform(0.01, 1, size=500))
    moved = (query @ features.T + 1).square() * sensitivity
    monkeypatch.setattr(influence, "_POOL", 100)
    sums, counts = [], []
    for start in (np.arange(50) + 0.5) / 50:
        pool = make_influence([features], [torch.eye(4).double()], sensitivity, start)
        assert len(pool.index) == 100
        index, count = pool.rows_for([query], 40)
        sums.append((count * moved.gather(1, index)).sum(dim=1))
        counts.append(pool.count.sum())
    # Systematic samples that begin anywhere have no bias.
    exact = moved.sum(dim=1)
    torch.testing.assert_close(torch.stack(sums).mean(dim=0), exact, rtol=0.03, atol=0)
    assert torch.stack(counts).mean().item() == pytest.approx(500, rel=0.03)
    top = (features.square().sum(dim=1) + 1) * sensitivity
    assert set(top.topk(50).indices.tolist()) <= set(pool.index.tolist())


# -- accelerators ----------------------------------------------------------------------------

# Fake tensors of a GPU where torch was built for one, else those of the device without memory.
DEVICE = "cuda" if torch.backends.cuda.is_built() else "meta"
# Without fused steps, torch's Adam reads its own counter.
OWN_OPTIMIZER = [PenaltySearch()] if DEVICE == "cuda" else []


def as_fake(value, device):
    """Return an object of tensors with fake ones on another device in their places."""
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device=device)
    if isinstance(value, Chain):
        return Chain([as_fake(layer, device) for layer in value.layers])
    if isinstance(value, nn.Module) or value is None:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {
            field.name: as_fake(getattr(value, field.name), device)
            for field in dataclasses.fields(value)
        }
        return type(value)(**parts)
    if isinstance(value, dict):
        return {name: as_fake(part, device) for name, part in value.items()}
    if hasattr(value, "_fields"):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)([as_fake(part, device) for part in value])
    return value


@pytest.mark.parametrize(
    ("search", "kind", "parameters"),
    [
        (NaturalSearch(), QUAMClassifier, "all"),
        (NaturalSearch(), QUAMClassifier, "last_layer"),
        *((search, QUAMRegressor, "all") for search in (LinearSearch(), *OWN_OPTIMIZER)),
    ],
)
def test_a_step_stays_on_its_device_and_reads_nothing_back(search, kind, parameters):
    """Tensors without values refuse to be read by the host, and operations across devices."""
    n_out, y = (3, LABELS) if kind is QUAMClassifier else (1, TARGET)
    est = kind(trained(n_out, y), search=search, parameters=parameters).fit(X, y)
    models = est._fitted.models
    problem, steps = models.problem, models.engine.steps
    inputs, original = models.given(Inputs((torch.as_tensor(X_NEW[:3]).double(),)))
    searches = Searches(inputs.parts, original, problem.targets.choose(original))
    with FakeTensorMode(allow_non_fake_inputs=False) if DEVICE == "cuda" else nullcontext():
        executor = problem.network.executor
        chain = Chain([as_fake(layer, DEVICE) for layer in executor.chain.layers])
        likelihood = as_fake(executor.likelihood, DEVICE)
        fake_executor = type(executor).__new__(type(executor))
        fake_executor.__dict__.update(executor.__dict__)
        fake_executor.chain, fake_executor.likelihood = chain, likelihood
        prefixes, _, endings = executor.steps
        fake_executor.steps = (prefixes, chain.layers, endings)
        network = dataclasses.replace(
            problem.network, executor=fake_executor, free=as_fake(problem.network.free, DEVICE)
        )
        parts = {
            name: as_fake(getattr(problem, name), DEVICE)
            for name in ("training", "original_on_training")
        }
        fake_problem = dataclasses.replace(problem, network=network, **parts)
        fake_steps, fake_searches = as_fake(steps, DEVICE), as_fake(searches, DEVICE)
        if isinstance(search, NaturalSearch | LinearSearch):
            found = fake_steps.paths(fake_problem, fake_searches).points[-1]
            predicted, cost = found.prediction, found.cost
        else:
            state = fake_steps.init(fake_problem, fake_searches)
            for step in range(2):
                found = fake_steps.evaluate(fake_problem, state, step)
                state = fake_steps.update(fake_problem, state, found, step)
            predicted, cost = found.at_query, found.loss_increase
        for part in (cost, *predicted.parts):
            assert part.device.type == DEVICE


# -- the object ------------------------------------------------------------------------------


def test_many_classes_are_searched_among_the_likeliest():
    y = np.arange(60) % 30
    est = QUAMClassifier(nn.Linear(4, 30).double()).fit(X, y)
    cost = est.rival_costs(X_NEW, refine=False)
    assert cost.shape == (len(X_NEW), 30)
    assert (np.isfinite(cost).sum(axis=1) == 11).all()
    likeliest = np.argsort(-est.predict_proba(X_NEW), axis=1)[:, :11]
    assert np.isfinite(np.take_along_axis(cost, likeliest, axis=1)).all()


# -- regressors ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted_line():
    rng = np.random.default_rng(0)
    rows = np.linspace(-2, 2, 60)[:, None]
    y = np.sin(2 * rows[:, 0]) + 0.1 * rng.normal(size=60)
    net = MLPRegressor(
        hidden_layer_sizes=(20, 20),
        activation="tanh",
        solver="lbfgs",
        max_iter=1000,
        random_state=0,
    )
    return QUAMRegressor(net.fit(rows, y), measure="variance", random_state=0).fit(rows, y)


def test_regressors_search_in_closed_form_by_default(fitted_line):
    assert isinstance(fitted_line.search_, LinearSearch)
    assert "closed form" in fitted_line.search_reason_
    est = QUAMRegressor().set_params(search__prior_precision=0.1)
    assert isinstance(est.search, LinearSearch)


def test_bands_grow_with_the_distance_from_the_data(fitted_line):
    for side in (-1, 1):
        rows = side * np.array([1.0, 2.2, 2.6, 3.0, 3.5, 4.0])[:, None]
        spread = fitted_line.predict_uncertainty(rows).epistemic
        assert (np.diff(spread) > 0).all()
        assert spread[-1] > 3 * spread[0]


def test_the_default_prior_makes_the_training_data_most_likely():
    """The marginal likelihood of Bayesian linear regression, by brute force."""
    net = LinearRegression().fit(X, TARGET)
    est = QUAMRegressor(net, measure="variance", noise_variance=0.04).fit(X, TARGET)
    design = np.c_[X, np.ones(len(X))]
    norm, identity = (net.coef_**2).sum() + net.intercept_**2, np.eye(design.shape[1])

    def minus_evidence(log_precision):
        precision = np.exp(log_precision)
        log_det = np.linalg.slogdet(design.T @ design / 0.04 / precision + identity)[1]
        return precision * norm + log_det

    best = minimize_scalar(minus_evidence, bounds=(-9, 13), method="bounded")
    search = LinearSearch(prior_precision=float(np.exp(best.x)))
    same = QUAMRegressor(net, search=search, measure="variance", noise_variance=0.04)
    np.testing.assert_allclose(
        est.predict_uncertainty(X_NEW).epistemic,
        same.fit(X, TARGET).predict_uncertainty(X_NEW).epistemic,
        rtol=1e-4,
    )
