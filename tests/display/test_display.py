"""Displays: what they keep, what they draw, and how it looks.

``python -m tests.display.test_display`` draws the pictures in ``baseline_images`` again, and writes
down what they hold.
"""

import ast
import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_quam import (
    PenaltySearch,
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
    SearchTraceDisplay,
    SimplexDisplay,
    UncertainSamplesDisplay,
    UncertaintyHistogramDisplay,
    UncertaintyMapDisplay,
)
from sklearn_quam.metrics import accuracy_rejection_auc, accuracy_rejection_curve
from sklearn_quam.model_selection import RejectOptionClassifier
from sklearn_quam.ood import EnergyDetector

matplotlib = pytest.importorskip("matplotlib")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.collections import (  # noqa: E402
    LineCollection,
    PathCollection,
    PolyCollection,
    QuadMesh,
)
from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.contour import ContourSet  # noqa: E402
from matplotlib.testing.compare import compare_images  # noqa: E402
from matplotlib.ticker import NullFormatter  # noqa: E402

BASELINES = Path(__file__).parent / "baseline_images"
HELD = BASELINES / "structure.json"
STYLE = ["default", {"font.family": "DejaVu Sans", "font.size": 10, "savefig.dpi": 50}]

DISPLAYS = [getattr(display, name) for name in display.__all__]
N_STEPS = 6
SHORT = {"search": PenaltySearch(n_steps=N_STEPS), "random_state": 0}
_rng = np.random.default_rng(0)
PLANE = _rng.normal(size=(60, 2))
WORDS = np.array(["cat", "dog", "owl"])
LABELS = WORDS[np.digitize(PLANE[:, 0], [-0.5, 0.5])]
TARGET = PLANE[:, 0] + 0.1 * _rng.normal(size=60)


@pytest.fixture(autouse=True)
def _style():
    with matplotlib.style.context(STYLE):
        yield
    plt.close("all")


@cache
def classifier(n_features=2, setting="given"):
    X = np.tile(PLANE, 4)[:, :n_features]
    net = LogisticRegression().fit(X, LABELS)
    return QUAMClassifier(net, setting=setting, **SHORT).fit(X, LABELS)


@cache
def regressor(n_features=1, measure="entropy"):
    X = PLANE[:, :n_features]
    net = LinearRegression().fit(X, TARGET)
    return QUAMRegressor(net, measure=measure, **SHORT).fit(X, TARGET)


def legend_texts(ax):
    legend = ax.get_legend()
    return [text.get_text() for text in legend.get_texts()] + [legend.get_title().get_text()]


# -- arrays that nothing is trained for ----------------------------------------------------


def draw_map(ax=None, **kwargs):
    xx0, xx1 = np.meshgrid(np.linspace(-2, 2, 21), np.linspace(-2, 2, 21))
    logits = np.stack([xx0, xx1, -xx0 - xx1], axis=-1).reshape(-1, 3)
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    aleatoric = -(proba * np.log(proba)).sum(axis=1)
    epistemic = 1e-3 + (xx0**2 + xx1**2).ravel() ** 2 / 20
    points = np.array([[1, -0.5], [1.2, 0.3], [-0.5, 1], [0.2, 1.4], [-1, -1], [-1.3, -0.4]])
    return UncertaintyMapDisplay.from_predictions(
        xx0,
        xx1,
        Uncertainty(aleatoric, epistemic, aleatoric + epistemic),
        proba=proba,
        X=points,
        y=WORDS[[0, 0, 1, 1, 2, 2]],
        ax=ax,
        **kwargs,
    )


def draw_histogram(ax=None, **kwargs):
    known = 10 ** np.sin(np.arange(80)) / 10
    unknown = 10 ** np.cos(np.arange(50) / 3) / 2
    return UncertaintyHistogramDisplay.from_predictions(known, unknown, ax=ax, **kwargs)


def draw_rejection(ax=None, level=0.8, **kwargs):
    correct = np.arange(40) % 5 > 0
    uncertainty = np.where(correct, np.sin(np.arange(40)), level)
    return AccuracyRejectionDisplay.from_predictions(correct, uncertainty, ax=ax, **kwargs)


def draw_regression(ax=None, **kwargs):
    x = np.linspace(-2, 2, 41)
    epistemic = 0.05 + 0.2 * x**2
    return RegressionUncertaintyDisplay.from_predictions(
        x,
        np.sin(2 * x),
        epistemic,
        np.hypot(epistemic, 0.3),
        x_train=x[12:30],
        y_train=np.sin(2 * x[12:30]) + 0.2 * np.cos(9 * x[12:30]),
        ax=ax,
        **kwargs,
    )


def draw_simplex(ax=None, **kwargs):
    way = np.linspace(0, 0.9, 12)[:, None]
    given = np.array([0.4, 0.35, 0.25])
    proba = np.concatenate([(1 - way) * given + way * corner for corner in np.eye(3)])
    return SimplexDisplay.from_predictions(
        proba,
        np.repeat(WORDS, 12),
        given,
        weights=np.tile(np.linspace(1, 0.1, 12), 3),
        classes=WORDS,
        ax=ax,
        **kwargs,
    )


def draw_bounds(ax=None, **kwargs):
    return ProbabilityBoundsDisplay.from_predictions(
        [0.6, 0.3, 0.1], [0.2, 0.1, 0.0], [0.9, 0.7, 0.3], labels=WORDS, slack=3.0, ax=ax, **kwargs
    )


