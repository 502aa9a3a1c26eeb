"""Tables of rows: picked by rows, printed in a few lines, labelled like the frame."""

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from sklearn_quam import Diagnostics, QUAMClassifier, Uncertainty
from sklearn_quam._posterior.tables import INFINITE


def table(n_rows, start=0.0):
    parts = np.arange(n_rows) + start, 10.0 * np.arange(n_rows)
    return Uncertainty(*parts, sum(parts))


@given(st.integers(0, 12), st.data())
def test_rows_are_those_of_each_column(n_rows, data):
    u = table(n_rows)
    number = st.integers(-n_rows, n_rows - 1) if n_rows else st.nothing()
    rows = data.draw(
        st.one_of(
            st.slices(n_rows),
            st.lists(st.booleans(), min_size=n_rows, max_size=n_rows).map(
                lambda picked: np.array(picked, dtype=bool)
            ),
            st.lists(number),
        )
    )
    expected = np.arange(n_rows)[np.asarray(rows, int) if isinstance(rows, list) else rows]
    found = u[rows]
    assert len(found) == len(expected)
    for own, whole in zip(found, u, strict=True):
        np.testing.assert_array_equal(own, whole[expected])


def test_a_table_is_three_arrays_too():
    u = table(4)
    aleatoric, epistemic, total = u
    assert (aleatoric, epistemic, total) == (u.aleatoric, u.epistemic, u.total)
    np.testing.assert_array_equal(np.asarray(u), np.column_stack([aleatoric, epistemic, total]))


@pytest.mark.parametrize("number", [0, 3, -1, -4])
def test_a_number_picks_a_single_row(number):
    assert table(4)[number].epistemic.tolist() == [table(4).epistemic[number]]


def test_what_picks_no_rows_is_refused():
    with pytest.raises(IndexError, match="There are 4 rows"):
        table(4)[4]
    with pytest.raises(TypeError, match="columns are attributes, such as aleatoric"):
        table(4)["epistemic"]


def test_a_few_rows_and_quantiles_are_printed():
    u = table(101)
    lines = repr(u).splitlines()
    assert lines[0] == "Uncertainty of 101 rows, with quantiles of all"
    assert lines[1].split() == ["aleatoric", "epistemic", "total"]
    assert [line.split()[0] for line in lines[2:8]] == ["0", "1", "2", "3", "4", "..."]
    assert [line.split() for line in lines[8:]] == [
        ["5", "%", "5", "50", "55"],
        ["50", "%", "50", "500", "550"],
        ["95", "%", "95", "950", "1.04e+03"],
    ]
    assert "quantiles" not in repr(u[:5])
    assert repr(u[:1]).startswith("Uncertainty of 1 row\n")
    infinite = Uncertainty(np.zeros(1), np.full(1, INFINITE), np.full(1, INFINITE))
    assert repr(infinite).splitlines()[-1].split() == ["0", "0", "infinite", "infinite"]


def test_html_has_the_same_cells_and_no_markup_of_users():
    u = table(2)._labelled(pd.Index(["<b>one", "two"]))
    html = u._repr_html_()
    assert "&lt;b&gt;one" in html
    assert "<b>" not in html
    assert html.count("<tr") == 3


@pytest.fixture(scope="module")
def asked():
    X, y = load_iris(return_X_y=True, as_frame=True)
    X.index = [f"flower {number}" for number in range(len(X))]
    est = QUAMClassifier(LogisticRegression(max_iter=1000).fit(X, y), search="linear").fit(X, y)
    some = X.iloc[40:60]
    return some, *est.predict_uncertainty(some, return_diagnostics=True)


def test_frames_keep_their_index(asked):
    X, u, diagnostics = asked
    assert X.join(u.to_frame())["epistemic"].notna().all()
    assert diagnostics.to_frame().index.equals(X.index)
    assert u[u.epistemic > 0].to_frame().index.equals(X.index[u.epistemic > 0])
    assert list(u.to_frame(index=range(20)).index) == list(range(20))
    assert "flower 40" in repr(u)
    kept = pickle.loads(pickle.dumps(u))
    assert kept.to_frame().equals(u.to_frame())


@pytest.mark.parametrize(
    "more",
    [
        ["standard_error"],
        ["rival", "rival_cost", "feasible", "n_steps"],
        ["standard_error", "r_hat"],
    ],
)
def test_frames_have_a_column_for_each_diagnostic(more):
    names = ["effective_sample_size", "n_diverged", "error", *more]
    columns = {name: np.array([k, k + 10]) for k, name in enumerate(names)}
    frame = Diagnostics(**columns).to_frame(index=["a", "b"])
    assert list(frame.columns) == names
    assert frame.loc["b"].tolist() == [k + 10 for k in range(len(names))]


def test_diagnostics_read_like_a_table(asked):
    _, _, diagnostics = asked
    assert len(diagnostics) == 20
    some = diagnostics[diagnostics.feasible]
    assert isinstance(some, Diagnostics)
    assert len(some) == diagnostics.feasible.sum()
    assert repr(diagnostics).splitlines()[1].split()[:2] == ["effective_sample_size", "n_diverged"]
    assert "<table" in diagnostics._repr_html_()
