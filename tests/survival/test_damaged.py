"""Files that were damaged or made up: refused with one error, or answered as if nothing was."""

import contextlib
import copy
import io
import json
import os
import pickle
import random
import tracemalloc

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from sklearn_quam import QUAMClassifier, ReferenceClassifier, load
from sklearn_quam._storing import files
from sklearn_quam.base._saving import Saved
from sklearn_quam.exceptions import UnreadableFileError

from .exploit import Runs, pickled, with_code
from .run import X_NEW, X, Y

NET = LogisticRegression().fit(X, Y)
ROWS = X_NEW[:2]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a fitted estimator, its file, and what it answers."""
    est = QUAMClassifier(NET, random_state=0).fit(X, Y)
    file = tmp_path_factory.mktemp("saved") / "est"
    est.save(file)
    return est, file.read_bytes(), np.stack(est.predict_uncertainty(ROWS))


def opened(content):
    """Return the table of a file, and its arrays as bytes."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def closed(table, data):
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


def signed(header, arrays):
    """Return a file that somebody has made up, with the digest that belongs to it."""
    file = io.BytesIO()
    files.write(file, header, arrays)
    return file.getvalue()


def loaded(content, folder):
    """Return what is loaded from a file, or None where it is refused; no other error is raised."""
    (folder / "est").write_bytes(content)
    try:
        return load(folder / "est", estimator=NET)
    except UnreadableFileError:
        return None


def leaves(tree, path=()):
    """Yield the places of all plain values of a tree."""
    if isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from leaves(tree[key], (*path, key))
    yield path


def changed(tree, path, value):
    if not path:
        return value
    duplicate = copy.deepcopy(tree)
    place = duplicate
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return duplicate


# -- no file runs code ---------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path):
    """Return a file that hostile code would write; unpickled, it does."""
    file = tmp_path / "victim"
    pickle.loads(pickled(file)[0])
    assert file.exists()
    file.unlink()
    return file


def test_load_runs_no_code(saved, victim, tmp_path):
    for content in pickled(victim):
        assert loaded(content, tmp_path) is None
    for content in with_code(saved[1], victim):
        loaded(content, tmp_path)
        assert not victim.exists()


def test_a_chunk_runs_no_code(victim, tmp_path):
    est = ReferenceClassifier(NET).fit(X, Y)
    folder = tmp_path / "run"
    expected = est.predict_uncertainty(ROWS, checkpoint=folder)
    (chunk,) = folder.iterdir()
    for content in [*pickled(victim), *with_code(chunk.read_bytes(), victim)]:
        chunk.write_bytes(content)
        with contextlib.suppress(ValueError):  # of another run, whose mark was overwritten
            found = est.predict_uncertainty(ROWS, checkpoint=folder)
            np.testing.assert_array_equal(found, expected)
        assert not victim.exists()


def test_skops_runs_no_code(victim, monkeypatch):
    skops = pytest.importorskip("skops.io")
    est = ReferenceClassifier(NET).fit(X, Y)
    tree = {"object": "builtins:exec", "arguments": [Runs(victim).code]}
    state = {**est.__getstate__(), "_fitted": {"tree": json.dumps(tree), "arrays": {}}}
    monkeypatch.setattr(Saved, "__getstate__", lambda _: state)
    text = skops.dumps(est)
    with pytest.raises(UnreadableFileError, match="not written by this package"):
        skops.loads(text, trusted=skops.get_untrusted_types(data=text))
    assert not victim.exists()


@pytest.mark.parametrize("fitted", [b"x", "x", [], (), np.zeros(9, np.uint8), np.array(["x"])])
def test_a_state_that_is_not_ours_is_refused(fitted):
    state = {**ReferenceClassifier(NET).fit(X, Y).__getstate__(), "_fitted": fitted}
    with pytest.raises(UnreadableFileError):
        ReferenceClassifier().__setstate__(state)


def test_names_of_a_file_are_looked_up_in_one_table_only(saved, tmp_path):
    header, arrays = files.read(io.BytesIO(saved[1]), len(saved[1]))
    for name in ("os:system", "BaseEstimator", "__class__", "LoRA", "CombinedDetector", None, []):
        assert loaded(signed({**header, "method": name}, arrays), tmp_path) is None
    for kind in (
        {"object": "os:system", "arguments": ["true"]},
        {"type": "subprocess:Popen"},
        {"_setattr__": "x"},
        {"__class__": "x"},
        {"same": "content.fitted"},
    ):
        for path in [("content", "fitted"), ("content", "fitted", "models"), ("content",)]:
            assert loaded(signed(changed(header, path, kind), arrays), tmp_path) is None


def test_a_pipe_is_not_waited_for(saved, tmp_path):
    os.mkfifo(tmp_path / "est")
    with pytest.raises(UnreadableFileError, match="no regular file"):
        load(tmp_path / "est", estimator=NET)


# -- what was damaged ----------------------------------------------------------------------


def damaged(content, seed, n_flips, n_cuts):
    """Yield files with flipped bits, and files that end too early or too late."""
    generator = random.Random(seed)
    for _ in range(n_flips):
        flipped = bytearray(content)
        for _ in range(generator.choice([1, 1, 3])):
            # Half of the files are the table.
            flipped[generator.randrange(len(flipped))] ^= 1 << generator.randrange(8)
        yield bytes(flipped)
    for _ in range(n_cuts):
        yield content[: generator.randrange(len(content))]
    yield content + b"\0"
    yield b""


