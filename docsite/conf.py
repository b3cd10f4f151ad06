"""The configuration of Sphinx."""

from __future__ import annotations

from importlib import metadata

from docsite import docstrings

project = "Headrace"
author = "the Headrace authors"
release = metadata.version("headrace")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
setup = docstrings.setup

# Headings have the anchors that they have where the repository is shown on the web.
myst_heading_anchors = 4

smartquotes = False  # quotes in these pages are often those of code

html_theme = "furo"
html_title = f"Headrace {release}"
html_show_sourcelink = False
html_copy_source = False
html_static_path: list[str] = []
copybutton_exclude = ".linenos, .gp, .go"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autoclass_content = "class"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
