"""Data of any kind: the same rows give the same numbers, whatever holds them."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch.helper import SliceDataset, SliceDict
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from sklearn_quam import NaturalSearch, QUAMClassifier, ReferenceClassifier
from tests.test_contract import FEW

RANDOM = np.random.default_rng(0)
N_ROWS = 24
# Halves and small numbers: half precision holds them exactly.
X = RANDOM.integers(-4, 5, size=(N_ROWS, 4)) / 2.0
Y = np.arange(N_ROWS) % 3
# A quick search, and one that looks at training rows.
QUICK = NaturalSearch(n_steps=2, n_rows=8)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def fitted(x, y=Y, network=None, kind=QUAMClassifier, **arguments):
    if kind is QUAMClassifier:
        arguments.setdefault("search", QUICK)
    network = mlp() if network is None else network
    return kind(network, random_state=0, **arguments).fit(x, y)


def uncertainties(est, x):
    return np.stack(est.predict_uncertainty(x))


@pytest.fixture(scope="module")
def plain():
    """Return a fitted estimator, and what it says about the rows as a plain array."""
    est = fitted(X)
    return est, uncertainties(est, X)


# -- layouts of arrays ---------------------------------------------------------------------


def as_tensor(x):
    return torch.tensor(np.array(x, dtype=float))


LAYOUTS = {
    "reversed": lambda x: x[::-1].copy()[::-1],
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
    "broadcast": lambda x: np.broadcast_to(x[None], (2, *x.shape))[1],
    "float16": lambda x: x.astype(np.float16),
    "longdouble": lambda x: x.astype(np.longdouble),
    "object": lambda x: x.astype(object),
    "matrix of lists": lambda x: x.tolist(),
    "frame": pd.DataFrame,
    "Float64 frame": lambda x: pd.DataFrame(x).astype("Float64"),
    "mixed frame": lambda x: pd.DataFrame(x).astype({0: "float32", 1: "Float64"}),
    "tensor": as_tensor,
    "bfloat16 tensor": lambda x: as_tensor(x).bfloat16(),
    "transposed tensor": lambda x: as_tensor(x.T).T,
    "tensor with gradient": lambda x: as_tensor(x).requires_grad_(),
}


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(sorted(LAYOUTS)))
def test_the_layout_of_an_array_does_not_matter(plain, first, second):
    est, expected = plain

    def laid_out(x):
        once = LAYOUTS[first](x)
        is_plain = isinstance(once, np.ndarray) and once.dtype != object
        return LAYOUTS[second](once) if is_plain else once

    np.testing.assert_array_equal(uncertainties(est, laid_out(X)), expected)


@pytest.mark.parametrize("layout", ["byte-swapped", "object", "mixed frame", "bfloat16 tensor"])
def test_an_estimator_is_fitted_to_any_layout(plain, layout):
    est = fitted(LAYOUTS[layout](X))
    np.testing.assert_array_equal(uncertainties(est, X), plain[1])


@pytest.mark.parametrize(
    "y",
    [
        Y[::-1].copy()[::-1],
        Y.astype(Y.dtype.newbyteorder()),
        pd.Series(Y, dtype="Int64"),
        pd.Series(Y, dtype="category"),
        torch.tensor(Y),
        Y.astype(np.int8),
        Y.tolist(),
    ],
    ids=lambda y: f"{type(y).__name__}, {getattr(y, 'dtype', '')}",
)
def test_the_layout_of_targets_does_not_matter(plain, y):
    np.testing.assert_array_equal(uncertainties(fitted(X, y), X), plain[1])


def test_masked_arrays_are_refused_with_what_to_do(plain):
    masked = np.ma.masked_array(X, mask=X > 1)
    for call in (lambda: fitted(masked), lambda: uncertainties(plain[0], masked)):
        with pytest.raises(ValueError, match=r"X is a masked array.*filled"):
            call()
    with pytest.raises(ValueError, match=r"y is a masked array.*filled"):
        fitted(X, np.ma.masked_array(Y, mask=Y > 1))


# -- several inputs ------------------------------------------------------------------------


class TwoInputs(nn.Module):
    """A text and a table: indices, a mask, and numbers, with an option that nobody passes."""

    def __init__(self, n_out=3):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(7, 5)
        self.drop = nn.Dropout(0.2)
        self.body = nn.Linear(7, 6)
        self.head = nn.Linear(6, n_out)

    def forward(self, ids, mask, table, scale=None):
        words = self.words(ids) * mask[..., None]
        text = words.sum(dim=1) / mask.sum(dim=1, keepdim=True)
        values = torch.cat([text, table], dim=1)
        if scale is not None:
            values = values * scale
        return self.head(self.drop(torch.relu(self.body(values))))


IDS = RANDOM.integers(0, 7, size=(N_ROWS, 4))
MASK = (np.arange(4) <= RANDOM.integers(0, 4, size=(N_ROWS, 1))).astype(int)
TABLE = RANDOM.normal(size=(N_ROWS, 2))
PARTS = {"ids": IDS, "mask": MASK, "table": TABLE}
VALUES = np.stack([IDS[:, 0] + TABLE[:, 0], TABLE[:, 1]], axis=1)


def some(parts, rows):
    return {name: part[rows] for name, part in parts.items()}


CONTAINERS = {
    "dict": lambda parts: parts,
    "dict in another order": lambda parts: dict(reversed(parts.items())),
    "tensors": lambda parts: {name: torch.as_tensor(part) for name, part in parts.items()},
    "SliceDict": lambda parts: SliceDict(**parts),
    "tuple": lambda parts: tuple(parts.values()),
    "list": lambda parts: list(parts.values()),
    "layouts": lambda parts: tuple(p[::-1].copy()[::-1] for p in parts.values()),
    "TensorDataset": lambda parts: TensorDataset(*map(torch.as_tensor, parts.values())),
    "dataset of dicts": lambda parts: Items(parts),
}


class Items(Dataset):
    """Items by number: named inputs, or a pair with the target."""

    def __init__(self, inputs, targets=None):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        whole = self.inputs
        return len(next(iter(whole.values()))) if isinstance(whole, dict) else len(whole)

    def __getitem__(self, number):
        if isinstance(self.inputs, dict):
            item = {name: part[number] for name, part in self.inputs.items()}
        else:
            item = self.inputs[number]
        return item if self.targets is None else (item, self.targets[number])


@pytest.mark.parametrize("method", FEW, ids=lambda m: m.name)
def test_every_method_takes_several_inputs(method):
    classifier = method.kind._task == "classifier"
    network = TwoInputs(3 if classifier else 2)
    arguments = method.arguments
    arguments = arguments(network) if callable(arguments) else arguments
    est = method.kind(network, random_state=0, **arguments).fit(PARTS, Y if classifier else VALUES)
    whole = uncertainties(est, PARTS)
    assert whole.shape == (3, N_ROWS)
    assert np.isfinite(whole).all()
    rows = slice(5, 9)
    np.testing.assert_allclose(
        uncertainties(est, some(PARTS, rows)), whole[:, rows], rtol=1e-4, atol=1e-6
    )
    again = pickle.loads(pickle.dumps(est))
    np.testing.assert_array_equal(uncertainties(again, PARTS), whole)
    assert not hasattr(est, "n_features_in_")


@pytest.fixture(scope="module")
def expected():
    est = fitted(PARTS, network=TwoInputs())
    return est.predict_proba(PARTS), uncertainties(est, PARTS)


@pytest.mark.parametrize("asked", CONTAINERS)
def test_all_containers_of_the_same_inputs_say_the_same(asked, expected):
    names = "dict" in asked.lower() or asked == "tensors"
    est = fitted(PARTS if names else tuple(PARTS.values()), network=TwoInputs())
    X = CONTAINERS[asked](PARTS)
    np.testing.assert_array_equal(est.predict_proba(X), expected[0])
    np.testing.assert_array_equal(uncertainties(est, X), expected[1])
    if asked != "TensorDataset":  # whose last tensor is the target
        est = fitted(X, network=TwoInputs())
        np.testing.assert_allclose(uncertainties(est, X), expected[1], rtol=1e-6)


def test_what_is_wrong_with_several_inputs_is_said():
    est = fitted(PARTS, network=TwoInputs())
    with pytest.raises(ValueError, match=r"different numbers of rows.*'ids': 24.*'table': 5"):
        est.predict({**PARTS, "table": TABLE[:5]})
    with pytest.raises(ValueError, match=r"inputs named \['ids', 'mask'\].*fitted with named"):
        est.predict({"ids": IDS, "mask": MASK})
    with pytest.raises(ValueError, match="without names"):
        est.predict((IDS, MASK, TABLE))
    with pytest.raises(ValueError, match="contains NaN"):
        est.predict({**PARTS, "table": np.where(TABLE > 0, TABLE, np.nan)})
    with pytest.raises(ValueError, match=r"'ids'.*masked array"):
        est.predict({**PARTS, "ids": np.ma.masked_array(IDS)})
    with pytest.raises(ValueError, match="0 sample"):
        est.predict(some(PARTS, slice(0, 0)))
    with pytest.raises(ValueError, match="array of numbers"):
        est.predict({**PARTS, "table": TABLE.astype(str)})
    with pytest.raises(ValueError, match="inconsistent numbers"):
        fitted(PARTS, Y[:5], TwoInputs())
    with pytest.raises(TypeError, match="single table"):
        ReferenceClassifier(LogisticRegression().fit(X, Y)).fit((X, X), Y)
    with pytest.raises(ValueError, match="cannot process 2 inputs"):
        fitted((X, X))


# -- data sets -----------------------------------------------------------------------------


class Walk(IterableDataset):
    def __iter__(self):
        return iter(X)


def tensor(values):
    return torch.tensor(values, dtype=torch.float32)


SETS = {
    "TensorDataset": TensorDataset(tensor(X), torch.tensor(Y)),
    "items": Items(tensor(X), Y),
    "arrays": Items(X, Y),
    "Subset": Subset(Items(np.repeat(X, 2, axis=0), np.repeat(Y, 2)), range(0, 2 * N_ROWS, 2)),
    "loader": DataLoader(TensorDataset(tensor(X), torch.tensor(Y)), batch_size=5),
    "shuffling loader": DataLoader(TensorDataset(tensor(X), torch.tensor(Y)), shuffle=True),
    "slices": SliceDataset(Items(tensor(X), Y)),
}


@pytest.mark.parametrize("kind", SETS)
def test_data_sets_bring_their_targets(kind, plain):
    # Those of skorch have a target of their own.
    est = fitted(SETS[kind], Y if kind == "slices" else None)
    assert est.n_features_in_ == 4
    np.testing.assert_array_equal(uncertainties(est, X), plain[1])
    np.testing.assert_array_equal(uncertainties(plain[0], SETS[kind]), plain[1])


def test_data_sets_without_targets(plain):
    for rows in (TensorDataset(tensor(X)), Items(tensor(X))):
        np.testing.assert_array_equal(uncertainties(plain[0], rows), plain[1])
        np.testing.assert_array_equal(uncertainties(fitted(rows, Y), X), plain[1])
        with pytest.raises(ValueError, match="y is None, and the items"):
            fitted(rows, None)


class Augmented(Items):
    def __getitem__(self, number):
        return super().__getitem__(number) + torch.rand(4)


def test_data_that_cannot_be_read_again_are_refused(plain):
    with pytest.raises(ValueError, match="augmentation"):
        plain[0].predict(Augmented(tensor(X)))
    with pytest.raises(TypeError, match="walked through"):
        plain[0].predict(Walk())
    loader = DataLoader(SETS["items"], sampler=torch.utils.data.SubsetRandomSampler([1, 2]))
    with pytest.raises(TypeError, match="Subset"):
        plain[0].predict(loader)
    with pytest.raises(ValueError, match="features"):
        plain[0].predict(TensorDataset(tensor(X[:, :3])))


# -- on disk, and elsewhere ----------------------------------------------------------------


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return np.load(tmp_path / "x.npy", mmap_mode="r")


@pytest.mark.parametrize("network", ["module", "pipeline"])
def test_mapped_arrays(mapped, network):
    net = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    net = mlp() if network == "module" else net
    est = fitted(X, network=net)
    want = uncertainties(est, X)
    np.testing.assert_array_equal(uncertainties(est, mapped), want)
    np.testing.assert_array_equal(uncertainties(fitted(mapped, network=net), mapped), want)
    np.testing.assert_array_equal(uncertainties(est, mapped[::-1]), uncertainties(est, X[::-1]))
    bad = np.array(mapped)
    bad[-1, 0] = np.nan
    np.save(mapped.filename, bad)
    with pytest.raises(ValueError, match="NaN"):
        est.predict(np.load(mapped.filename, mmap_mode="r"))


def test_dask_arrays_are_computed_in_chunks(plain):
    dask = pytest.importorskip("dask.array")
    x = dask.from_array(X, chunks=(5, 4))
    est = fitted(x)
    np.testing.assert_array_equal(uncertainties(est, x), plain[1])
    np.testing.assert_array_equal(uncertainties(est, X), plain[1])
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        est.predict(x[x[:, 0] > 0])


class Watched(Dataset):
    """Counts how many rows are held at once, as arrays of its own."""

    largest = 0

    def __init__(self, n_rows):
        self.n_rows = n_rows

    def __len__(self):
        return self.n_rows

    def __getitems__(self, numbers):
        Watched.largest = max(Watched.largest, len(numbers))
        return [torch.full((4,), float(number % 7)) for number in numbers]

    def __getitem__(self, number):
        return torch.full((4,), float(number % 7))


def test_data_are_read_in_chunks():
    n_rows = 10_000
    est = ReferenceClassifier(mlp()).fit(Watched(n_rows), np.arange(n_rows) % 3)
    est.predict_uncertainty(Watched(n_rows))
    assert 1 < Watched.largest < n_rows


# -- what is kept --------------------------------------------------------------------------


def size(est):
    return len(pickle.dumps(est, protocol=5))


def test_nothing_is_stored_twice():
    rows = RANDOM.normal(size=(2000, 50)).astype(np.float32)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(50, 4), nn.ReLU(), nn.Linear(4, 3))
    est = fitted(rows, np.arange(2000) % 3, network)
    once = size(est)
    assert once < 1.5 * rows.nbytes
    again = pickle.loads(pickle.dumps(est, protocol=5))
    assert size(again) < 1.01 * once
    assert size(copy.deepcopy(est)) < 1.01 * once
    np.testing.assert_array_equal(uncertainties(again, rows[:3]), uncertainties(est, rows[:3]))
