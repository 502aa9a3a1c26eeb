"""Configuration of the documentation."""

import inspect
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import benchmark_tables  # noqa: E402
import figures  # noqa: E402

import sklearn_quam  # noqa: E402

SOURCE = "https://github.com/sklearn-quam/sklearn_quam"
# Inventories of other projects and the list of versions need the network.
HOSTED = "READTHEDOCS" in os.environ
# Examples run beside each other's threads badly: idle ones sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

project = "sklearn_quam"
author = "The sklearn_quam developers"
copyright = "2026, " + author
version = release = sklearn_quam.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.linkcode",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
# Methods that scikit-learn describes; others are on the page of their class.
autosummary_context = {
    "scikit_learns": ["__init__", "fit_predict", "fit_transform", "get_metadata_routing"]
    + ["get_params", "score", "set_output", "set_params"]
}
exclude_patterns = ["_build", "generated"]
html_title = project
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
# Pages without sections of their own leave their width to text and tables.
html_sidebars = {page.stem: [] for page in HERE.glob("*.rst")}
html_css_files = ["site.css"]
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    # Wide tables and code need the place of a second column.
    "secondary_sidebar_items": {
        "*": ["page-toc", "sourcelink"],
        "api/*": ["page-toc", "sourcelink"],
        "guide/*": ["page-toc", "sourcelink"],
        "results/*": [],
        "gallery/**": [],
        "index": [],
    },
    "icon_links": [{"name": "Source", "url": SOURCE, "icon": "fa-brands fa-github"}],
    # Install, quick start, guide, examples, API and results; the others are under "More".
    "header_links_before_dropdown": 6,
}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
if HOSTED:
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "matplotlib": ("https://matplotlib.org/stable", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "pandas": ("https://pandas.pydata.org/docs", None),
        "python": ("https://docs.python.org/3", None),
        "skorch": ("https://skorch.readthedocs.io/en/stable", None),
        "sklearn": ("https://scikit-learn.org/stable", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }
    html_theme_options["switcher"] = {
        "json_url": "https://sklearn-quam.readthedocs.io/en/latest/_static/switcher.json",
        "version_match": os.environ.get("READTHEDOCS_VERSION", "latest"),
    }
    html_theme_options["navbar_start"] = ["navbar-logo", "version-switcher"]
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


def linkcode_resolve(domain, info):
    """Return where the source of a class, function or method stands."""
    found = sys.modules.get(info["module"]) if domain == "py" else None
    for name in info["fullname"].split("."):
        found = getattr(found, name, None)
    found = inspect.unwrap(found) if callable(found) else found
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        return None
    path = Path(inspect.getsourcefile(found)).relative_to(HERE.parent)
    lines, first = inspect.getsourcelines(found)
    version_or_branch = "main" if "dev" in version else f"v{version}"
    return f"{SOURCE}/blob/{version_or_branch}/{path}#L{first}-L{first + len(lines) - 1}"


benchmark_tables.write(HERE / "generated")
figures.write(HERE / "generated")
