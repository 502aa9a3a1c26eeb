"""Displays: what they hold, what they draw, and how it looks.

``python -m tests.display.test_display`` draws the pictures in ``baseline_images`` again.
"""

import ast
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_quam import (
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    ReferenceRegressor,
    Uncertainty,
    display,
)
from sklearn_quam.display import (
    AccuracyRejectionDisplay,
    ProbabilityBoundsDisplay,
    RegressionUncertaintyDisplay,
    UncertainSamplesDisplay,
    UncertaintyHistogramDisplay,
    UncertaintyMapDisplay,
)
from sklearn_quam.metrics import accuracy_rejection_auc, accuracy_rejection_curve
from sklearn_quam.model_selection import RejectOptionClassifier
from sklearn_quam.ood import EnergyDetector

matplotlib = pytest.importorskip("matplotlib")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.testing.compare import compare_images  # noqa: E402
from matplotlib.ticker import NullFormatter  # noqa: E402

BASELINES = Path(__file__).parent / "baseline_images"
# Versions smooth and resample differently, by more than a missing line makes.
DRAWN_BY = "3.11"
STYLE = ["default", {"font.family": "DejaVu Sans", "font.size": 10, "savefig.dpi": 50}]

_rng = np.random.default_rng(0)
PLANE = _rng.normal(size=(60, 2))
WORDS = np.array(["cat", "dog", "owl"])
LABELS = WORDS[np.digitize(PLANE[:, 0], [-0.5, 0.5])]
TARGET = PLANE[:, 0] + 0.1 * _rng.normal(size=60)
BEYOND = np.array([0.1, 0.4, 1e300, 0.15, 1e300, 0.3])


@pytest.fixture(autouse=True)
def _style():
    with matplotlib.style.context(STYLE):
        yield
    plt.close("all")


@cache
def classifier():
    net = LogisticRegression().fit(PLANE, LABELS)
    return QUAMClassifier(net, search="linear").fit(PLANE, LABELS)


@cache
def regressor(n_features=1, measure="entropy"):
    X = PLANE[:, :n_features]
    return QUAMRegressor(LinearRegression().fit(X, TARGET), measure=measure).fit(X, TARGET)


def legend_texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


# -- arrays that nothing is trained for ----------------------------------------------------


def draw_map(**kwargs):
    xx0, xx1 = np.meshgrid(np.linspace(-2, 2, 21), np.linspace(-2, 2, 21))
    logits = np.stack([xx0, xx1, -xx0 - xx1], axis=-1).reshape(-1, 3)
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    aleatoric = -(proba * np.log(proba)).sum(axis=1)
    epistemic = 1e-3 + (xx0**2 + xx1**2).ravel() ** 2 / 20
    points = np.array([[1, -0.5], [1.2, 0.3], [-0.5, 1], [0.2, 1.4], [-1, -1], [-1.3, -0.4]])
    parts = Uncertainty(aleatoric, epistemic, aleatoric + epistemic)
    classes = {"X": points, "y": WORDS[[0, 0, 1, 1, 2, 2]], "proba": proba}
    return UncertaintyMapDisplay.from_predictions(xx0, xx1, parts, **classes, **kwargs)


def draw_histogram(**kwargs):
    known = 10 ** np.sin(np.arange(80)) / 10
    unknown = 10 ** np.cos(np.arange(50) / 3) / 2
    return UncertaintyHistogramDisplay.from_predictions(known, unknown, threshold=0.9, **kwargs)


def draw_rejection(level=0.8, **kwargs):
    correct = np.arange(40) % 5 > 0
    uncertainty = np.where(correct, np.sin(np.arange(40)), level)
    return AccuracyRejectionDisplay.from_predictions(correct, uncertainty, **kwargs)


