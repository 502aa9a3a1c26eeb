"""The package as a whole: imports, names, documentation."""

import inspect
import subprocess
import sys

import pytest
from numpydoc.validate import validate

import sklearn_quam

# Codes of numpydoc's checks that do not fit this project, with the reason.
IGNORED = {
    "GL01",  # the summary starts on the line of the quotes
    "ES01",  # a summary may say it all
    "SA01",  # no "See Also" needed
    "EX01",  # a class has an example; its methods need none of their own
    "RT02",  # names of return values are welcome
    "PR01",  # metadata routing adds undocumented set_*_request methods, checked by scikit-learn
    "GL08",
}


def public_objects():
    for name in sklearn_quam.__all__:
        yield f"sklearn_quam.{name}"
        for member, _ in inspect.getmembers(getattr(sklearn_quam, name), inspect.isfunction):
            if not member.startswith("_") and not member.endswith("_request"):
                yield f"sklearn_quam.{name}.{member}"


@pytest.mark.parametrize("name", list(public_objects()))
def test_docstrings_follow_numpydoc(name):
    owner = getattr(sklearn_quam, name.split(".")[1])
    member = getattr(owner, name.split(".")[2]) if name.count(".") == 2 else owner
    if not inspect.getmodule(member).__name__.startswith("sklearn_quam"):
        return
    errors = [(code, text) for code, text in validate(name)["errors"] if code not in IGNORED]
    assert not errors


@pytest.mark.parametrize("name", sklearn_quam.__all__)
def test_every_public_class_has_an_example(name):
    assert ">>>" in getattr(sklearn_quam, name).__doc__


def test_import_adds_nothing_heavy_to_what_scikit_learn_and_torch_import():
    heavy = ["matplotlib", "pandas", "laplace", "dask", "skorch"]
    code = (
        "import sys, sklearn.pipeline, torch; before = set(sys.modules); import sklearn_quam; "
        f"print([m for m in {heavy} if m in set(sys.modules) - before])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_public_names_exist_and_are_sorted():
    assert sorted(sklearn_quam.__all__) == sklearn_quam.__all__
    assert all(hasattr(sklearn_quam, name) for name in sklearn_quam.__all__)
