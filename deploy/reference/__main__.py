"""`make docs`: regenerate the reference pages and the chart's schema. A test compares them with this output."""

from __future__ import annotations

from reference import DOCS, chart, metrics, settings, tables


def pages() -> dict[str, str]:
    """Return the text of every generated page, by its file name in docs/."""
    return {"tables.md": tables.page(), "settings.md": settings.page(), **metrics.pages(), **chart.pages()}


if __name__ == "__main__":
    chart.SCHEMA.write_text(chart.schema(), "utf-8")
    print("deploy/helm/grouptrail/values.schema.json is up to date")
    for name, text in pages().items():
        (DOCS / name).write_text(text, "utf-8")
        print(f"docs/{name} is up to date")
