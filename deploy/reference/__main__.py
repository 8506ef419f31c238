"""`make docs`: regenerate the reference pages. A test compares them with this output."""

from __future__ import annotations

from reference import DOCS, metrics, settings, tables


def pages() -> dict[str, str]:
    """Return the text of every generated page, by its file name in docs/."""
    return {"tables.md": tables.page(), "settings.md": settings.page(), **metrics.pages()}


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, "utf-8")
        print(f"docs/{name} is up to date")
