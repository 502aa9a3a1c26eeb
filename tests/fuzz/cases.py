"""Data that users may pass in by mistake, and checks of the outcome.

``make test`` tries 15 cases of each test, ``make fuzz`` 1,000.
"""

import os
import traceback
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import sklearn
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import NotFittedError

import sklearn_quam

CASES = int(os.environ.get("FUZZ_CASES", "15"))
PACKAGE, SKLEARN = (str(Path(p.__file__).parent) for p in (sklearn_quam, sklearn))
# The same cases each time in "make test", others each time in "make fuzz".
fuzz = settings(
    max_examples=CASES,
    derandomize=CASES <= 15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(2**62), 2**62),
    st.sampled_from([0.0, 1e20, -9.97e36, 3e38, 1e300, np.nan, np.inf, -0.0, 1e-320]),
)
DTYPES = ["f4", "f8", "f2", "i8", "u1", "bool", "c8", "M8[s]", "O", "U3", ">f8", "g"]


@st.composite
def arrays(draw):
    """Return an array of any shape, type and content; many have four columns."""
    rows = draw(st.integers(0, 4))
    shape = draw(
        st.sampled_from([(rows, 4), (rows, 4), (rows, 4), (rows,), (rows, 3), (), (rows, 4, 2)])
    )
    size = int(np.prod(shape))
    values = draw(st.lists(NUMBERS, min_size=size, max_size=size))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        array = np.array(values, dtype=float).reshape(shape)
        return array.astype(draw(st.sampled_from(DTYPES)), casting="unsafe")


def as_tensor(array):
    try:
        return torch.tensor(array)
    except (TypeError, ValueError):
        return torch.zeros(array.shape)


def as_sparse(array):
    try:
        return sparse.csr_matrix(array)
    except (TypeError, ValueError):
        return array


def as_categories(array):
    try:
        return (pd.Series if array.ndim == 1 else pd.DataFrame)(array).astype("category")
    except (TypeError, ValueError, NotImplementedError):
        return array


def mixed(array):
    """Return a frame of numbers with a column of categories that are none."""
    if array.shape[1:] != (4,):
        return array
    kinds = pd.Series(["red", "green"] * len(array), dtype="category")[: len(array)]
    return pd.DataFrame(array, columns=list("abcd")).assign(a=kinds)


ODD = st.sampled_from(
    [
        None,
        3,
        "text",
        [],
        [[]],
        [[1, 2], [3]],
        [["a", "b", "c", "d"]],
        [[None, 1, 2, 3]],
        {"a": [1, 2]},
        object(),
        b"bytes",
        {1, 2},
        [{"a": 1}],
        [object()] * 4,
        torch.empty(2, 4, device="meta"),
        torch.zeros(2, 4).to_sparse(),
        torch.zeros(2, 4, dtype=torch.complex64),
        lambda: None,
    ]
)
WRAPS = st.sampled_from(
    [
        lambda a: a,
        lambda a: a,
        lambda a: a.tolist(),
        as_tensor,
        lambda a: pd.DataFrame(a) if a.ndim == 2 else a,
        lambda a: pd.DataFrame(a, columns=list("abcd")) if a.shape[1:] == (4,) else a,
        lambda a: a[::-1] if a.ndim else a,
        lambda a: np.asfortranarray(a),
        as_categories,
        mixed,
        as_sparse,
    ]
)
ANYTHING = st.one_of(ODD, st.builds(lambda wrap, a: wrap(a), WRAPS, arrays()))


def calmly(action):
    """Run something; let it refuse in our words only, and return what it says otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return action()
        except (ValueError, TypeError, NotFittedError) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            # An error from C code has no lines of its own: those of the package raise theirs.
            own = place.filename.startswith(PACKAGE) and str(place.line).startswith("raise")
            assert own or place.filename.startswith(SKLEARN), f"{place}: {error!r}"  # noqa: PT017
            assert str(error)  # noqa: PT017
            return None


def assert_no_nan(result):
    """Look at all numbers in whatever was returned."""
    if isinstance(result, dict):
        result = [value for key, value in result.items() if key != "state_dict"]
    if isinstance(result, (list, tuple)):
        for part in result:
            assert_no_nan(part)
    elif isinstance(result, (np.ndarray, float)) and np.asarray(result).dtype.kind == "f":
        assert not np.isnan(result).any()
