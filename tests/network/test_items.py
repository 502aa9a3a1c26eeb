"""Data sets of Hugging Face and torchvision, tokens, texts and paths: read, or refused in words."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from sklearn_quam import QUAMClassifier, ReferenceClassifier

from ..hugging_face import WORDS, Pads, Stream, Table, TextClassifier, Tokens, texts, trained
from ..networks import LABELS, X, dense

PARTS, Y = texts()
# As a tokenizer returns them without padding.
LENGTHS = PARTS["attention_mask"].sum(axis=1)
RAGGED = {
    name: [row[:length].tolist() for row, length in zip(part, LENGTHS, strict=True)]
    for name, part in PARTS.items()
}
SENTENCES = ["so it is"] * len(Y)


class Items(Dataset):
    """A data set of torch whose items are mappings with a target, as a Trainer takes them."""

    def __init__(self, name):
        self.name = name

    def __len__(self):
        return len(Y)

    def __getitem__(self, number):
        parts = {name: torch.tensor(part[number]) for name, part in PARTS.items()}
        return {**parts, self.name: torch.tensor(Y[number])}


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return trained(TextClassifier(), PARTS, Y)


def fitted(network, X, y, **options):
    return QUAMClassifier(network, random_state=0, **options).fit(X, y)


@pytest.fixture(scope="module")
def expected(network):
    """Return a fitted estimator, and what it says of the padded rows."""
    est = fitted(network, PARTS, Y)
    return est, np.asarray(est.predict_uncertainty(PARTS))


TABLE = Table({"text": SENTENCES, "label": Y, **PARTS})
SETS = {
    "datasets.Dataset": TABLE,
    "of ragged rows": DataLoader(Table({**RAGGED, "label": Y}), batch_size=7, collate_fn=Pads()),
    "items with labels": Items("labels"),
    "loader": DataLoader(Items("labels"), batch_size=5, shuffle=True),
    "some of a table": Subset(TABLE, range(len(Y))),
}


@pytest.mark.parametrize("kind", SETS)
def test_items_bring_their_targets_by_name(kind, network, expected):
    est = fitted(network, SETS[kind], None)
    np.testing.assert_array_equal(est.classes_, [0, 1, 2])
    tolerance = {"rtol": 1e-3, "atol": 1e-4}
    np.testing.assert_allclose(est.predict_uncertainty(SETS[kind]), expected[1], **tolerance)
    np.testing.assert_allclose(est.predict_uncertainty(PARTS), expected[1], **tolerance)
    by_hand = fitted(network, SETS[kind], Y)  # targets that are passed as y count
    np.testing.assert_allclose(by_hand.predict_uncertainty(PARTS), expected[1], **tolerance)


@pytest.mark.parametrize("kind", [dict, Tokens])
def test_what_a_tokenizer_returns(kind, network, expected):
    as_lists = kind({name: part.tolist() for name, part in PARTS.items()})
    np.testing.assert_array_equal(expected[0].predict_uncertainty(as_lists), expected[1])
    for rows in (kind(RAGGED), Table({**RAGGED, "label": Y})):
        with pytest.raises(ValueError, match=r"different lengths. Pad them: padding=True"):
            fitted(network, rows, Y)


@pytest.mark.parametrize("name", ["labels"])
def test_targets_among_the_inputs(name, network, expected):
    with pytest.raises(ValueError, match=rf"X holds '{name}', which are targets.*pass them as y"):
        fitted(network, {**PARTS, name: Y}, Y)
    with pytest.raises(ValueError, match="leave them out of X"):
        expected[0].predict({**PARTS, name: Y})


# -- names of classes ----------------------------------------------------------------------


@pytest.mark.parametrize("some", [slice(None), Y < 2], ids=["all classes", "two of three"])
@pytest.mark.filterwarnings("ignore::sklearn_quam.exceptions.MissingClassesWarning")
def test_columns_have_the_names_of_the_configuration(some, network, expected):
    parts = {name: part[some] for name, part in PARTS.items()}
    est = ReferenceClassifier(network).fit(parts, WORDS[Y[some]])
    np.testing.assert_array_equal(est.classes_, WORDS)
    proba = expected[0].predict_proba(PARTS)
    np.testing.assert_allclose(est.predict_proba(PARTS), proba, rtol=1e-5)
    np.testing.assert_array_equal(est.predict(PARTS), WORDS[proba.argmax(axis=1)])


class Folder(Dataset):
    """Has what torchvision.datasets.ImageFolder has."""

    classes = WORDS.tolist()

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        return torch.tensor(X[number]), int(LABELS[number])


@pytest.mark.parametrize("kind", ["folder", "subset", "table"])
def test_names_of_folders_are_classes(kind, network):
    if kind == "table":
        module = copy.deepcopy(network)
        del module.config
        data, plain = Table({"label": Y, **PARTS}, WORDS), (PARTS, Y)
    else:
        module, plain = dense(), (X, LABELS)
        data = Subset(Folder(), range(50)) if kind == "subset" else Folder()
    est = ReferenceClassifier(module).fit(data, None)
    np.testing.assert_array_equal(est.classes_, WORDS)
    numbers = ReferenceClassifier(module).fit(*plain).predict(data)
    np.testing.assert_array_equal(est.predict(data), WORDS[numbers])


# -- refused -------------------------------------------------------------------------------


class Walk(IterableDataset):
    """A stream that knows its length."""

    def __iter__(self):
        return iter(X)

    def __len__(self):
        return len(X)


@pytest.mark.parametrize(
    "stream", [Stream(), Walk(), DataLoader(Walk())], ids=["stream", "walk", "loader"]
)
def test_streams(stream):
    with pytest.raises(TypeError, match=r"only be walked through once.*one batch of the stream"):
        QUAMClassifier(dense()).fit(stream, LABELS)


@pytest.mark.parametrize("kind", [list, np.array, lambda x: np.array(x, dtype=object)])
def test_texts(kind):
    with pytest.raises(ValueError, match=r"X holds texts such as 'so it is'.*padding=True") as told:
        QUAMClassifier(dense()).fit(kind(SENTENCES), Y)
    assert len(str(told.value)) < 300


def test_a_list_of_mappings():
    rows = [{"a": row[:2], "b": row[2:]} for row in X]
    with pytest.raises(ValueError, match=r"items are mappings \(dict\).*one mapping of arrays"):
        QUAMClassifier(dense()).fit(rows, Y)


@pytest.mark.parametrize("path", ["images/1.JPG", Path("images/1")])
def test_paths(path):
    with pytest.raises(ValueError, match=r"paths such as 'images/1.*ImageFolder"):
        QUAMClassifier(dense()).fit([path] * len(Y), Y)
    est = ReferenceClassifier(dense()).fit(X, LABELS)
    with pytest.raises(ValueError, match="paths such as"):
        est.predict([path])
