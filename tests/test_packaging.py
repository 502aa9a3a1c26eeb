"""What is written down twice, or shipped beside the code: versions, lower bounds, py.typed."""

import configparser
import re
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import sklearn_quam

ROOT = Path(__file__).parent.parent
# Extras that test-min installs: what the others bring are tools, not what users run.
EXTRAS = ["plots", "dask", "test"]


def text(name):
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    return path.read_text(encoding="utf-8")


def config():
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text("setup.cfg"))
    return parser


def requirements(value):
    lines = [line for line in value.split("\n") if line and not line.startswith("%(")]
    return [Requirement(line) for line in lines]


def pins(name):
    lines = [line for line in text(name).splitlines() if line and not line.startswith("#")]
    return {pin.name: pin.specifier for pin in map(Requirement, lines)}


def lower_bounds():
    parser = config()
    values = [parser["options"]["install_requires"]]
    values += [parser["options.extras_require"][extra] for extra in EXTRAS]
    found = [item for value in values for item in requirements(value)]
    return {
        item.name: Version(bound.version)
        for item in found
        for bound in item.specifier
        if bound.operator == ">="
    }


def test_lowest_versions_are_those_of_setup_cfg():
    lowest = {}
    for name, specifier in pins("constraints-min.txt").items():
        (pin,) = specifier
        assert pin.operator == "=="
        lowest[name] = Version(pin.version)
    assert lowest == lower_bounds()


def test_every_requirement_has_a_lower_bound():
    needed = requirements(config()["options"]["install_requires"])
    assert {item.name for item in needed} <= set(lower_bounds())


def test_lowest_versions_run_no_foreign_code():
    """Published holes (CVE-2025-32434, CVE-2024-34062) are closed in the lowest versions."""
    assert lower_bounds()["torch"] >= Version("2.6")
    assert lower_bounds()["tqdm"] >= Version("4.66.3")


def test_versions_of_the_project_environment_are_allowed():
    for name, specifier in pins("constraints.txt").items():
        for pin in specifier:
            # Of what only tests need there is no lower bound.
            if pin.operator == "==" and name in lower_bounds():
                assert Version(pin.version) >= lower_bounds()[name]


def test_lowest_python_is_the_same_everywhere():
    parser, project = config(), tomllib.loads(text("pyproject.toml"))
    lowest = parser["options"]["python_requires"].removeprefix(">=")
    classifiers = re.findall(r"Python :: (3\.\d+)", parser["metadata"]["classifiers"])
    assert min(classifiers, key=Version) == lowest
    assert project["tool"]["mypy"]["python_version"] == lowest
    assert project["tool"]["ruff"]["target-version"] == "py" + lowest.replace(".", "")


def test_install_page_names_the_lowest_versions():
    page = re.sub(r"\s+", " ", text("docs/install.rst"))
    for name, bound in lower_bounds().items():
        if name not in ("numpydoc", "pytest"):
            assert f"{name} {bound}" in page


def test_version_has_one_source():
    assert config()["metadata"]["version"] == "attr: sklearn_quam.__version__"
    assert str(Version(sklearn_quam.__version__)) == sklearn_quam.__version__


def test_citation_has_the_version_of_the_package():
    (cited,) = re.findall(r"^version: (.*)$", text("CITATION.cff"), re.MULTILINE)
    assert cited == sklearn_quam.__version__


def test_changelog_has_the_version_of_the_package():
    release = Version(sklearn_quam.__version__).base_version
    assert re.search(rf"^{re.escape(release)} \(.+\)\n-+$", text("CHANGELOG.rst"), re.MULTILINE)


def test_typing_marker_is_shipped():
    assert files("sklearn_quam").joinpath("py.typed").is_file()
    assert "py.typed" in config()["options.package_data"]["sklearn_quam"].split()
    assert "Typing :: Typed" in config()["metadata"]["classifiers"]
