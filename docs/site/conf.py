"""Sphinx's settings for `make docs` (scripts/docs): the repository's documents as they are, and the package's docstrings."""

import importlib.metadata

project = "Tandem"
author = "The Tandem authors"
release = importlib.metadata.version("tandem-kernels")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["README.md", "docs/site"]
myst_heading_anchors = 3
autodoc_typehints = "description"
napoleon_google_docstring = True
napoleon_use_rtype = False
html_theme = "furo"
html_title = f"Tandem {release}"
html_show_sphinx = False
