"""`make docs`: writes the reference pages anew. A test holds them to what this gives."""

from __future__ import annotations

from reference import DOCS, metrics, settings, tables


def pages() -> dict[str, str]:
    """Every page's text as it should be, by its name in docs/."""
    return {"tables.md": tables.page(), "settings.md": settings.page(), **metrics.pages()}


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, "utf-8")
        print(f"docs/{name} is up to date")