def draw_traces(ax=None, **kwargs):
    steps = np.linspace(0, 1, 15)
    heights = [scale * steps for scale in (0.01, 0.5, 3.0)]
    costs = [0.3 * np.sin(np.pi * steps) * steps**power for power in (1, 2, 3)]
    return SearchTraceDisplay.from_predictions(heights, costs, WORDS, slack=0.01, ax=ax, **kwargs)


def draw_samples(ax=None, **kwargs):
    rows, columns = np.mgrid[:8, :8]
    images = np.array([np.sin(rows * k / 3) + np.cos(columns * k / 4) for k in range(1, 9)])
    return UncertainSamplesDisplay.from_predictions(
        images,
        np.array([3.0, 0.01, 0.2, 1.5, 0.4, 0.03, 12.0, 0.8]),
        WORDS[np.arange(8) % 3],
        [None if k % 2 else WORDS[(k + 1) % 3] for k in range(8)],
        n_images=3,
        ax=ax,
        **kwargs,
    )


DRAWN = {
    UncertaintyMapDisplay: draw_map,
    UncertaintyHistogramDisplay: draw_histogram,
    AccuracyRejectionDisplay: draw_rejection,
    RegressionUncertaintyDisplay: draw_regression,
    ProbabilityBoundsDisplay: draw_bounds,
    SimplexDisplay: draw_simplex,
    SearchTraceDisplay: draw_traces,
    UncertainSamplesDisplay: draw_samples,
}
ON_ONE_AXES = [draw for draw in DRAWN.values() if draw is not draw_samples]

PICTURES = {
    "map": draw_map,
    "map_panels": lambda: draw_map(component=["aleatoric", "epistemic"]),
    "map_log": lambda: draw_map(log=True, plot_method="pcolormesh", cmap="cividis"),
    "histogram": draw_histogram,
    "histogram_log": lambda: draw_histogram(log=True),
    "rejection": lambda: draw_rejection(draw_rejection(name="QUAM").ax_, 0.2, name="other"),
    "regression": draw_regression,
    "simplex": draw_simplex,
    "traces": draw_traces,
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


def line_structure(line):
    x, y = (np.asarray(values, float) for values in line.get_data())
    ends = [float(end(values)) for values in (x, y) for end in (np.min, np.max)] if len(x) else []
    style = [line.get_linestyle(), line.get_marker(), to_hex(line.get_color())]
    return {"n_points": len(x), "ends": ends, "style": style}


def collection_structure(collection):
    # Versions have subclasses of their own of these.
    kinds = (ContourSet, QuadMesh, PathCollection, LineCollection, PolyCollection)
    kind = next(kind.__name__ for kind in kinds if isinstance(collection, kind))
    return {"kind": kind, "n_paths": len(collection.get_paths())} | (
        {"n_points": len(collection.get_offsets())} if kind == "PathCollection" else {}
    )


def axes_structure(ax):
    legend = ax.get_legend()
    return {
        "lines": [line_structure(line) for line in ax.lines],
        "collections": [collection_structure(part) for part in ax.collections],
        "patches": [to_hex(patch.get_facecolor(), keep_alpha=True) for patch in ax.patches],
        "images": [[*image.get_array().shape, image.get_cmap().name] for image in ax.images],
        "texts": [text.get_text() for text in ax.texts],
        "labels": [ax.get_title(), ax.get_xlabel(), ax.get_ylabel()],
        "legend": [] if legend is None else legend_texts(ax),
        "scales": [ax.get_xscale(), ax.get_yscale()],
        "limits": [float(limit) for limit in (*ax.get_xlim(), *ax.get_ylim())],
    }


def structure(figure):
    """Return what a figure holds, as text and numbers that no version draws differently."""
    return {
        "texts": [text.get_text() for text in figure.texts],
        "n_legends": len(figure.legends),
        "axes": [axes_structure(ax) for ax in figure.axes],
    }


def differences(found, expected, where="figure"):
    """Return where two structures differ."""
    if isinstance(found, dict):
        if found.keys() != expected.keys():
            return [f"{where}: {list(found)}, not {list(expected)}"]
        pairs = [(f"{where}.{name}", found[name], expected[name]) for name in found]
    elif isinstance(found, list):
        if len(found) != len(expected):
            return [f"{where}: {len(found)} of them, not {len(expected)}"]
        pairs = [
            (f"{where}[{i}]", *both) for i, both in enumerate(zip(found, expected, strict=True))
        ]
    else:
        if isinstance(found, float):
            expected = pytest.approx(expected, rel=1e-6, abs=1e-9)
        return [] if found == expected else [f"{where}: {found}, not {expected}"]
    return [text for name, *both in pairs for text in differences(*both, name)]


def held():
    return json.loads(HELD.read_text(encoding="utf-8"))


def version(text):
    return text.split(".")[:2]


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_hold_what_they_did(name):
    assert not differences(structure(PICTURES[name]().figure_), held()["pictures"][name])


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_can_be_missing_from_a_picture_unnoticed(name):
    figure, removed = PICTURES[name]().figure_, 0
    for number, ax in enumerate(figure.axes):
        for kind in ("lines", "collections", "patches", "images", "texts"):
            for part in list(getattr(ax, kind)):
                part.remove()
                removed += 1
                n_left = len(getattr(ax, kind))
                told = f"figure.axes[{number}].{kind}: {n_left} of them, not "
                found = differences(structure(figure), held()["pictures"][name])
                assert any(text.startswith(told) for text in found)
    assert removed


def test_a_line_that_is_missing_changed_or_moved_is_noticed():
    expected = held()["pictures"]["rejection"]
    for change in (
        lambda line: line.remove(),
        lambda line: line.set_linestyle(":"),
        lambda line: line.set_ydata(0.99 * line.get_ydata()),
    ):
        figure = PICTURES["rejection"]().figure_
        assert not differences(structure(figure), expected)
        change(figure.axes[0].lines[-1])
        (first, *_) = differences(structure(figure), expected)
        assert first.startswith("figure.axes[0].lines")


# Versions smooth and resample differently, by more than a missing line makes: pixels are compared
# with those of the same version only.
@pytest.mark.parametrize("name", PICTURES)
def test_pictures_look_as_they_did(name, tmp_path):
    drawn_by = held()["matplotlib"]
    if version(matplotlib.__version__) != version(drawn_by):
        pytest.skip(f"the pictures were drawn by matplotlib {drawn_by}")
    path = tmp_path / f"{name}.png"
    save_without_text(PICTURES[name]().figure_, path)
    baseline = BASELINES / f"{name}.png"
    assert baseline.stat().st_size < 40_000
    assert compare_images(str(baseline), str(path), tol=1) is None


# -- what all displays promise -------------------------------------------------------------


@pytest.mark.parametrize("draw", ON_ONE_AXES)
def test_given_axes_are_used(draw):
    figure, (left, right) = plt.subplots(1, 2, layout="constrained")
    shown = draw(right)
    assert shown.ax_ is right
    assert shown.figure_ is figure
    assert not left.has_data()
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize("draw", DRAWN.values())
def test_a_display_can_be_drawn_again(draw):
    shown = draw()
    first = shown.figure_
    assert shown.plot() is shown
    assert shown.figure_ is not first


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


@pytest.mark.parametrize("kind", DISPLAYS)
def test_without_matplotlib_the_error_says_what_to_install(kind, monkeypatch):
    shown = DRAWN[kind]()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=rf"{kind.__name__}.plot needs matplotlib.*\[plots\]"):
        shown.plot()
    with pytest.raises(ImportError, match="from_predictions needs matplotlib"):
        DRAWN[kind]()
    # Before anything is computed: these arguments are nonsense.
    n_data = 2 if kind in (UncertaintyHistogramDisplay, AccuracyRejectionDisplay) else 1
    with pytest.raises(ImportError, match="from_estimator needs matplotlib"):
        kind.from_estimator(None, *[None] * n_data)


