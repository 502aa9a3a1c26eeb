"""Configuration of the documentation."""

import sklearn_quam

project = "sklearn_quam"
author = "The sklearn_quam developers"
copyright = "2026, " + author
version = release = sklearn_quam.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
exclude_patterns = ["_build"]
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
# Methods inherited from scikit-learn refer to pages of its own documentation.
numpydoc_show_class_members = False
autodoc_typehints = "none"
