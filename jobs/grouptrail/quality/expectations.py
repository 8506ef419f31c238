"""Great Expectations without its console output: validates rows and writes Data Docs of the results.

Importing it takes seconds, so only `grouptrail check` does.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from grouptrail.quality.docs import offline

# It would send usage statistics for each run.
os.environ["GX_ANALYTICS_ENABLED"] = "false"

import great_expectations as gx
from great_expectations.data_context.types.base import ProgressBarsConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from grouptrail.quality.suites import Expectation

_SITE = "grouptrail"


class Validator:
    """The validations of one run; its Data Docs have one page per table."""

    def __init__(self) -> None:
        self._context = gx.get_context(mode="ephemeral")
        self._context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
        # With persist, each validation would leave a copy of its rows in memory.
        self._source = self._context.data_sources.add_spark("tables", persist=False)

    def validate(self, name: str, rows: DataFrame, expected: list[Expectation]) -> list[dict[str, Any]]:
        """Validate rows and return the results in the order of `expected`."""
        batch = self._source.add_dataframe_asset(name=name).add_batch_definition_whole_dataframe("snapshot")
        suite = self._context.suites.add(gx.ExpectationSuite(name=name, expectations=list(expected)))
        validation = self._context.validation_definitions.add(
            gx.ValidationDefinition(name=name, data=batch, suite=suite)
        )
        # Only this format includes the rows that a query finds; at most 200.
        result = validation.run(batch_parameters={"dataframe": rows}, result_format="COMPLETE")
        documents = result.to_json_dict()["results"]  # type: ignore[no-untyped-call]
        results = {one["expectation_config"]["meta"]["name"]: one for one in documents}
        return [results[one["meta"]["name"]] for one in expected]

    def write_docs(self, folder: Path) -> None:
        """Write a page `<table>.html` for each table, without external resources."""
        with TemporaryDirectory() as draft:
            self._context.add_data_docs_site(
                _SITE,
                {
                    "class_name": "SiteBuilder",
                    "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": draft},
                    "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
                },
            )
            self._context.build_data_docs(site_names=[_SITE])
            folder.mkdir(parents=True, exist_ok=True)
            for page in (Path(draft) / "validations").rglob("*.html"):
                table = page.relative_to(draft).parts[1]
                (folder / f"{table}.html").write_text(offline(page.read_text("utf-8")), "utf-8")