def test_importing_displays_does_not_import_matplotlib():
    for path in Path(display.__file__).parent.glob("*.py"):
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                assert " matplotlib" not in ast.unparse(statement), path


def calls_with(estimator, X):
    """Return a function for each display that asks an estimator about rows."""
    return {
        "map": lambda: UncertaintyMapDisplay.from_estimator(estimator, X, grid_resolution=3),
        "histogram": lambda: UncertaintyHistogramDisplay.from_estimator(estimator, X, X),
        "rejection": lambda: AccuracyRejectionDisplay.from_estimator(estimator, X, LABELS),
        "regression": lambda: RegressionUncertaintyDisplay.from_estimator(estimator, X),
        "simplex": lambda: SimplexDisplay.from_estimator(estimator, X[0]),
        "traces": lambda: SearchTraceDisplay.from_estimator(estimator, X[0]),
        "samples": lambda: UncertainSamplesDisplay.from_estimator(estimator, X, image_shape=(1, 2)),
    }


@pytest.mark.parametrize("name", calls_with(None, None))
def test_estimators_must_be_fitted_and_know_uncertainty(name):
    with pytest.raises(NotFittedError):
        calls_with(QUAMClassifier(LogisticRegression()), PLANE)[name]()
    with pytest.raises(TypeError, match="LogisticRegression has no "):
        calls_with(LogisticRegression().fit(PLANE, LABELS), PLANE)[name]()


@pytest.mark.parametrize("name", ["histogram", "rejection", "simplex", "traces"])
def test_a_wrong_number_of_features_is_refused(name):
    with pytest.raises(ValueError, match="2 features"):
        calls_with(classifier(), np.tile(PLANE, 2))[name]()


def test_a_pipeline_is_asked_with_its_own_features():
    pipeline = make_pipeline(StandardScaler(), QUAMClassifier(LogisticRegression(), **SHORT))
    X = 100 + 10 * PLANE
    pipeline.fit(X, LABELS)
    expected = pipeline[-1].predict_uncertainty(pipeline[:-1].transform(X)).epistemic
    shown = UncertaintyHistogramDisplay.from_estimator(pipeline, X, X + 50)
    np.testing.assert_allclose(shown.uncertainty_id, expected)
    trace = SearchTraceDisplay.from_estimator(pipeline, X[0]).divergence[0]
    np.testing.assert_allclose(
        trace, pipeline[-1].search_traces(pipeline[0].transform(X[:1]))[0][0]["divergence"]
    )


# -- maps ----------------------------------------------------------------------------------