def rewritten(content):
    """Yield files whose table or arrays say something else, without a digest for it."""
    table, data = opened(content)
    told = json.loads(table["__metadata__"]["content"])
    for path in leaves(told):
        for value in (None, True, -1, 2.5, "x"):
            text = json.dumps(changed(told, path, value))
            if text != json.dumps(told):
                yield closed(changed(table, ("__metadata__", "content"), text), data)
    for name, entry in table.items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        negated = bytes(byte ^ 0x80 for byte in data[start:stop])
        yield closed(table, data[:start] + negated + data[stop:])
        shape = entry["shape"][::-1] if len(entry["shape"]) > 1 else [*entry["shape"], 1]
        if shape != entry["shape"]:
            yield closed(changed(table, (name, "shape"), shape), data)
        for key, value in (
            ("dtype", "I32"),
            ("dtype", "object"),
            ("shape", [4_000_000_000]),
            ("shape", [-1]),
            ("shape", [True]),
            ("data_offsets", [0, 10**12]),
        ):
            if entry[key] != value:
                yield closed(changed(table, (name, key), value), data)
        others = {key: value for key, value in table.items() if key != name}
        yield closed(others, data)
        yield closed({**others, name: entry, "more": entry}, data)


@pytest.mark.parametrize("shape", [[0, 2**70], [2**62, 2**62, 0]])
def test_sizes_of_empty_arrays_are_checked(saved, shape, tmp_path):
    table, data = opened(saved[1])
    empty = {"dtype": "F64", "shape": shape, "data_offsets": [len(data)] * 2}
    (tmp_path / "est").write_bytes(closed({**table, "more": empty}, data))
    with pytest.raises(UnreadableFileError, match="no type or shape that is known"):
        load(tmp_path / "est", estimator=NET)


def test_damage_is_seen(saved, tmp_path):
    _, content, expected = saved
    cases = list(damaged(content, 0, 150, 40))
    rewritten_cases = list(rewritten(content))
    cases += random.Random(1).sample(rewritten_cases, min(200, len(rewritten_cases)))
    assert len(cases) > 300
    for case in cases:
        again = loaded(case, tmp_path)
        if again is not None:
            np.testing.assert_array_equal(np.stack(again.predict_uncertainty(ROWS)), expected)


# A forger writes the digest, too: such a file may say anything, but raises no other error.
VALUES = [None, True, 0, -1, 1e308, float("nan"), "x", [], {}, [0, 0], [9, None], {"same": "x"}]


def forged(content, seed, n_cases):
    header, arrays = files.read(io.BytesIO(content), len(content))
    generator, paths = random.Random(seed), list(leaves(header))
    for _ in range(n_cases):
        yield signed(changed(header, generator.choice(paths), generator.choice(VALUES)), arrays)
    for name, array in arrays.items():
        others = {key: value for key, value in arrays.items() if key != name}
        for made_up in (array[:0], array[None], array.flatten()[:-1], array.to(torch.bool)):
            yield signed(header, {**others, name: made_up})
        yield signed(header, others)
        yield signed(header, {**arrays, "more": array})
        if array.is_floating_point():
            yield signed(header, {**others, name: torch.full_like(array, torch.nan)})


def test_what_is_made_up_is_refused_or_loaded(saved, tmp_path):
    cases = list(forged(saved[1], 0, 100))
    refused = sum(loaded(case, tmp_path) is None for case in cases)
    assert refused > len(cases) // 2


@pytest.mark.parametrize("value", [True, 1, 1.0, 2.0, 99, "2", None])
def test_another_format_is_told(value, saved, tmp_path):
    header, arrays = files.read(io.BytesIO(saved[1]), len(saved[1]))
    (tmp_path / "est").write_bytes(signed({**header, "format": value}, arrays))
    known = type(value) is int
    words = "in a format that this version" if known else "was not written by save"
    with pytest.raises(UnreadableFileError, match=words):
        load(tmp_path / "est", estimator=NET)


@pytest.mark.parametrize(
    "text", ["[" * 10**5, "[" * 10**5 + "]" * 10**5, "1" * 5000, "nul", "\udcff"]
)
def test_odd_json_is_refused(text, tmp_path):
    data = text.encode(errors="surrogateescape")
    assert loaded(len(data).to_bytes(8, "little") + data, tmp_path) is None
    metadata = {"__metadata__": {"digest": "x", "content": "x"}}
    assert loaded(closed(metadata, b""), tmp_path) is None
    if text.isascii():
        table = {"digest": files._digest(text, {}).hexdigest(), "content": text}
        assert loaded(closed({"__metadata__": table}, b""), tmp_path) is None


def test_nothing_large_is_read_because_a_small_file_says_so(tmp_path):
    declared = {"dtype": "F32", "shape": [10**9], "data_offsets": [0, 4 * 10**9]}
    table = {"__metadata__": {"digest": "", "content": "{}"}, "a": declared}
    tracemalloc.start()
    assert loaded(closed(table, b"\0" * 100), tmp_path) is None
    assert loaded((2**40).to_bytes(8, "little") + b"{}", tmp_path) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_a_folder_and_a_missing_file(tmp_path):
    with pytest.raises(UnreadableFileError, match=f"'{tmp_path}' cannot be loaded: it is a folder"):
        load(tmp_path, estimator=NET)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none", estimator=NET)


def test_arguments_that_are_not_allowed_are_refused(saved, tmp_path):
    header, arrays = files.read(io.BytesIO(saved[1]), len(saved[1]))
    path = ("content", "arguments", "setting")
    number = header["content"]["arguments"]["setting"][0]
    assert loaded(signed(changed(header, path, [number, "given"]), arrays), tmp_path) is not None
    assert loaded(signed(changed(header, path, [number, "none"]), arrays), tmp_path) is None
