"""Sphinx's configuration of the site; `make docs` builds it from the pages that ``assemble.py`` puts together."""

from siliconloom import __version__

project = "siliconloom"
author = "The siliconloom authors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["files"]
html_theme = "furo"
html_title = f"siliconloom {release}"
html_copy_source = False
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = False
napoleon_use_rtype = False
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]
