"""The table of networks in the documentation is the one that ``make test-networks`` checks."""

from pathlib import Path

from ..real.architectures import ARCHITECTURES, table

ROOT = Path(__file__).parents[2]


def test_the_documentation_has_the_table_that_is_tested():
    assert table() in (ROOT / "docs" / "guide" / "networks.rst").read_text(), table()


def test_the_readme_counts_them():
    packages = {one.package for one in ARCHITECTURES}
    assert len(packages) == 5
    readme = (ROOT / "README.rst").read_text()
    assert f"`{len(ARCHITECTURES)} networks <" in readme
    assert "of five packages are tested" in readme