def draw_regression(**kwargs):
    x = np.linspace(-2, 2, 41)
    epistemic = 0.05 + 0.2 * x**2
    total = np.where(x > 1.7, 1e150, np.hypot(epistemic, 0.3))
    points = {"x_train": x[12:30], "y_train": np.sin(2 * x[12:30]) + 0.2 * np.cos(9 * x[12:30])}
    return RegressionUncertaintyDisplay.from_predictions(
        x, np.sin(2 * x), epistemic, total, **points, **kwargs
    )


def draw_bounds(**kwargs):
    arrays = [0.6, 0.3, 0.1], [0.2, 0.1, 0.0], [0.9, 0.7, 0.3]
    return ProbabilityBoundsDisplay.from_predictions(*arrays, labels=WORDS, slack=3.0, **kwargs)


def draw_samples(**kwargs):
    rows, columns = np.mgrid[:8, :8]
    images = np.array([np.sin(rows * k / 3) + np.cos(columns * k / 4) for k in range(1, 9)])
    uncertainty = np.array([3.0, 0.01, 0.2, 1.5, 0.4, 0.03, 12.0, 0.8])
    rivals = [None if k % 2 else WORDS[(k + 1) % 3] for k in range(8)]
    return UncertainSamplesDisplay.from_predictions(
        images, uncertainty, WORDS[np.arange(8) % 3], rivals, n_images=3, **kwargs
    )


DRAWN = {
    UncertaintyMapDisplay: draw_map,
    UncertaintyHistogramDisplay: draw_histogram,
    AccuracyRejectionDisplay: draw_rejection,
    RegressionUncertaintyDisplay: draw_regression,
    ProbabilityBoundsDisplay: draw_bounds,
    UncertainSamplesDisplay: draw_samples,
}
PICTURES = {
    "map": draw_map,
    "map_mesh": lambda: draw_map(component="aleatoric", plot_method="pcolormesh"),
    "histogram": draw_histogram,
    "histogram_log": lambda: draw_histogram(log=True),
    "rejection": lambda: draw_rejection(0.2, name="other", ax=draw_rejection(name="QUAM").ax_),
    "regression": draw_regression,
    "bounds": draw_bounds,
    "samples": lambda: draw_samples(cmap="gray_r"),
}


def save_without_text(figure, path):
    """Save a picture that does not depend on how a version renders fonts.

    Letters are removed, and the room that they take, which decides the layout, is not asked for.
    """
    figure.set_layout_engine("none")
    for number, ax in enumerate(figure.axes):
        ax.set_position(((number + 0.05) / len(figure.axes), 0.3, 0.9 / len(figure.axes), 0.65))
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(NullFormatter())
            axis.set_minor_formatter(NullFormatter())
    for text in figure.findobj(matplotlib.text.Text):
        text.set_text("")
    figure.savefig(path)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_look_as_they_did(name, tmp_path):
    if not matplotlib.__version__.startswith(f"{DRAWN_BY}."):
        pytest.skip(f"the pictures were drawn by matplotlib {DRAWN_BY}")
    path = tmp_path / f"{name}.png"
    save_without_text(PICTURES[name]().figure_, path)
    assert compare_images(str(BASELINES / f"{name}.png"), str(path), tol=1) is None


# -- what all displays promise -------------------------------------------------------------


@pytest.mark.parametrize("kind", DRAWN)
def test_given_axes_are_used_and_a_display_can_be_drawn_again(kind):
    figure, (left, right) = plt.subplots(1, 2, layout="constrained")
    shown = DRAWN[kind](ax=right)
    assert shown.figure_ is figure
    assert shown.ax_ is right or kind is UncertainSamplesDisplay
    assert not left.has_data()
    assert len(plt.get_fignums()) == 1
    assert shown.plot() is shown
    assert shown.figure_ is not figure


