"""Batched searches against a plain loop; divergence, early stops, what must not change."""

import numpy as np
import pytest
import torch
from torch import nn

from sklearn_quam import LoRA, PenaltySearch, QUAMClassifier, QUAMRegressor
from sklearn_quam._search.penalty import samplers

from ..networks import (
    IMAGES,
    LABELS,
    TARGET,
    TWO_TARGETS,
    X_NEW,
    Apply,
    MeanAndVariance,
    X,
    dense,
    module_state,
    train,
)
from ..searches import quam
from .slow_search import SlowQUAM

SHORT = {"n_steps": 12, "penalty_every": 4, "learning_rate": 0.02, "tol": 0.0, "random_state": 0}
WEIGHTS = np.random.default_rng(1).uniform(0.1, 3.0, size=len(X))


def seeded(build, *args, dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build(*args).to(dtype)


def convolutional():
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3))


class Branching(nn.Module):
    """Takes every row by itself, along one of two ways: neither traced nor batched."""

    def __init__(self, n_out=3):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, n_out)

    def forward(self, x):
        rows = [self.left(row) if row[0] > 0 else self.right(row) for row in x]
        return self.head(torch.tanh(torch.stack(rows)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(x + self.second(torch.tanh(self.first(x))))


def deep():
    return nn.Sequential(
        nn.Linear(4, 5),
        nn.Sigmoid(),
        nn.Linear(5, 6),
        nn.ReLU(),
        nn.Linear(6, 5, bias=False),
        nn.Dropout(0.5),
        nn.Linear(5, 3),
    )


class Case:
    """A module with its data, and arguments of the estimator."""

    def __init__(
        self, build, execution, *args, data=X, y=LABELS, weight=None, n_epochs=30, **options
    ):
        self.build, self.args, self.execution, self.n_epochs = build, args, execution, n_epochs
        self.X, self.y, self.weight, self.options = data, y, weight, options
        self.X_new = X_NEW[:3] if data is X else IMAGES[:2] * 1.5

    def compare(self, kind, dtype, *asked, rtol):
        """Compare the estimator with the loop, for the same rows and what is asked for."""
        module = seeded(self.build, *self.args, dtype=dtype)
        with torch.random.fork_rng():
            torch.manual_seed(0)  # for dropout: whichever tests ran before
            train(module, self.X, self.y, self.n_epochs)
        slow = None
        for options in asked:
            est = quam(kind, module, **{**SHORT, **self.options, **options})
            est.fit(self.X, self.y, sample_weight=self.weight)
            assert est.execution_ == self.execution
            slow = slow or SlowQUAM(est, module, self.X, self.y, self.weight)
            fast = est.predict_uncertainty(self.X_new, return_diagnostics=True)
            assert_agree(fast, slow.uncertainty(self.X_new, **options), rtol)
        return slow


def assert_agree(fast, slow, rtol):
    (uncertainty, diagnostics), (aleatoric, epistemic, size, n_steps) = fast, slow
    np.testing.assert_allclose(uncertainty.aleatoric, aleatoric, rtol=rtol)
    np.testing.assert_allclose(uncertainty.epistemic, epistemic, rtol=rtol)
    np.testing.assert_allclose(diagnostics.effective_sample_size, size, rtol=rtol)
    np.testing.assert_array_equal(diagnostics.n_steps, n_steps)
    # There was something to compare, and models did not all weigh the same.
    assert (epistemic > 1e-7).all()
    assert np.ptp(size) > 0


# The divergence has a small gradient at first, from which a search has to get away.
UNTARGETED = {
    "targets": "untargeted",
    "penalty": 0.02,
    "adam_epsilon": 1e-3,
    "learning_rate": 0.06,
}
CLASSIFIERS = {
    "all": Case(dense, "matmul"),
    "last layer": Case(dense, "matmul", parameters="last_layer", learning_rate="by_layer"),
    "convolutional": Case(convolutional, "vmap", data=IMAGES),
    "control flow": Case(Branching, "loop", batch_size=10),
    "tied": Case(Tied, "vmap"),
    "deep": Case(deep, "matmul", learning_rate=0.005),
    "low rank": Case(dense, "matmul", parameters=LoRA(rank=2)),
    "bounded change": Case(dense, "matmul", max_change=0.3, weight_decay=0.3),
    "two targets": Case(dense, "matmul", targets=2),
    # Algorithm 1 of the paper: the most divergent model that is within the slack.
    "untargeted best": Case(
        dense, "matmul", **UNTARGETED, sampling="best", slack=0.3, temperature=1.0, n_epochs=5
    ),
    "one logit": Case(dense, "matmul", 1, y=LABELS > 0, link="binary_logit"),
    "early stop, small batches": Case(
        dense, "matmul", tol=0.02, slack=0.5, n_steps=30, learning_rate_decay=2.5, batch_size=10
    ),
    "best with weights": Case(dense, "matmul", sampling="best", slack=0.1, weight=WEIGHTS),
}
REGRESSORS = {
    "two outputs": Case(dense, "matmul", 2, y=TWO_TARGETS),
    "mean and variance": Case(MeanAndVariance, "vmap", y=TARGET),
    "sample weights": Case(dense, "matmul", 1, y=TARGET, weight=WEIGHTS, weight_decay=0.1),
    "early stop, small batches": Case(
        dense,
        "matmul",
        1,
        y=TARGET,
        tol=0.05,
        slack=0.5,
        n_steps=30,
        learning_rate_decay=2.5,
        batch_size=10,
    ),
    "best": Case(
        dense, "matmul", 1, y=TARGET, sampling="best", slack=5.0, max_change=0.5, temperature=1.0
    ),
    "untargeted": Case(dense, "matmul", 2, y=TWO_TARGETS, targets="untargeted"),
}


SETTINGS = {"setting": "given"}, {"setting": "expected"}


@pytest.mark.parametrize("case", CLASSIFIERS.values(), ids=list(CLASSIFIERS))
def test_classifier_is_the_plain_loop(case):
    slow = case.compare(QUAMClassifier, torch.float64, *SETTINGS, rtol=1e-8)
    if case.options.get("tol"):
        n_steps = [steps for found in slow.found.values() for steps in found.n_steps]
        assert min(n_steps) < max(n_steps)


def test_single_precision_is_the_plain_loop():
    CLASSIFIERS["all"].compare(QUAMClassifier, torch.float32, *SETTINGS, rtol=1e-3)


@pytest.mark.parametrize("case", REGRESSORS.values(), ids=list(REGRESSORS))
def test_regressor_is_the_plain_loop(case):
    measures = [{**setting, "measure": "variance"} for setting in SETTINGS]
    case.compare(QUAMRegressor, torch.float64, *measures, rtol=1e-8)


# -- diverging searches --------------------------------------------------------------------


def exponential(n_out=3):
    """Overflows for inputs far out."""
    module = nn.Sequential(nn.Linear(4, 6), Apply(torch.exp), nn.Linear(6, n_out))
    with torch.no_grad():
        module[0].weight.mul_(0.1)
    return module


def bad_row(build, *args):
    """Return a row on which the network itself is finite, but not after a few steps."""
    weight = seeded(build, *args)[0].weight[0].detach().numpy()
    return 60 * weight / (weight @ weight)


# A module, and arguments with which its bad row diverges.
DIVERGING = {
    "all targets": {},
    "two targets, one by one": {"targets": 2, "memory_limit": "26KB"},
    "best": {"sampling": "best", "setting": "expected"},
    "low rank": {"parameters": "lora", "max_change": 1.0},
}


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.BeyondRangeWarning")
@pytest.mark.parametrize("options", DIVERGING.values(), ids=list(DIVERGING))
def test_a_diverging_sample_ends_and_does_not_touch_the_others(options):
    est = quam(QUAMClassifier, seeded(exponential), **{**SHORT, "learning_rate": 0.05, **options})
    est.fit(X, LABELS)
    rows, poisoned = X_NEW[:6].copy(), X_NEW[:6].copy()
    poisoned[2] = bad_row(exponential)
    others = np.arange(6) != 2
    clean, clean_diagnostics = est.predict_uncertainty(rows, return_diagnostics=True)
    u, diagnostics = est.predict_uncertainty(poisoned, return_diagnostics=True)
    assert clean_diagnostics.n_diverged.sum() == 0
    assert (diagnostics.n_diverged > 0).tolist() == [False, False, True, False, False, False]
    n_targets = options.get("targets", 3)
    assert diagnostics.n_diverged[2] <= n_targets
    assert diagnostics.n_steps[2] < n_targets * SHORT["n_steps"]
    assert diagnostics.effective_sample_size[2] >= 1
    for found, expected in zip(u, clean, strict=True):
        # How many samples are searched together may show in the last digits.
        np.testing.assert_allclose(found[others], expected[others], rtol=1e-6)
        assert np.isfinite(found).all()
    expected_columns = clean_diagnostics._columns()
    for name, found in diagnostics._columns().items():
        expected = expected_columns[name]
        if found.dtype == float:
            np.testing.assert_allclose(found[others], expected[others], rtol=1e-6)
        else:
            np.testing.assert_array_equal(found[others], expected[others])


def logarithmic():
    """Undefined where a unit is below minus five."""
    return nn.Sequential(nn.Linear(4, 6), Apply(lambda x: (x + 5).log()), nn.Linear(6, 3))


def test_only_visits_before_the_divergence_count():
    module = seeded(logarithmic, dtype=torch.float64)
    options = {**SHORT, "learning_rate": 0.05}
    est = quam(QUAMClassifier, module, **options, temperature=1.0).fit(X, LABELS)
    rows = np.array([[-2.7, 1.8, 6.5, 4.7], [4.5, 0.5, -3.7, -4.6], [-6.3, 7.6, 6.7, 3.9]])
    u, diagnostics = est.predict_uncertainty(rows, return_diagnostics=True)
    assert diagnostics.n_diverged.tolist() == [3, 2, 3]
    slow = SlowQUAM(est, module, X, LABELS)
    for number, row in enumerate(torch.as_tensor(rows)):
        given = slow.predict(module, row[None]).detach()[0].numpy()
        visits = [
            sample
            for target in slow.search(row[None]).visits
            for sample in until_divergence(target)
        ]
        weights = np.exp([-max(v.increase, 0) / slow.temperature for v in visits])
        divergence = np.array([slow.kl(given, v.prediction) for v in visits])
        expected = weights @ divergence / weights.sum()
        np.testing.assert_allclose(u.epistemic[number], expected, rtol=1e-8)
        assert diagnostics.n_steps[number] == len(visits) - 3


def until_divergence(visits):
    for visit in visits:
        if not (np.isfinite(visit.prediction).all() and np.isfinite(visit.increase)):
            return
        yield visit


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.BeyondRangeWarning")
def test_draws_that_overflow_do_not_count():
    # The best models are finite at these rows; some of the draws around them are not.
    options = {**SHORT, "learning_rate": 0.01, "sampling": "gaussian", "slack": 1.0}
    est = quam(QUAMClassifier, seeded(exponential), **options).fit(X, LABELS)
    u = est.predict_uncertainty(np.linspace(0.6, 0.9, 30)[:, None] * bad_row(exponential))
    assert all(np.isfinite(part).all() for part in u)


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.BeyondRangeWarning")
def test_a_row_that_the_given_network_fails_on_is_infinitely_uncertain():
    est = quam(QUAMClassifier, seeded(exponential), **SHORT).fit(X, LABELS)
    rows = X_NEW[:4].copy()
    clean = est.predict_uncertainty(rows)
    rows[1] = 1e6
    u, diagnostics = est.predict_uncertainty(rows, return_diagnostics=True)
    for found, expected in zip(u, clean, strict=True):
        np.testing.assert_allclose(found[[0, 2, 3]], expected[[0, 2, 3]], rtol=1e-6)
    assert u.epistemic[1] == u.total[1] == 1e300
    assert np.isfinite(u.aleatoric[1])
    assert diagnostics.n_diverged.tolist() == [0, 1, 0, 0]
    assert diagnostics.rival[1] is None


def test_a_temperature_may_be_too_small_for_single_precision():
    module, found = seeded(dense), []
    for temperature in (1e-30, 1e-60, 1e-300):
        est = quam(QUAMClassifier, module, **SHORT, temperature=temperature)
        found.append(est.fit(X, LABELS).predict_uncertainty(X_NEW[:3]).epistemic)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


# -- early stop ----------------------------------------------------------------------------


STOPPING = {**SHORT, "n_steps": 40, "learning_rate_decay": 2.0, "slack": 0.05}


def test_a_row_does_not_depend_on_which_others_stopped():
    module = seeded(dense, dtype=torch.float64)
    options = {**STOPPING, "tol": 0.01}
    est = quam(QUAMClassifier, module, **options).fit(X, LABELS)
    together = est.predict_uncertainty(X_NEW, return_diagnostics=True)
    steps = together[1].n_steps
    assert len(set(steps)) > 2  # rows stop at different times
    assert steps.min() < 0.7 * steps.max()
    early, late = steps <= np.median(steps), steps > np.median(steps)
    for chosen in (early, late, steps == steps.max(), np.arange(len(steps)) == steps.argmax()):
        part = est.predict_uncertainty(X_NEW[chosen], return_diagnostics=True)
        np.testing.assert_array_equal(part[1].n_steps, steps[chosen])
        np.testing.assert_array_equal(part[1].rival, together[1].rival[chosen])
        np.testing.assert_allclose(part[0].epistemic, together[0].epistemic[chosen], rtol=1e-9)


# -- what must not change ------------------------------------------------------------------


def test_an_interrupt_leaves_everything_as_it_was(monkeypatch):
    module = seeded(dense)
    before = module_state(module)
    est = quam(QUAMClassifier, module, **SHORT).fit(X, LABELS)
    clean = est.predict_uncertainty(X_NEW[:2])
    calls = []
    on_visit = samplers.Trajectory.on_visit

    def interrupted(self, visit):
        calls.append(visit.step)
        if len(calls) >= 5:
            raise KeyboardInterrupt
        on_visit(self, visit)

    monkeypatch.setattr(samplers.Trajectory, "on_visit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        est.predict_uncertainty(X_NEW[:2])
    monkeypatch.undo()
    assert module_state(module) == before
    np.testing.assert_array_equal(est.predict_uncertainty(X_NEW[:2]).epistemic, clean.epistemic)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_searches_run_where_gradients_are_switched_off(context):
    est = quam(QUAMClassifier, seeded(dense), **SHORT).fit(X, LABELS)
    expected = est.predict_uncertainty(X_NEW[:2])
    with context():
        found = est.predict_uncertainty(X_NEW[:2])
        assert not torch.is_grad_enabled()
    np.testing.assert_array_equal(found.epistemic, expected.epistemic)


class OneByOne(nn.Module):
    """A network whose control flow depends on its values, so that no models run together."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.last(hidden * (1 if bool(hidden.sum() < 1e30) else torch.nan))


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.UncertaintyWarning")
def test_all_searches_may_diverge_where_models_run_one_by_one():
    X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).numpy()
    search = PenaltySearch(n_steps=8, learning_rate=1e38, sampling="best")
    est = QUAMClassifier(seeded(OneByOne), parameters="all", search=search, random_state=0)
    est.fit(X, np.arange(30) % 3)
    assert est.execution_ == "loop"
    u, diagnostics = est.predict_uncertainty(X[:1], return_diagnostics=True)
    assert u.beyond_range.all()
    assert diagnostics.n_diverged > 0
    assert not any(model["feasible"] for model in est.adversarial_models(X[:1])[0])
