"""Settings of the site: `sphinx-build -n -W -b html docs docs/_build` writes it; it needs the extra `docs`, and no network."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))

from jaxformer import __version__

project, author, release = "jaxformer", "the jaxformer authors", __version__
copyright = "the jaxformer authors, MIT licence"  # noqa: A001  # the name that Sphinx reads
extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design", "docs._ext.api", "docs._ext.commands", "docs._ext.mathml"]
exclude_patterns = ["_build", "_ext"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_block", "attrs_inline"]
myst_heading_anchors = 4
myst_number_code_blocks = []

add_module_names = False
python_maximum_signature_line_length = 88
python_display_short_literal_types = True
smartquotes = False
toc_object_entries_show_parents = "hide"
nitpick_ignore_regex = [("py:class", ".*")]  # types in signatures; everything else that is referred to has to be there

html_theme = "furo"
html_title = "jaxformer"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
copybutton_prompt_text = "$ "

PAGES = {
    "](README.md)": "](index.md)",
    "](jaxformer/parity/diagnose/README.md)": "](diagnosis.md)",
    "](../jaxformer/parity/diagnose/README.md)": "](diagnosis.md)",
}
"""Links to files of the repository that are pages of the site."""


def to_pages(app: Sphinx, *where: str | Path | list[str]) -> None:
    """Point links at pages, in a document that is read or included."""
    content = where[-1]
    for link, page in PAGES.items():
        content[0] = content[0].replace(link, page)


def setup(app: Sphinx) -> None:
    """Register it."""
    app.connect("source-read", to_pages)
    app.connect("include-read", to_pages)
