"""Files for a forge, an index and an archive: what they call exists, and they say the same."""

import configparser
import importlib
import re
from pathlib import Path

import pytest
import yaml

import sklearn_quam

ROOT = Path(sklearn_quam.__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
SOURCE = SETUP["metadata"]["url"]


def steps(path):
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        yield from job["steps"]


def test_there_are_workflows_for_tests_and_releases():
    assert [path.stem for path in WORKFLOWS] == ["ci", "release"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_targets_of_the_makefile(path):
    commands = [step["run"].split() for step in steps(path) if "run" in step]
    assert commands
    for command in commands:
        if command[:2] != ["choco", "install"]:
            assert command[0] == "make"
            assert command[1] in TARGETS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_commits(path):
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action) for action in used)


def test_ci_runs_on_all_versions_that_are_promised():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    promised = re.findall(r":: (3\.\d+)$", SETUP["metadata"]["classifiers"], re.MULTILINE)
    assert jobs["test"]["strategy"]["matrix"]["python"] == promised


def test_only_the_upload_of_a_release_may_ask_for_a_token():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == [
        "upload"
    ]
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_issue_forms_have_a_name_and_questions():
    forms = [p for p in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if p.stem != "config"]
    assert {p.stem for p in forms} == {"bug", "feature", "new_method", "new_detector"}
    for form in map(yaml.safe_load, (p.read_text() for p in forms)):
        assert form["name"]
        assert form["description"]
        assert any(question.get("validations", {}).get("required") for question in form["body"])


def test_the_conda_recipe_needs_what_the_package_needs():
    text = (ROOT / "conda/meta.yaml").read_text()
    run = text.partition("  run:\n")[2].partition("\ntest:")[0]
    found = dict(re.findall(r"- ([\w-]+) (>=[\d.]+)", run))
    needed = dict(
        re.findall(r"^([\w-]+)(>=[\d.]+)$", SETUP["options"]["install_requires"], re.MULTILINE)
    )
    needed["pytorch"] = needed.pop("torch")
    assert found == {"python": SETUP["options"]["python_requires"], **needed}


@pytest.mark.parametrize(
    "name",
    ["CITATION.cff", "conda/meta.yaml", "docs/conf.py", "paper/paper.md", "README.rst"],
)
def test_there_is_one_address(name):
    found = re.findall(r"https://github\.com/([\w-]+/[\w-]+)", (ROOT / name).read_text())
    assert found
    assert {f"https://github.com/{own}" for own in found} == {SOURCE}


def test_the_figures_of_the_paper_are_made_by_scripts():
    text = (ROOT / "paper/paper.md").read_text()
    figures = re.findall(r"!\[.*?\]\((.*?)\)", text, re.DOTALL)
    assert len(figures) == 2
    assert all((ROOT / "paper" / path).resolve().is_file() for path in figures)
    cited = set(re.findall(r"@(\w+)", text))
    written = set(
        re.findall(r"^@\w+\{(\w+),", (ROOT / "paper/paper.bib").read_text(), re.MULTILINE)
    )
    assert cited == written


@pytest.mark.parametrize(
    "module", ["", "display", "metrics", "model_selection", "multioutput", "ood"]
)
def test_the_api_reference_has_every_public_name(module):
    listed = (ROOT / "docs/api.rst").read_text().split()
    public = importlib.import_module(f"sklearn_quam.{module}".rstrip(".")).__all__
    names = {n for n in public if n not in ("base", "display", "exceptions", "metrics", "ood")}
    assert names - {"model_selection", "multioutput", "__version__"} <= set(listed)
