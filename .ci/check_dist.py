"""Check what is inside the built sdist and wheel: python .ci/check_dist.py dist."""

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
# What an sdist must have so that the tests, the documentation and the commands run from it.
NEEDED = [
    "CHANGELOG.rst",
    "CITATION.cff",
    "LICENSE",
    "Makefile",
    "README.rst",
    "constraints-min.txt",
    "constraints.txt",
    "docs/conf.py",
    "docs/tour.rst",
    "pyproject.toml",
    "setup.cfg",
]
FOLDERS = ["benchmarks", "examples", "sklearn_quam", "tests"]


def only(folder, pattern):
    (path,) = Path(folder).glob(pattern)
    return path


def sources(folder):
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}


folder = sys.argv[1]
with zipfile.ZipFile(only(folder, "*.whl")) as archive:
    wheel = set(archive.namelist())
with tarfile.open(only(folder, "*.tar.gz")) as archive:
    sdist = {name.partition("/")[2] for name in archive.getnames()}

code = {name for name in wheel if ".dist-info/" not in name}
problems = {
    "not in the wheel": (sources("sklearn_quam") | {"sklearn_quam/py.typed"}) - code,
    "should not be in the wheel": code - sources("sklearn_quam") - {"sklearn_quam/py.typed"},
    "not in the sdist": set(NEEDED).union(*map(sources, FOLDERS)) - sdist,
    "should not be in the sdist": {n for n in sdist if "__pycache__" in n or n.endswith(".pyc")},
    "no license in the wheel": set()
    if any(name.endswith("licenses/LICENSE") for name in wheel)
    else {"LICENSE"},
}
for problem, names in problems.items():
    if names:
        sys.exit(f"{problem}: {', '.join(sorted(names))}")
print(f"wheel: {len(wheel)} files, sdist: {len(sdist)} files, nothing missing, nothing too much")
