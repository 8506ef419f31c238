"""The documentation site: built without a warning, complete, and usable without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md"))
STUBS = sorted((DOCS / "project").glob("*.md"))


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of the project in `root` as `make site` does."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    doctrees = site.with_name("doctrees")
    return subprocess.run(
        [*command, "-d", doctrees, root / "docs", site], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_site_has_every_page_of_docs(site: Path) -> None:
    assert [str(page) for page in PAGES if not (site / f"{page}.html").exists()] == []


def test_site_navigation_leads_to_every_page(site: Path) -> None:
    front = (site / "index.html").read_text("utf-8")
    links = set(re.findall(r'class="reference internal" href="([^"#]+)"', front))
    assert {f"{page}.html" for page in PAGES} - links == {"index.html"}


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.stem)
def test_stub_is_replaced_by_the_page_it_links_to(stub: Path, site: Path) -> None:
    (link,) = re.findall(r"\]\((.+?)\)", stub.read_text("utf-8"))
    (title, *_) = re.findall(r"^# (.*)$", (stub.parent / link).read_text("utf-8"), re.MULTILINE)
    html = (site / "project" / f"{stub.stem}.html").read_text("utf-8")
    (heading,) = re.findall(r"<h1>(.*?)<a ", html)
    assert unescape(re.sub(r"<[^>]+>", "", heading)) == title.replace("`", "")
    assert "This page is" not in html


def test_links_from_docs_to_pages_outside_lead_to_their_stubs(site: Path) -> None:
    html = (site / "runbooks.html").read_text("utf-8")
    assert 'href="project/dashboards.html#alerts"' in html


def test_local_links_and_images_of_the_site_exist(site: Path) -> None:
    gone = {
        f"{page.relative_to(site)}: {target}"
        for page in site.rglob("*.html")
        for target in re.findall(r'(?:src|href)="(?!https?:|mailto:|data:|#)([^"#?]+)', page.read_text("utf-8"))
        if not (page.parent / unquote(target)).exists()
    }
    assert gone == set()


def test_site_loads_nothing_from_the_network(site: Path) -> None:
    loaded = re.compile(r"""(?:src=|<link[^>]*href=|@import |url\()["']?((?:https?:)?//[^"')\s]+)""")
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(files) > len(PAGES)
    assert {address for path in files for address in loaded.findall(path.read_text("utf-8"))} == set()


@pytest.mark.parametrize(
    "link", ["lag.md#gone", *(pytest.param(link, marks=pytest.mark.full) for link in ("gone.md", "../GONE.md"))]
)
def test_dead_link_fails_the_build(link: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "docs").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", project)
    for name in ("conf.py", "site.css"):
        shutil.copy(DOCS / name, project / "docs")
    (project / "docs" / "lag.md").write_text("# Lag\n")
    page = project / "docs" / "index.md"
    page.write_text("# Index\n\n```{toctree}\nlag\n```\n\n[link](managed-kafka.md)\n")
    (project / "docs" / "managed-kafka.md").write_text("---\norphan: true\n---\n# Managed\n")
    sound = build(project, tmp_path / "sound" / "site")
    assert sound.returncode == 0, sound.stderr
    page.write_text(page.read_text("utf-8").replace("managed-kafka.md", link))
    broken = build(project, tmp_path / "broken" / "site")
    assert broken.returncode != 0
    assert "myst.xref_missing" in broken.stderr