def test_a_map_holds_the_estimators_answer_at_every_point():
    est = classifier()
    shown = UncertaintyMapDisplay.from_estimator(est, PLANE, LABELS, grid_resolution=4)
    room = 0.2 * np.ptp(PLANE, axis=0)
    low, high = PLANE.min(axis=0) - room, PLANE.max(axis=0) + room
    np.testing.assert_allclose(shown.xx0[0], np.linspace(low[0], high[0], 4))
    np.testing.assert_allclose(shown.xx1[:, 0], np.linspace(low[1], high[1], 4))
    grid = np.column_stack([shown.xx0.ravel(), shown.xx1.ravel()])
    expected = est.predict_uncertainty(grid)
    for part, wanted in zip(shown.uncertainty, expected, strict=True):
        np.testing.assert_allclose(part.ravel(), wanted)
    predicted = est.classes_[shown.lead.argmax(axis=0).ravel()]
    np.testing.assert_array_equal(predicted, est.predict(grid))
    assert (np.sort(shown.lead, axis=0)[:-1] <= 0).all()
    assert shown.colorbars_[0].ax.get_ylabel() == "epistemic uncertainty (nats)"
    assert legend_texts(shown.ax_) == [*WORDS, "decision boundary", ""]


def test_a_map_takes_limits_names_and_arguments_of_its_parts():
    X = pd.DataFrame(PLANE, columns=["length", "width"])
    net = LogisticRegression().fit(X, LABELS)
    est = ReferenceClassifier(net).fit(X, LABELS)
    shown = UncertaintyMapDisplay.from_estimator(
        est,
        X,
        component="total",
        grid_resolution=5,
        xlim=(0, 1),
        ylim=(-3, 3),
        ylabel="mine",
        plot_method="pcolormesh",
        cmap="magma",
        boundary_kwargs={"colors": "red"},
        scatter_kwargs={"s": 77},
    )
    assert (shown.ax_.get_xlabel(), shown.ax_.get_ylabel()) == ("length", "mine")
    assert shown.ax_.get_xlim() == (0, 1)
    assert shown.surfaces_[0].get_cmap().name == "magma"
    np.testing.assert_array_equal(shown.boundaries_[0].get_edgecolor(), [[1, 0, 0, 1]])
    scatter = shown.ax_.collections[-1]
    assert scatter.get_sizes() == [77]


@pytest.mark.parametrize("plot_method", ["contourf", "pcolormesh"])
def test_a_map_of_nothing_is_of_one_colour(plot_method):
    net = LogisticRegression().fit(PLANE, LABELS)
    est = ReferenceClassifier(net).fit(PLANE, LABELS)
    shown = UncertaintyMapDisplay.from_estimator(
        est, PLANE, grid_resolution=4, plot_method=plot_method
    )
    assert np.ptp(shown.uncertainty.epistemic) == 0
    assert shown.surfaces_[0].norm.vmax - shown.surfaces_[0].norm.vmin >= 0.9
    with pytest.raises(ValueError, match="log=True needs"):
        shown.plot(log=True)


def test_several_components_are_several_panels():
    components = ["total", "aleatoric", "epistemic"]
    shown = draw_map(component=components)
    assert shown.ax_.shape == (3,)
    labels = [bar.ax.get_ylabel().split()[0] for bar in shown.colorbars_]
    assert labels == components
    figure, axes = plt.subplots(1, 2)
    assert draw_map(axes, component=components[:2]).figure_ is figure
    with pytest.raises(ValueError, match=r"3 component\(s\) need as many axes; got 1"):
        draw_map(axes[0], component=components)


def test_the_boundary_follows_the_threshold():
    xx0, xx1 = np.meshgrid(np.linspace(0, 1, 11), [0.0, 1.0])
    second = xx0.ravel()
    shown = UncertaintyMapDisplay.from_predictions(
        xx0,
        xx1,
        [second] * 3,
        proba=np.column_stack([1 - second, second]),
        threshold=0.27,
    )
    np.testing.assert_allclose(shown.boundaries_[0].get_paths()[0].vertices[:, 0], 0.27)


def test_a_map_of_a_regressor_has_no_boundary():
    shown = UncertaintyMapDisplay.from_estimator(
        regressor(2, "variance"), PLANE, TARGET, grid_resolution=3
    )
    assert shown.lead is None
    assert shown.y is None
    assert shown.ax_.get_legend() is None
    assert shown.colorbars_[0].ax.get_ylabel() == "epistemic uncertainty (squared units of y)"


def test_errors_of_maps():
    with pytest.raises(ValueError, match="two features; got 4"):
        UncertaintyMapDisplay.from_estimator(classifier(4), np.tile(PLANE, 2))
    with pytest.raises(ValueError, match="component must be one of"):
        draw_map(component="both")
    with pytest.raises(ValueError, match="plot_method"):
        draw_map(plot_method="surface")
    with pytest.raises(ValueError, match="grid_resolution"):
        UncertaintyMapDisplay.from_estimator(classifier(), PLANE, grid_resolution=1)


# -- histograms and rejection --------------------------------------------------------------


def test_a_histogram_keeps_scores_and_says_how_well_they_separate():
    est, other = classifier(), PLANE[:20] + 5
    shown = UncertaintyHistogramDisplay.from_estimator(est, PLANE, other, component="total")
    np.testing.assert_allclose(shown.uncertainty_id, est.predict_uncertainty(PLANE).total)
    np.testing.assert_allclose(shown.uncertainty_ood, est.predict_uncertainty(other).total)
    score = np.concatenate([shown.uncertainty_id, shown.uncertainty_ood])
    assert shown.auroc == pytest.approx(roc_auc_score(np.arange(80) >= 60, score))
    assert shown.ax_.get_xlabel() == "total uncertainty (nats)"
    assert legend_texts(shown.ax_) == [
        "in distribution (60 rows)",
        "out of distribution (20 rows)",
        f"AUROC = {shown.auroc:.3f}",
    ]


