"""The package as a whole: imports, names, documentation."""

import importlib
import inspect
import pkgutil
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
}


MODULES = ["sklearn_quam"] + [
    f"sklearn_quam.{info.name}"
    for info in pkgutil.iter_modules(sklearn_quam.__path__)
    if not info.name.startswith("_") and info.name not in ("base", "baselines", "quam")
]


def public_names(module):
    return [f"{module}.{name}" for name in importlib.import_module(module).__all__]


def public_object(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


PUBLIC = [path for module in MODULES for path in public_names(module)]


def public_methods():
    for path in PUBLIC:
        if inspect.isclass(public_object(path)):
            for name, member in inspect.getmembers(public_object(path), callable):
                ours = inspect.getmodule(member) is not None and inspect.getmodule(
                    member
                ).__name__.startswith("sklearn_quam")
                if ours and not name.startswith("_") and not name.endswith("_request"):
                    yield f"{path}.{name}"


@pytest.mark.parametrize("path", [*PUBLIC, *public_methods()])
def test_docstrings_follow_numpydoc(path):
    errors = [(code, text) for code, text in validate(path)["errors"] if code not in IGNORED]
    assert not errors


@pytest.mark.parametrize("path", PUBLIC)
def test_every_public_name_has_an_example(path):
    assert ">>>" in public_object(path).__doc__


@pytest.mark.slow
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


@pytest.mark.parametrize("module", MODULES)
def test_public_names_exist_and_are_sorted(module):
    names = importlib.import_module(module).__all__
    assert sorted(names) == names
    assert all(hasattr(importlib.import_module(module), name) for name in names)
