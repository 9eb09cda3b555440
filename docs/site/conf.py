"""How Sphinx makes a site of README.md, the project's other pages and docs/: `make site`, without a network.

The root of the project is the root of the sources, so that a link that works on a code host works on the site.
"""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
NAVIGATION = {  # added to the pages here, as code hosts would show Sphinx's own syntax as text
    "README": (HERE / "navigation.txt").read_text(encoding="utf-8"),
    "docs/decisions/README": "```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n",
}

project = "Paceline"
release = runpy.run_path(str(HERE.parents[1] / "src" / "paceline" / "version.py"))["VERSION"]
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
    *("docs/guide/*.md", "docs/reference/*.md", "docs/decisions/*.md"),
]
exclude_patterns = [".*", "bench", "build", "dist", "src", "tests"]
myst_heading_anchors = 4  # a link to a heading that does not exist is a warning then, and a warning fails the build

html_theme = "furo"
html_title = f"Paceline {release}"
html_static_path = ["static"]
html_logo = html_favicon = "static/mark.svg"
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_copyright = False
html_use_index = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2a66c8", "color-brand-content": "#2a66c8"},
    "dark_css_variables": {"color-brand-primary": "#74a9ff", "color-brand-content": "#74a9ff"},
    "navigation_with_keys": True,
}


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _add_navigation)
    app.connect("build-finished", _name_front_page)


def _add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    source[0] += "\n\n" + NAVIGATION.get(page, "")


def _name_front_page(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))
