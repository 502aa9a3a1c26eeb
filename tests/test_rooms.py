"""The rooms of the package: data walks in one direction, and so do imports."""

import ast
from pathlib import Path

import pytest

import sklearn_quam

# "make lint" runs these, "make test" does not.
pytestmark = pytest.mark.lint
ROOT = Path(sklearn_quam.__file__).parent
# In the order in which data walks; a room imports from those before it only. What is not a room
# of its own comes after all of them.
ROOMS = [
    "_arguments",
    "_documented",
    "_messages",
    "exceptions",
    "_storing",
    "_network",
    "_typing",
    "_curvature",
    "_search",
]
ROOMS += [
    "_posterior",
    "base",
    "baselines",
    "quam",
    "metrics",
    "ood",
    "model_selection",
    "multioutput",
    "display",
]
ROOMS += ["_loading", "__init__"]
# Modules of a room in the order in which they build on each other. A package within a room has one
# place in the order of the room, and an order of its own.
INSIDE = {
    "_storing": ["files", "schema"],
    "_network": ["predictions", "outputs", "wrapped", "likelihood", "limits", "inputs"]
    + ["adapters", "stored", "training", "reference", "cut", "parameters", "executors", "free"],
    "_network/inputs": ["rows", "items", "sources"],
    "_network/cut": ["layers", "running", "chain", "replayed", "split"],
    "_curvature": ["layouts", "layers", "scores", "structures", "measure", "prior"]
    + ["preconditioner", "influence"],
    "_search": ["needs", "targets", "searches", "problem", "natural", "penalty", "models", "rivals"]
    + ["found"],
    "_search/natural": ["paths", "walk", "chain", "gaussian", "general", "refine"]
    + ["linear", "engine", "arguments"],
    "_search/penalty": ["adam", "loop", "samplers", "engine", "arguments"],
    "_posterior": ["measures", "tables", "results", "estimate", "accumulate", "training_range"]
    + ["fitted", "workers", "checkpoint", "progress", "answering"],
}
MAX_LINES = 450
MAX_FILES = 12
FILES = sorted(ROOT.rglob("*.py"))


def imports(path):
    """Yield the modules of the package that a file imports, as tuples of names."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            named = tuple(node.module.split(".")) if node.module else ()
            yield base + named if named else (*base, node.names[0].name)


def test_imports_point_back_to_where_data_comes_from():
    for path in FILES:
        assert_points_back(path)


def assert_points_back(path):
    own = path.relative_to(ROOT).with_suffix("").parts
    for module in imports(path):
        # The innermost package that both are in; its own __init__ may import all of it.
        depth = next((i for i, name in enumerate(module) if name != own[i]), len(module))
        order = INSIDE.get("/".join(own[:depth])) if depth else ROOMS
        if order is not None and (depth == 0 or own[depth] != "__init__"):
            assert depth < len(module), f"{own} imports the package that it is in"
            before, after = order.index(module[depth]), order.index(own[depth])
            assert before < after, f"{own} imports {module}"


def test_every_module_has_a_place():
    for room, order in INSIDE.items():
        packages = {path.parent.name for path in (ROOT / room).glob("*/__init__.py")}
        assert all(f"{room}/{name}" in INSIDE for name in packages)
        found = {path.stem for path in (ROOT / room).glob("*.py")} - {"__init__"}
        assert found | packages == set(order)
    assert {path.relative_to(ROOT).with_suffix("").parts[0] for path in FILES} == set(ROOMS)


def test_files_and_folders_stay_small():
    for path in FILES:
        assert len(path.read_text().splitlines()) <= MAX_LINES, path
    for folder in {path.parent for path in FILES}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= MAX_FILES, folder


def test_the_kernel_knows_no_estimator():
    """Nothing in the four rooms takes an estimator of the package for granted."""
    for room in INSIDE:
        for path in (ROOT / room).glob("*.py"):
            assert "self._fitted" not in path.read_text(), path