@pytest.mark.parametrize("log", [False, True])
def test_bars_of_each_set_sum_to_one(log):
    values = np.array([0.0, 1e-5, 1e-2, 1.0])
    shown = UncertaintyHistogramDisplay.from_predictions(
        values, 10 * values, log=log, bins=7, histtype="bar"
    )
    assert len(shown.bins_) == 8
    for bars in shown.ax_.containers:
        assert sum(bar.get_height() for bar in bars) == pytest.approx(1)
    assert shown.ax_.get_xscale() == ("log" if log else "linear")


def test_errors_of_histograms():
    with pytest.raises(ValueError, match="log=True needs"):
        UncertaintyHistogramDisplay.from_predictions([-1.0, 1.0], [2.0], log=True)
    with pytest.raises(ValueError, match="uncertainty_ood contains NaN"):
        UncertaintyHistogramDisplay.from_predictions([1.0], [np.nan])
    with pytest.raises(ValueError, match="uncertainty_id must be of shape"):
        UncertaintyHistogramDisplay.from_predictions([[1.0]], [1.0])
    with pytest.raises(ValueError, match="component must be one of"):
        UncertaintyHistogramDisplay.from_estimator(classifier(), PLANE, PLANE, component="kl")


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
    names = [f"QUAMClassifier (area = {first.auc:.3f})", f"worst (area = {second.auc:.3f})", ""]
    assert legend_texts(first.ax_) == names
    with pytest.raises(ValueError, match="QUAMRegressor predicts numbers"):
        AccuracyRejectionDisplay.from_estimator(regressor(), PLANE[:, :1], TARGET)


# -- regression ----------------------------------------------------------------------------


@pytest.mark.parametrize("measure", ["entropy", "variance"])
def test_bands_are_standard_deviations_whatever_is_measured(measure):
    est = regressor(1, measure)
    shown = RegressionUncertaintyDisplay.from_estimator(
        est, PLANE[:, :1], TARGET, grid_resolution=7, xlim=(-1, 1), n_std=3, color="black"
    )
    assert est.measure == measure
    x = np.linspace(-1, 1, 7)[:, None]
    expected = regressor(1, "variance").predict_uncertainty(x)
    np.testing.assert_allclose(shown.mean, est.predict(x))
    np.testing.assert_allclose(shown.epistemic_std**2, expected.epistemic)
    np.testing.assert_allclose(shown.total_std**2, expected.total)
    edge = shown.bands_[0].get_paths()[0].vertices[:, 1].max()
    assert edge == pytest.approx((shown.mean + 3 * shown.total_std).max())
    assert shown.line_.get_color() == "black"
    assert (shown.ax_.get_xlabel(), shown.ax_.get_ylabel()) == ("feature 0", "y")
    assert "epistemic (±3 sd)" in legend_texts(shown.ax_)


def test_one_feature_of_several_moves_the_others_stay_at_their_median():
    X = pd.DataFrame(PLANE, columns=["length", "width"])
    y = pd.Series(TARGET, name="price")
    est = QUAMRegressor(LinearRegression().fit(X, TARGET), **SHORT).fit(X, TARGET)
    shown = RegressionUncertaintyDisplay.from_estimator(
        est, X, y, feature="width", grid_resolution=3
    )
    rows = pd.DataFrame({"length": X["length"].median(), "width": shown.x})
    np.testing.assert_allclose(shown.mean, est.predict(rows))
    assert (shown.ax_.get_xlabel(), shown.ax_.get_ylabel()) == ("width", "price")
    np.testing.assert_array_equal(shown.x_train, X["width"])
    with pytest.raises(ValueError, match="no feature 'height'"):
        RegressionUncertaintyDisplay.from_estimator(est, X, y, feature="height")
    with pytest.raises(ValueError, match="no feature 2"):
        RegressionUncertaintyDisplay.from_estimator(est, X, y, feature=2)


def test_rows_may_come_in_any_order():
    shown = RegressionUncertaintyDisplay.from_predictions([2, 0, 1], [5, 3, 4], [1, 1, 1], [2] * 3)
    np.testing.assert_array_equal(shown.x, [0, 1, 2])
    np.testing.assert_array_equal(shown.mean, [3, 4, 5])
    assert shown.x_train is None


def test_errors_of_regressions():
    with pytest.raises(ValueError, match="need a regressor; got QUAMClassifier"):
        RegressionUncertaintyDisplay.from_estimator(classifier(), PLANE)
    two = np.column_stack([TARGET, TARGET])
    est = QUAMRegressor(LinearRegression().fit(PLANE, two), **SHORT).fit(PLANE, two)
    with pytest.raises(ValueError, match="one output; this one has 2"):
        RegressionUncertaintyDisplay.from_estimator(est, PLANE)
    with pytest.raises(ValueError, match="go together"):
        RegressionUncertaintyDisplay.from_predictions([0], [0], [0], [0], x_train=[1])


