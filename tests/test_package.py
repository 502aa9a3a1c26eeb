"""The package as a whole: imports and names."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import sklearn_quam

MODULES = ["sklearn_quam"] + [
    f"sklearn_quam.{info.name}"
    for info in pkgutil.iter_modules(sklearn_quam.__path__)
    if not info.name.startswith("_") and info.name not in ("base", "baselines", "quam")
]


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


def test_public_names_exist_and_are_sorted():
    for module in map(importlib.import_module, MODULES):
        assert sorted(module.__all__) == module.__all__, module
        assert all(hasattr(module, name) for name in module.__all__), module
