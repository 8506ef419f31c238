"""docs/tables.md from the contracts: every table and view, and what their columns mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from grouptrail import contracts
from grouptrail.jobs import DECODE, JOBS, POLL

_HEAD = """\
# Tables and views

`make docs` generates this page from the contracts in `schemas/tables` and `schemas/views`. `grouptrail tables` lists
the tables of a warehouse; `grouptrail tables NAME` describes one table or view.

A view is a stored query, with or without parameters: `SELECT * FROM worst_groups` or
`SELECT * FROM owners_at('billing', now())`. It reads only the rows of the configured cluster.
"""


def page() -> str:
    """Return the page's text."""
    tables = "".join(_table(table) for table in contracts.tables().values())
    views = "".join(_view(view) for view in contracts.views().values())
    index = _index("table", ((table.name, table.name, table.about) for table in contracts.tables().values()))
    index += _index("view", ((view.name, view.signature, view.about) for view in contracts.views().values()))
    return f"{_HEAD}\n{index}{_jobs()}\n## Tables\n{tables}\n## Views\n{views}"


def _jobs() -> str:
    jobs = [other for job in JOBS for other in ((job, POLL) if job is DECODE else (job,))]
    lines = (
        f"| `{job.name}` | {job.about} | {_names(job.reads) or 'none'} | {_names(job.writes)} |\n" for job in jobs
    )
    return f"## Jobs\n\n| job | what it does | reads | writes |\n| --- | --- | --- | --- |\n{''.join(lines)}"


def _index(kind: str, entries: Iterable[tuple[str, str, str]]) -> str:
    lines = (f"| [`{shown}`](#{name}) | {_cell(_first_sentence(about))} |\n" for name, shown, about in entries)
    return f"| {kind} | one row is |\n| --- | --- |\n{''.join(lines)}\n"


def _table(table: contracts.Table) -> str:
    facts = f"Key: {_names(table.key)}. Sorted by {_names(table.cluster_by)}"
    facts += f", partitioned by {_names(table.partition_by)}.\n" if table.partition_by else ".\n"
    return f"\n### {table.name}\n\n{table.about.strip()}\n\n{facts}\n{_columns(table.columns)}"


def _view(view: contracts.View) -> str:
    text = f"\n### {view.name}\n\n`{view.signature}`: {view.about.strip()}\n\n```sql\n{view.example}\n```\n\n"
    if view.parameters:
        lines = (
            f"| `{parameter.name}` | {parameter.type} | {_cell(parameter.about)}"
            + ("" if parameter.default is None else f" (default: {parameter.default})")
            + " |\n"
            for parameter in view.parameters
        )
        text += f"| parameter | type | meaning |\n| --- | --- | --- |\n{''.join(lines)}\n"
    return text + _columns(view.columns)


def _columns(columns: Iterable[contracts.Column]) -> str:
    return "| column | type | meaning |\n| --- | --- | --- |\n" + "".join(_lines(columns))


def _lines(columns: Iterable[contracts.Column]) -> Iterator[str]:
    for column in columns:
        null = f" (null: {column.null_means})" if column.null_means else ""
        yield f"| `{column.name}` | `{column.type}` | {_cell(column.about + null)} |\n"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.strip().replace("<", "&lt;").replace("|", "\\|")


def _first_sentence(text: str) -> str:
    return text.strip().split(". ", maxsplit=1)[0].removesuffix(".")