# -- searches ------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["given", "expected"])
def test_a_simplex_shows_all_models_that_were_met(setting):
    est = classifier(setting=setting)
    shown = SimplexDisplay.from_estimator(est, PLANE[3], s=50)
    traces = est.search_traces(PLANE[3:4])[0]
    proba = np.concatenate([trace["prediction"] for trace in traces])
    np.testing.assert_allclose(shown.proba, proba)
    np.testing.assert_allclose(shown.given, classifier().predict_proba(PLANE[3:4])[0])
    np.testing.assert_array_equal(shown.targets, np.repeat(WORDS, N_STEPS + 1))
    np.testing.assert_allclose(shown.weights[0], 1)
    assert [text.get_text() for text in shown.ax_.texts] == list(WORDS)
    assert legend_texts(shown.ax_) == [*WORDS, "given network", "attacked class"]
    assert [points.get_sizes() for points in shown.points_] == [[50]] * 3


def test_a_simplex_shows_the_best_models():
    est = classifier()
    shown = SimplexDisplay.from_estimator(est, PLANE[3:4], models="best")
    models = est.adversarial_models(PLANE[3:4])[0]
    np.testing.assert_allclose(shown.proba, [model["prediction"] for model in models])
    with pytest.raises(ValueError, match="models must be"):
        SimplexDisplay.from_estimator(est, PLANE[3], models="worst")


def test_corners_are_corners():
    shown = SimplexDisplay.from_predictions(2 * np.eye(3), given=[1, 1, 1])
    height = np.sqrt(3) / 2
    np.testing.assert_allclose(
        shown.points_[0].get_offsets(), [[0, 0], [1, 0], [0.5, height]], atol=1e-12
    )
    np.testing.assert_allclose(shown.given_.get_offsets(), [[0.5, height / 3]])
    assert [text.get_text() for text in shown.ax_.texts] == ["0", "1", "2"]


def test_three_of_many_classes():
    y = np.digitize(PLANE[:, 0], [-1, 0, 1])
    est = QUAMClassifier(LogisticRegression().fit(PLANE, y), **SHORT).fit(PLANE, y)
    with pytest.raises(ValueError, match="the estimator knows 4"):
        SimplexDisplay.from_estimator(est, PLANE[0])
    with pytest.raises(ValueError, match="classes must be three of"):
        SimplexDisplay.from_estimator(est, PLANE[0], classes=[0, 1, 7])
    shown = SimplexDisplay.from_estimator(est, PLANE[0], classes=[3, 0, 1])
    given = est.predict_proba(PLANE[:1])[0][[3, 0, 1]]
    np.testing.assert_allclose(shown.given, given / given.sum())
    assert set(shown.targets) == {0, 1, 3}
    assert [text.get_text() for text in shown.ax_.texts] == ["3", "0", "1"]


def test_errors_of_simplices():
    with pytest.raises(ValueError, match="QUAMRegressor has none"):
        SimplexDisplay.from_estimator(regressor(), PLANE[0, :1])
    with pytest.raises(ValueError, match="proba must have three columns; got an array"):
        SimplexDisplay.from_predictions([[0.5, 0.5]])
    with pytest.raises(ValueError, match="proba must hold probabilities"):
        SimplexDisplay.from_predictions([[0.5, 0.7, -0.2]])
    with pytest.raises(ValueError, match="three corners; got 2"):
        SimplexDisplay.from_predictions([[1, 0, 0]], classes=["a", "b"])
    with pytest.raises(ValueError, match="a single row; got 2 rows"):
        SimplexDisplay.from_estimator(classifier(), PLANE[:2])


@pytest.mark.parametrize("slack", [None, 30.0])
def test_traces_of_a_row(slack):
    est = clone(classifier())
    if slack is not None:
        est.set_params(search=PenaltySearch(n_steps=N_STEPS, slack=slack))
    est.fit(PLANE, LABELS)
    shown = SearchTraceDisplay.from_estimator(est, PLANE[0], linewidth=4)
    traces = est.search_traces(PLANE[:1])[0]
    for number, trace in enumerate(traces):
        np.testing.assert_allclose(shown.divergence[number], trace["divergence"])
        np.testing.assert_allclose(shown.loss_increase[number], trace["loss_increase"])
        np.testing.assert_allclose(shown.lines_[number].get_ydata(), trace["divergence"])
    # Of the mean loss, as what is drawn; that of the estimator is that of all rows.
    assert est.slack_ == (10.0 if slack is None else slack)
    assert shown.slack == pytest.approx(est.slack_ / len(PLANE), rel=1e-12)
    np.testing.assert_allclose(shown.slack_.get_xdata(), shown.slack)
    assert shown.lines_[0].get_linewidth() == 4
    assert shown.ax_.get_ylabel() == "divergence (nats)"
    texts = [*WORDS, "start", "end", f"slack ({shown.slack:.2g})", "search towards"]
    assert legend_texts(shown.ax_) == texts


def test_a_row_of_a_frame_keeps_its_names():
    X = pd.DataFrame(PLANE, columns=["length", "width"])
    est = QUAMClassifier(LogisticRegression().fit(X, LABELS), **SHORT).fit(X, LABELS)
    shown = [SearchTraceDisplay.from_estimator(est, row) for row in (X.iloc[0], X.iloc[:1])]
    np.testing.assert_allclose(*[part.divergence for part in shown])


