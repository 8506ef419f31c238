"""Sphinx settings of the documentation site (`make site`).

The site needs no network: Furo brings its own style sheets and scripts. Pages outside `docs/`, such as
CONTRIBUTING.md, belong to the site too. Each has a stub in `docs/project/` whose only link names it; `read_source`
puts the page in place of its stub, and points every link to such a page at the stub.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
# [text](target), ![text](target) and [label]: target
LINK = re.compile(r"(?P<start>\]\(|^\[[^\]\n]+\]: )(?!\w+:|#)(?P<target>[^)\s#]+)", re.MULTILINE)

_metadata = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

project = _metadata["name"]
version = release = _metadata["version"]
project_copyright = "the grouptrail authors, Apache License 2.0"

extensions = ["myst_parser"]
myst_heading_anchors = 4
nitpicky = True
language = "en"
pygments_style = "friendly"
pygments_dark_style = "github-dark"

html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_title = f"{project} {version}"
html_copy_source = False
html_show_sphinx = False


def included_page(stub: Path) -> Path:
    """Return the page that a stub stands for: the target of its first link."""
    link = LINK.search(stub.read_text("utf-8"))
    assert link, f"{stub} has no link"
    return (stub.parent / link["target"]).resolve()


STUBS = {included_page(stub): stub for stub in sorted((DOCS / "project").glob("*.md"))}


def read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the included page in place of a stub, and make its links relative to the stub."""
    document = DOCS / f"{docname}.md"
    page = next((page for page, stub in STUBS.items() if stub == document), document)

    def site_path(link: re.Match[str]) -> str:
        target = (page.parent / link["target"]).resolve()
        if target.is_dir():
            target /= "README.md"
        if not target.exists():
            return link[0]  # MyST reports it
        return link["start"] + os.path.relpath(STUBS.get(target, target), document.parent)

    source[0] = LINK.sub(site_path, page.read_text("utf-8"))
    app.env.note_dependency(str(page))


def setup(app: Sphinx) -> None:
    """Connect `read_source`."""
    app.connect("source-read", read_source)
