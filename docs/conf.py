"""Configuration of the documentation."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import benchmark_tables  # noqa: E402
import figures  # noqa: E402

import sklearn_quam  # noqa: E402

# Examples run beside each other's threads badly: idle ones sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

project = "sklearn_quam"
author = "The sklearn_quam developers"
copyright = "2026, " + author
version = release = sklearn_quam.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "generated"]
html_title = project
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
# Pages without sections of their own leave their width to text and tables.
html_sidebars = {page.stem: [] for page in HERE.glob("*.rst")}
html_css_files = ["cards.css"]
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    # Install, quick start, guide, examples, API and results; the others are under "More".
    "header_links_before_dropdown": 6,
}
numpydoc_show_class_members = False
autodoc_typehints = "none"
sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"demo\.py|__init__\.py",
    "subsection_order": [
        "../examples/1_quickstart",
        "../examples/2_methods",
        "../examples/3_paper",
    ],
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "show_memory": False,
    "copyfile_regex": r".*\.rst",
}

benchmark_tables.write(HERE / "generated")
figures.write(HERE / "generated")