def test_traces_of_a_regressor_and_of_untargeted_searches():
    shown = SearchTraceDisplay.from_estimator(regressor(), [0.5])
    assert legend_texts(shown.ax_)[:2] == ["up", "down"]
    net = LogisticRegression().fit(PLANE, LABELS)
    search = PenaltySearch(n_steps=N_STEPS, targets="untargeted")
    est = QUAMClassifier(net, search=search, random_state=0).fit(PLANE, LABELS)
    shown = SearchTraceDisplay.from_estimator(est, PLANE[0])
    assert legend_texts(shown.ax_)[0] == "search"
    assert len(SimplexDisplay.from_estimator(est, PLANE[0]).points_) == 1


def test_scales_of_traces():
    steps = [np.arange(4.0)]
    assert draw_traces().ax_.get_xscale() == "symlog"
    assert SearchTraceDisplay.from_predictions(steps, steps, slack=1.0).ax_.get_xscale() == "linear"
    shown = SearchTraceDisplay.from_predictions(steps, steps, xscale="log", yscale="linear")
    assert (shown.ax_.get_xscale(), shown.ax_.get_yscale()) == ("log", "linear")
    with pytest.raises(ValueError, match="yscale must be"):
        shown.plot(yscale="cubic")


def test_broken_searches_are_drawn_as_far_as_they_went():
    shown = SearchTraceDisplay.from_predictions([[0, 1, np.nan, np.inf]], [[0, 2, 3, 4]])
    np.testing.assert_array_equal(shown.lines_[0].get_xdata(), [0, 2])
    with pytest.raises(ValueError, match="equal length; search 0"):
        SearchTraceDisplay.from_predictions([[0, 1]], [[0]])


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


def test_images_of_an_estimator():
    # Searches that care little about the loss: some of the models that disagree cost too much.
    search = PenaltySearch(n_steps=10, learning_rate=0.1, penalty=0.1, penalty_growth=1.0)
    est = clone(classifier(4)).set_params(search=search.set_params(slack=0.4 * len(PLANE)))
    est.fit(np.tile(PLANE, 2), LABELS)
    X = np.tile(PLANE, 2)[:10]
    shown = UncertainSamplesDisplay.from_estimator(est, X, n_images=2, cmap="gray_r")
    uncertainty, diagnostics = est.predict_uncertainty(X, return_diagnostics=True)
    np.testing.assert_allclose(shown.uncertainty, uncertainty.epistemic)
    np.testing.assert_array_equal(shown.labels, est.predict(X))
    assert all(rival is not None for rival in diagnostics.rival)
    assert 0 < diagnostics.feasible.sum() < 10
    np.testing.assert_array_equal(
        shown.rivals[diagnostics.feasible], diagnostics.rival[diagnostics.feasible]
    )
    assert all(rival is None for rival in shown.rivals[~diagnostics.feasible])
    assert shown.images.shape == (10, 2, 2)
    assert shown.ax_[0, 0].images[0].get_cmap().name == "gray_r"


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


def test_axes_of_images():
    _, axes = plt.subplots(2, 3)
    assert draw_samples(axes).ax_[1, 2] is axes[1, 2]
    figure, ax = plt.subplots()
    shown = draw_samples(ax)
    assert shown.figure_ is figure
    assert not ax.axison
    with pytest.raises(ValueError, match=r"axes of shape \(2, 3\)"):
        draw_samples(axes[:, :2])
    with pytest.raises(ValueError, match="cannot be divided"):
        draw_samples(plt.figure().add_axes((0, 0, 1, 1)))


def test_errors_of_images():
    with pytest.raises(ValueError, match="no square images: pass image_shape"):
        UncertainSamplesDisplay.from_predictions(np.zeros((4, 7)), range(4))
    with pytest.raises(ValueError, match="does not fit rows of shape"):
        UncertainSamplesDisplay.from_predictions(np.zeros((4, 7)), range(4), image_shape=(2, 3))
    with pytest.raises(ValueError, match="at most one axis of 1, 3 or 4"):
        UncertainSamplesDisplay.from_predictions(np.zeros((4, 5, 5, 5)), range(4))
    with pytest.raises(ValueError, match="at least two images"):
        UncertainSamplesDisplay.from_predictions(np.zeros((1, 4)), range(1))


def draw_baselines():
    held = {"matplotlib": matplotlib.__version__, "pictures": {}}
    for name, draw in PICTURES.items():
        with matplotlib.style.context(STYLE):
            figure = draw().figure_
            held["pictures"][name] = structure(figure)
            save_without_text(figure, BASELINES / f"{name}.png")
    HELD.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


# -- rows beyond the range, and other scales ------------------------------------------------------


BEYOND = np.array([0.1, 0.4, 1e300, 0.15, 1e300, 0.3])


def test_a_histogram_shows_rows_beyond_the_range_in_its_last_bar():
    for log in (False, True):
        shown = UncertaintyHistogramDisplay.from_predictions(BEYOND[:2], BEYOND, log=log, bins=2)
        np.testing.assert_allclose(shown.bins_[[0, -1]], [0.1, 0.4])
        assert "out of distribution (6 rows, 2 beyond range)" in legend_texts(shown.ax_)
        assert "in distribution (2 rows)" in legend_texts(shown.ax_)
        heights = [polygon.get_xy()[:, 1].max() for polygon in shown.ax_.patches]
        # 0.3, 0.4 and both that are beyond, of six.
        np.testing.assert_allclose(heights[-1], 4 / 6)