@pytest.mark.slow
@pytest.mark.parametrize("picture", PICTURES)
def test_no_text_leaves_the_figure_or_covers_another(picture, monkeypatch):
    figure = PICTURES[picture]().figure_
    figure.canvas.draw()  # the layout is settled now
    drawn, draw = {}, matplotlib.text.Text.draw

    def remember(text, renderer):
        draw(text, renderer)
        if text.get_text() and text.get_visible():
            drawn[text] = text.get_window_extent(renderer)

    # Asking the figure for its texts would find ticks beyond the limits, too.
    monkeypatch.setattr(matplotlib.text.Text, "draw", remember)
    figure.canvas.draw()
    assert len(drawn) > 3
    for number, (text, box) in enumerate(drawn.items()):
        assert figure.bbox.padded(1).contains(*box.min), text
        assert figure.bbox.padded(1).contains(*box.max), text
        for other, other_box in list(drawn.items())[:number]:
            assert not box.overlaps(other_box), (text, other)


@pytest.mark.parametrize("kind", DRAWN)
def test_without_matplotlib_the_error_says_what_to_install(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = rf"{kind.__name__} needs matplotlib.*\[plots\]"
    with pytest.raises(ImportError, match=words):
        DRAWN[kind]()
    # Before anything is computed: these arguments are nonsense.
    n_data = 2 if kind in (UncertaintyHistogramDisplay, AccuracyRejectionDisplay) else 1
    with pytest.raises(ImportError, match=words):
        kind.from_estimator(None, *[None] * n_data)


def test_importing_displays_does_not_import_matplotlib():
    for path in Path(display.__file__).parent.glob("*.py"):
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                assert " matplotlib" not in ast.unparse(statement), path


CALLS = {
    "map": lambda est, X: UncertaintyMapDisplay.from_estimator(est, X, grid_resolution=3),
    "histogram": lambda est, X: UncertaintyHistogramDisplay.from_estimator(est, X, X),
    "rejection": lambda est, X: AccuracyRejectionDisplay.from_estimator(est, X, LABELS),
    "regression": lambda est, X: RegressionUncertaintyDisplay.from_estimator(est, X),
    "bounds": lambda est, X: ProbabilityBoundsDisplay.from_estimator(est, X[0]),
    "samples": lambda est, X: UncertainSamplesDisplay.from_estimator(est, X, image_shape=(1, 2)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_estimators_must_be_fitted_and_know_uncertainty(call):
    with pytest.raises(NotFittedError):
        call(QUAMClassifier(LogisticRegression()), PLANE)
    with pytest.raises(TypeError, match="LogisticRegression has no "):
        call(LogisticRegression().fit(PLANE, LABELS), PLANE)


def test_a_pipeline_is_asked_with_its_own_features():
    pipeline = make_pipeline(
        StandardScaler(), QUAMClassifier(LogisticRegression(), search="linear")
    )
    X = 100 + 10 * PLANE
    pipeline.fit(X, LABELS)
    expected = pipeline[-1].predict_uncertainty(pipeline[:-1].transform(X)).epistemic
    shown = UncertaintyHistogramDisplay.from_estimator(pipeline, X, X + 50)
    np.testing.assert_allclose(shown.uncertainty_id, expected)


@pytest.mark.parametrize("kind", ["energy", "forest"])
def test_pictures_of_detectors(kind):
    y = (PLANE[:, 0] > 0).astype(int)
    if kind == "energy":
        net = MLPClassifier((8,), solver="lbfgs", max_iter=50, random_state=0).fit(PLANE, y)
        detector = EnergyDetector(net).fit(PLANE, y)
    else:
        detector = IsolationForest(n_estimators=5, random_state=0).fit(PLANE)
    doubt = -detector.score_samples(PLANE)
    histogram = UncertaintyHistogramDisplay.from_estimator(detector, PLANE, PLANE + 5)
    np.testing.assert_array_equal(histogram.uncertainty_id, doubt)
    assert histogram.ax_.get_xlabel() == "minus the score"
    shown = UncertaintyMapDisplay.from_estimator(detector, PLANE, y, grid_resolution=5)
    grid = np.column_stack([shown.xx0.ravel(), shown.xx1.ravel()])
    expected = -detector.score_samples(grid).reshape(5, 5)
    np.testing.assert_array_equal(shown.uncertainty.epistemic, expected)
    assert shown.colorbar_.ax.get_ylabel() == "minus the score"
    assert (shown.lead is None) == (kind == "forest")
    images = UncertainSamplesDisplay.from_estimator(detector, PLANE, image_shape=(1, 2), n_images=2)
    assert (images.labels is None) == (kind == "forest")
    np.testing.assert_array_equal(images.uncertainty, doubt)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CALLS["map"](classifier(), [1.0]), "must be a table"),
        (lambda: CALLS["map"](classifier(), np.tile(PLANE, 2)), "two features; got 4"),
        (lambda: CALLS["histogram"](classifier(), np.tile(PLANE, 2)), "2 features"),
        (lambda: draw_map(component="both"), "component must be one of"),
        (lambda: draw_map(plot_method="surface"), "plot_method must be"),
        (
            lambda: UncertaintyMapDisplay.from_predictions([1.0], [1.0], np.zeros((3, 1))),
            "grids of the same shape",
        ),
        (
            lambda: UncertaintyMapDisplay.from_predictions([[1.0]], [[1.0]], [[1], [1, 2], [3]]),
            r"three arrays with 1 numbers each; got 1, 2, 1",
        ),
        (
            lambda: UncertaintyMapDisplay.from_predictions([[1.0]], [[1.0]], 3),
            "as predict_uncertainty returns them",
        ),
        (
            lambda: UncertaintyHistogramDisplay.from_predictions([-1.0, 1.0], [2.0], log=True),
            "log=True needs",
        ),
        (
            lambda: UncertaintyHistogramDisplay.from_predictions([1.0], [np.nan]),
            "uncertainty_ood contains NaN",
        ),
        (
            lambda: UncertaintyHistogramDisplay.from_predictions([[1.0]], [1.0]),
            "uncertainty_id must be of shape",
        ),
        (lambda: CALLS["rejection"](regressor(), PLANE[:, :1]), "QUAMRegressor predicts numbers"),
        (lambda: CALLS["regression"](classifier(), PLANE), "a regressor; got QUAMClassifier"),
        (lambda: draw_regression(interval=np.ones((3, 3))), r"must be of shape \(n_points, 2\)"),
        (
            lambda: RegressionUncertaintyDisplay.from_predictions([0], [0], [0], [0], x_train=[1]),
            "go together",
        ),
        (
            lambda: UncertainSamplesDisplay.from_predictions([["a"], ["b"]], [1, 2]),
            "Images must be rows of numbers",
        ),
        (
            lambda: UncertainSamplesDisplay.from_predictions([[1], [2, 3]], [1, 2]),
            "images must have rows of the same length",
        ),
        (
            lambda: UncertainSamplesDisplay.from_predictions(np.zeros((4, 7)), range(4)),
            r"\(2, 2\) do not fit rows of shape \(7,\): pass image_shape",
        ),
        (
            lambda: UncertainSamplesDisplay.from_predictions(np.zeros((4, 5, 5, 5)), range(4)),
            "at most one axis of 1, 3 or 4",
        ),
        (
            lambda: UncertainSamplesDisplay.from_predictions(np.zeros((1, 4)), range(1)),
            "at least two images",
        ),
        (lambda: draw_samples(ax=plt.figure().add_axes((0, 0, 1, 1))), "cannot be divided"),
    ],
)
def test_wrong_arguments_get_a_useful_message(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# -- maps ----------------------------------------------------------------------------------


def test_a_map_holds_the_estimators_answer_at_every_point():
    est = classifier()
    shown = UncertaintyMapDisplay.from_estimator(est, PLANE, LABELS, grid_resolution=4)
    room = 0.2 * np.ptp(PLANE, axis=0)
    low, high = PLANE.min(axis=0) - room, PLANE.max(axis=0) + room
    np.testing.assert_allclose(shown.xx0[0], np.linspace(low[0], high[0], 4))
    np.testing.assert_allclose(shown.xx1[:, 0], np.linspace(low[1], high[1], 4))
    grid = np.column_stack([shown.xx0.ravel(), shown.xx1.ravel()])
    for part, wanted in zip(shown.uncertainty, est.predict_uncertainty(grid), strict=True):
        np.testing.assert_allclose(part.ravel(), wanted)
    predicted = est.classes_[shown.lead.argmax(axis=0).ravel()]
    np.testing.assert_array_equal(predicted, est.predict(grid))
    assert (np.sort(shown.lead, axis=0)[:-1] <= 0).all()
    assert shown.colorbar_.ax.get_ylabel() == "epistemic uncertainty (nats)"
    assert legend_texts(shown.ax_) == [*WORDS, "decision boundary"]


def test_a_map_takes_names_and_arguments_of_its_parts():
    X = pd.DataFrame(PLANE, columns=["length", "width"])
    est = ReferenceClassifier(LogisticRegression().fit(X, LABELS)).fit(X, LABELS)
    style = {"cmap": "magma", "scatter_kwargs": {"s": 77}}
    shown = UncertaintyMapDisplay.from_estimator(
        est, X, component="total", grid_resolution=5, plot_method="pcolormesh", **style
    )
    assert (shown.ax_.get_xlabel(), shown.ax_.get_ylabel()) == ("length", "width")
    assert shown.surface_.get_cmap().name == "magma"
    assert shown.ax_.collections[-1].get_sizes() == [77]
    for plot_method in ("contourf", "pcolormesh"):  # of nothing: one colour
        shown.plot(plot_method=plot_method)
        assert np.ptp(shown.uncertainty.epistemic) == 0
        assert shown.surface_.norm.vmax - shown.surface_.norm.vmin >= 0.9


def test_the_boundary_follows_the_threshold():
    xx0, xx1 = np.meshgrid(np.linspace(0, 1, 11), [0.0, 1.0])
    second = xx0.ravel()
    proba = np.column_stack([1 - second, second])
    shown = UncertaintyMapDisplay.from_predictions(
        xx0, xx1, [second] * 3, proba=proba, threshold=0.27
    )
    np.testing.assert_allclose(shown.boundaries_[0].get_paths()[0].vertices[:, 0], 0.27)


def test_a_map_of_a_regressor_has_no_boundary():
    est = regressor(2, "variance")
    shown = UncertaintyMapDisplay.from_estimator(est, PLANE, TARGET, grid_resolution=3)
    assert shown.lead is None
    assert shown.y is None
    assert shown.ax_.get_legend() is None
    assert shown.colorbar_.ax.get_ylabel() == "epistemic uncertainty (squared units of y)"


def test_a_map_hatches_what_is_beyond_the_range():
    xx0, xx1 = np.meshgrid(np.arange(3.0), np.arange(2.0))
    shown = UncertaintyMapDisplay.from_predictions(
        xx0, xx1, Uncertainty(np.zeros(6), BEYOND, BEYOND)
    )
    assert shown.surface_.levels.max() < 1
    assert legend_texts(shown.ax_) == ["beyond range"]


@pytest.mark.parametrize("plot_method", ["contourf", "pcolormesh"])
@pytest.mark.parametrize("flat", [False, True])
def test_a_map_leaves_places_empty_that_are_left_out(plot_method, flat):
    """As of a picture with a mask."""
    heights = np.zeros(6) if flat else np.array([0.0, 1.0, 2.0, 3.0, 4.0, 1e300])
    heights[1] = np.nan
    xx0, xx1 = np.meshgrid(np.arange(3.0), np.arange(2.0))
    shown = UncertaintyMapDisplay.from_predictions(xx0, xx1, [heights] * 3, plot_method=plot_method)
    low, high = shown.surface_.get_clim()
    assert low < high
    assert low >= 0
    assert high < 10
    if plot_method == "pcolormesh":
        np.testing.assert_array_equal(shown.surface_.get_array().mask.ravel(), np.isnan(heights))


def test_a_map_of_nothing_says_so():
    grid = np.meshgrid(np.arange(3.0), np.arange(2.0))
    with pytest.raises(ValueError, match="nothing to draw"):
        UncertaintyMapDisplay.from_predictions(*grid, [np.full(6, np.nan)] * 3)


# -- histograms and rejection --------------------------------------------------------------


def test_a_histogram_says_how_well_uncertainties_separate():
    est, other = classifier(), PLANE[:20] + 5
    shown = UncertaintyHistogramDisplay.from_estimator(est, PLANE, other, component="total")
    np.testing.assert_allclose(shown.uncertainty_id, est.predict_uncertainty(PLANE).total)
    np.testing.assert_allclose(shown.uncertainty_ood, est.predict_uncertainty(other).total)
    score = np.concatenate([shown.uncertainty_id, shown.uncertainty_ood])
    assert shown.auroc == pytest.approx(roc_auc_score(np.arange(80) >= 60, score))
    assert shown.ax_.get_xlabel() == "total uncertainty (nats)"
    assert shown.ax_.get_legend().get_title().get_text() == f"AUROC = {shown.auroc:.3f}"
    names = ["in distribution (60 samples)", "out of distribution (20 samples)"]
    assert legend_texts(shown.ax_) == names


def test_a_histogram_marks_the_threshold_of_known_samples():
    net = LogisticRegression().fit(PLANE[:30], LABELS[:30])
    est = QUAMClassifier(net, search="linear")
    est.fit(PLANE[:30], LABELS[:30], X_val=PLANE[30:], y_val=LABELS[30:])
    shown = UncertaintyHistogramDisplay.from_estimator(est, PLANE, PLANE + 5, component="doubt")
    assert shown.threshold == est.threshold(0.95)
    np.testing.assert_array_equal(shown.ax_.lines[0].get_xdata(), est.threshold(0.95))
    assert shown.ax_.get_xlabel() == "doubt (share of known samples that are less doubtful)"


@pytest.mark.parametrize("log", [False, True])
def test_bars_of_each_set_sum_to_one(log):
    values = np.array([0.0, 1e-5, 1e-2, 1.0, 1e300])
    shown = UncertaintyHistogramDisplay.from_predictions(
        values, 10 * values[:4], log=log, bins=7, histtype="bar"
    )
    assert len(shown.bins_) == 8
    assert shown.bins_[-1] == pytest.approx(10)
    known, unknown = ([bar.get_height() for bar in bars] for bars in shown.ax_.containers)
    assert sum(known) == pytest.approx(1)
    assert sum(unknown) == pytest.approx(1)
    assert known[-1] == pytest.approx(1 / 5)  # what is beyond the range
    assert shown.ax_.get_xscale() == ("log" if log else "linear")
    assert "in distribution (5 samples, 1 beyond range)" in legend_texts(shown.ax_)


def test_rejection_curves_share_axes():
    est = classifier()
    first = AccuracyRejectionDisplay.from_estimator(est, PLANE, LABELS)
    uncertainty = est.predict_uncertainty(PLANE).total
    correct = est.predict(PLANE) == LABELS
    fraction, accuracy = accuracy_rejection_curve(correct, uncertainty)
    np.testing.assert_array_equal(first.fraction_retained, fraction)
    np.testing.assert_allclose(first.accuracy, accuracy)
    assert first.auc == pytest.approx(accuracy_rejection_auc(correct, uncertainty))
    second = AccuracyRejectionDisplay.from_predictions(
        correct, -uncertainty, name="worst", ax=first.ax_, linewidth=5
    )
    assert second.ax_ is first.ax_
    assert second.line_.get_linewidth() == 5
    assert first.line_.get_color() != second.line_.get_color()
    names = [f"QUAMClassifier (area = {first.auc:.3f})", f"worst (area = {second.auc:.3f})"]
    assert legend_texts(first.ax_) == names


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.SeenRowsWarning")
@pytest.mark.parametrize(
    "doubt", ["auto", "total", IsolationForest(n_estimators=5, random_state=0)]
)
def test_the_threshold_of_a_reject_option_is_marked(doubt):
    reject = RejectOptionClassifier(classifier(), coverage=0.7, doubt=doubt, random_state=0)
    reject.fit(PLANE, LABELS)
    shown = AccuracyRejectionDisplay.from_estimator(reject, PLANE, LABELS)
    accepted = reject.accepts(PLANE)
    assert shown.answered == accepted.mean()
    _, mark = shown.ax_.lines
    assert mark.get_xdata()[0] == accepted.mean()
    assert mark.get_ydata()[0] == pytest.approx(reject.score(PLANE, LABELS))
    assert "threshold" in legend_texts(shown.ax_)
    nothing = AccuracyRejectionDisplay.from_predictions([1, 0], [1.0, 2.0], threshold=0.5)
    assert nothing.answered == 0
    assert len(nothing.ax_.lines) == 1


# -- regression ----------------------------------------------------------------------------


@pytest.mark.parametrize("measure", ["entropy", "variance"])
def test_bands_are_standard_deviations_whatever_is_measured(measure):
    est = regressor(1, measure)
    shown = RegressionUncertaintyDisplay.from_estimator(
        est, PLANE[:, :1], TARGET, grid_resolution=7, xlim=(-1, 1), color="black"
    )
    assert est.measure == measure
    x = np.linspace(-1, 1, 7)[:, None]
    expected = regressor(1, "variance").predict_uncertainty(x)
    np.testing.assert_allclose(shown.mean, est.predict(x))
    np.testing.assert_allclose(shown.epistemic_std**2, expected.epistemic)
    np.testing.assert_allclose(shown.total_std**2, expected.total)
    edge = shown.bands_[0].get_paths()[0].vertices[:, 1].max()
    assert edge == pytest.approx((shown.mean + 2 * shown.total_std).max())
    assert shown.line_.get_color() == "black"
    assert (shown.ax_.get_xlabel(), shown.ax_.get_ylabel()) == ("feature 0", "y")
    assert "epistemic (±2 sd)" in legend_texts(shown.ax_)


def test_one_feature_of_several_moves_the_others_stay_at_their_median():
    X = pd.DataFrame(PLANE, columns=["length", "width"])
    y = pd.Series(TARGET, name="price")
    est = ReferenceRegressor(LinearRegression().fit(X, TARGET)).fit(X, TARGET)
    shown = RegressionUncertaintyDisplay.from_estimator(
        est, X, y, feature="width", grid_resolution=3
    )
    rows = pd.DataFrame({"length": X["length"].median(), "width": shown.x})
    np.testing.assert_allclose(shown.mean, est.predict(rows))
    room = 0.2 * np.ptp(PLANE[:, 1])
    np.testing.assert_allclose(shown.x[0], PLANE[:, 1].min() - room)
    assert (shown.ax_.get_xlabel(), shown.ax_.get_ylabel()) == ("width", "price")
    np.testing.assert_array_equal(shown.x_train, X["width"])
    with pytest.raises(ValueError, match=r"no feature 'height'.*one of"):
        RegressionUncertaintyDisplay.from_estimator(est, X, y, feature="height")
    with pytest.raises(ValueError, match="no feature 2"):
        RegressionUncertaintyDisplay.from_estimator(est, X, y, feature=2)


def test_a_regressor_of_several_outputs_is_refused():
    two = np.column_stack([TARGET, TARGET])
    est = ReferenceRegressor(LinearRegression().fit(PLANE, two)).fit(PLANE, two)
    with pytest.raises(ValueError, match="one output; this one has 2"):
        RegressionUncertaintyDisplay.from_estimator(est, PLANE)


def test_points_may_come_in_any_order_and_bands_end_where_the_range_ends():
    shown = RegressionUncertaintyDisplay.from_predictions([2, 0, 1], [5, 3, 4], [1, 1, 1], [2] * 3)
    np.testing.assert_array_equal(shown.x, [0, 1, 2])
    np.testing.assert_array_equal(shown.mean, [3, 4, 5])
    std, mean = np.sqrt(BEYOND), np.where(BEYOND >= 1e300, 1e20, 1.0)
    shown = RegressionUncertaintyDisplay.from_predictions(np.arange(6), mean, std, std)
    assert shown.ax_.get_ylim()[1] < 10
    assert np.isnan(shown.line_.get_ydata()).sum() == 2
    assert "beyond range" in legend_texts(shown.ax_)


# -- images --------------------------------------------------------------------------------


def test_images_are_ordered_by_certainty():
    shown = draw_samples()
    np.testing.assert_array_equal(shown.least_certain_, [6, 0, 3])
    np.testing.assert_array_equal(shown.most_certain_, [1, 5, 2])
    titles = [[ax.get_title() for ax in row] for row in shown.ax_]
    assert titles == [["cat, dog?\n12", "cat, dog?\n3.0", "cat\n1.5"]] + [
        ["dog\n0.010", "owl\n0.030", "owl, cat?\n0.20"]
    ]
    assert shown.ax_[0, 0].get_ylabel() == "least certain\n(nats)"
    np.testing.assert_array_equal(shown.ax_[0, 0].images[0].get_array(), shown.images[6])
    beyond = UncertainSamplesDisplay.from_predictions(np.zeros((6, 4)), BEYOND, n_images=3)
    titles = [panel.get_title().strip() for panel in beyond.ax_.flat]
    assert titles.count("beyond range") == 2


def test_images_of_an_estimator():
    est = QUAMClassifier(LogisticRegression(C=100).fit(PLANE, LABELS)).fit(PLANE, LABELS)
    X = PLANE[:10]
    shown = UncertainSamplesDisplay.from_estimator(est, X, image_shape=(1, 2), n_images=2)
    uncertainty, found = est.predict_uncertainty(X, return_diagnostics=True)
    np.testing.assert_allclose(shown.uncertainty, uncertainty.epistemic)
    np.testing.assert_array_equal(shown.labels, est.predict(X))
    assert 0 < found.feasible.sum() < 10
    np.testing.assert_array_equal(shown.rivals[found.feasible], found.rival[found.feasible])
    assert all(rival is None for rival in shown.rivals[~found.feasible])


@pytest.mark.parametrize(
    ("shape", "image_shape", "expected"),
    [
        ((4, 9), None, (4, 3, 3)),
        ((4, 12), (2, 2, 3), (4, 2, 2, 3)),
        ((4, 6, 5), None, (4, 6, 5)),
        ((4, 1, 6, 5), None, (4, 6, 5)),
        ((4, 3, 6, 5), None, (4, 6, 5, 3)),
        ((4, 6, 5, 3), None, (4, 6, 5, 3)),
    ],
)
def test_shapes_of_images(shape, image_shape, expected):
    images = np.random.default_rng(0).normal(size=shape)
    shown = UncertainSamplesDisplay.from_predictions(images, range(4), image_shape=image_shape)
    assert shown.images.shape == expected
    assert shown.ax_.shape == (2, 2)  # no image twice
    if len(expected) == 4:
        drawn = shown.ax_[0, 0].images[0].get_array()
        assert drawn.min() >= 0
        assert drawn.max() <= 1


def draw_baselines():
    for name, draw in PICTURES.items():
        with matplotlib.style.context(STYLE):
            save_without_text(draw().figure_, BASELINES / f"{name}.png")


if __name__ == "__main__":
    draw_baselines()
