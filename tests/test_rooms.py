"""The rooms of the package: data walks in one direction, and so do imports."""

import ast
from pathlib import Path

import pytest

import sklearn_quam

ROOT = Path(sklearn_quam.__file__).parent
# In the order in which data walks; a room imports from those before it only. What is not a room
# of its own comes after all of them.
ROOMS = ["_network", "_typing", "_curvature", "_search", "_posterior", "base", "baselines"]
ROOMS += ["quam", "metrics", "model_selection", "display", "__init__"]
# Modules of a room in the order in which they build on each other.
INSIDE = {
    "_network": ["predictions", "likelihood", "limits", "adapters", "training", "reference"]
    + ["parameters", "split", "chain", "executors", "free"],
    "_curvature": ["layouts", "scores", "structures", "layers", "measure", "prior"],
    "_search": ["targets", "problem", "steps", "penalty", "run", "sampling", "adversarial"]
    + ["traces"],
    "_posterior": ["measures", "results", "estimate", "accumulate", "fitted", "workers"],
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_back_to_where_data_comes_from(path):
    own = path.relative_to(ROOT).with_suffix("").parts
    for module in imports(path):
        if module[0] != own[0]:
            assert ROOMS.index(module[0]) < ROOMS.index(own[0]), f"{own} imports {module}"
        elif own[0] in INSIDE and own[1] != "__init__":
            order = INSIDE[own[0]]
            assert order.index(module[1]) < order.index(own[1]), f"{own} imports {module}"


def test_every_module_has_a_place():
    for room, order in INSIDE.items():
        found = {path.stem for path in (ROOT / room).glob("*.py")} - {"__init__"}
        assert found == set(order)
    assert {path.relative_to(ROOT).with_suffix("").parts[0] for path in FILES} == set(ROOMS)


def test_files_and_folders_stay_small():
    for path in FILES:
        assert len(path.read_text().splitlines()) <= MAX_LINES, path
    for folder in {path.parent for path in FILES}:
        assert len(list(folder.glob("*.py"))) <= MAX_FILES, folder


def test_the_kernel_knows_no_estimator():
    """Nothing in the four rooms takes an estimator of the package for granted."""
    for room in INSIDE:
        for path in (ROOT / room).glob("*.py"):
            assert "self._fitted" not in path.read_text(), path