def test_a_map_hatches_what_is_beyond_the_range():
    xx0, xx1 = np.meshgrid(np.arange(3.0), np.arange(2.0))
    uncertainty = Uncertainty(np.zeros(6), BEYOND, BEYOND)
    shown = UncertaintyMapDisplay.from_predictions(xx0, xx1, uncertainty)
    assert shown.surfaces_[0].levels.max() < 1
    assert len(shown.beyond_) == 1
    assert "beyond range" in legend_texts(shown.ax_)
    finite = Uncertainty(np.zeros(6), np.arange(6.0), np.arange(6.0))
    assert not UncertaintyMapDisplay.from_predictions(xx0, xx1, finite).beyond_


def test_bands_end_where_the_range_ends():
    std = np.sqrt(BEYOND)
    mean = np.where(BEYOND >= 1e300, 1e20, 1.0)
    shown = RegressionUncertaintyDisplay.from_predictions(np.arange(6), mean, std, std)
    assert shown.ax_.get_ylim()[1] < 10
    assert np.isnan(shown.line_.get_ydata()).sum() == 2
    assert "beyond range" in legend_texts(shown.ax_)


def test_images_beyond_the_range_say_so():
    shown = UncertainSamplesDisplay.from_predictions(np.zeros((6, 4)), BEYOND, n_images=3)
    titles = [panel.get_title().strip() for panel in shown.ax_.flat]
    assert titles.count("beyond range") == 2


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.BeyondRangeWarning")
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_curves_extend_by_a_share_of_the_range_of_the_feature(scale):
    X = PLANE[:, :1] * scale
    est = ReferenceRegressor(LinearRegression().fit(X, TARGET)).fit(X, TARGET)
    shown = RegressionUncertaintyDisplay.from_estimator(est, X, TARGET, grid_resolution=5)
    room = 0.2 * np.ptp(X)
    np.testing.assert_allclose(shown.x[[0, -1]], [X.min() - room, X.max() + room])
    absolute = RegressionUncertaintyDisplay.from_estimator(est, X, eps=0.5, grid_resolution=5)
    np.testing.assert_allclose(absolute.x[0], X.min() - 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: UncertaintyMapDisplay.from_predictions([1.0], [1.0], np.zeros((3, 1))),
            "grids of the same shape",
        ),
        (
            lambda: UncertaintyMapDisplay.from_predictions([[1.0]], [[1.0]], [[1], [1, 2], [3]]),
            r"three arrays with 1 numbers each; got 1, 2, 1",
        ),
        (lambda: UncertaintyMapDisplay.from_estimator(classifier(), [1.0]), "must be a table"),
        (
            lambda: UncertaintyHistogramDisplay.from_predictions(["a"], [1.0]),
            "uncertainty_id must hold numbers",
        ),
        (
            lambda: UncertainSamplesDisplay.from_predictions([["a"], ["b"]], [1, 2]),
            "Images must be rows of numbers",
        ),
        (
            lambda: UncertainSamplesDisplay.from_predictions([[1], [2, 3]], [1, 2]),
            "images must have rows of the same length",
        ),
        (lambda: SearchTraceDisplay.from_predictions(None, [[1.0]]), "Pass both"),
        (lambda: SimplexDisplay.from_estimator(classifier(), 3.0), "must be a single row"),
        (lambda: SimplexDisplay.from_predictions([0.2, 0.3, 0.5]), "three columns"),
    ],
)
def test_wrong_arrays_get_a_useful_message(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.SeenRowsWarning")
@pytest.mark.parametrize("doubt", ["total", IsolationForest(n_estimators=5, random_state=0)])
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


if __name__ == "__main__":
    draw_baselines()


# -- detectors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["energy", "forest"])
def test_pictures_of_detectors(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = (X[:, 0] > 0).astype(int)
    if kind == "energy":
        net = MLPClassifier((8,), solver="lbfgs", max_iter=50, random_state=0).fit(X, y)
        detector = EnergyDetector(net).fit(X, y)
    else:
        detector = IsolationForest(n_estimators=5, random_state=0).fit(X)
    histogram = UncertaintyHistogramDisplay.from_estimator(detector, X, X + 5)
    np.testing.assert_array_equal(histogram.uncertainty_id, -detector.score_samples(X))
    assert histogram.ax_.get_xlabel() == "minus the score"
    shown = UncertaintyMapDisplay.from_estimator(detector, X, y, grid_resolution=5)
    grid = np.column_stack([shown.xx0.ravel(), shown.xx1.ravel()])
    expected = -detector.score_samples(grid).reshape(5, 5)
    np.testing.assert_array_equal(shown.uncertainty.epistemic, expected)
    assert shown.colorbars_[0].ax.get_ylabel() == "minus the score"
    assert (shown.lead is None) == (kind == "forest")
    assert len(shown.ax_.collections) > 1
    images = UncertainSamplesDisplay.from_estimator(detector, X, image_shape=(1, 2), n_images=2)
    assert (images.labels is None) == (kind == "forest")
    np.testing.assert_array_equal(images.uncertainty, -detector.score_samples(X))


@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.BeyondRangeWarning")
def test_absurd_rows_are_drawn():
    X = np.random.default_rng(0).normal(size=(60, 2))
    net = MLPClassifier((8,), solver="lbfgs", max_iter=50, random_state=0).fit(X, X[:, 0] > 0)
    detector = EnergyDetector(net).fit(X, X[:, 0] > 0)
    shown = UncertaintyHistogramDisplay.from_estimator(detector, X, np.vstack([X, 1e30 * X]))
    assert np.isfinite(shown.uncertainty_ood).all()
