"""Requests of a Spark Connect client, run in a process of its own: `python connect_requests.py URL FOLDER PATH`.

Prints a JSON object: for each request, `["answered", answer]` or `["refused", message]`. FOLDER is where the attacks
try to write, PATH is the folder of a Delta table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

PASSWD = "/etc/passwd"
# The names of the requests below, for tests that have no session.
_QUERIES = """
sql qualified with view function show_tables show_schemas describe explain columns repr dataframe join
expression arrow show local_data catalog time_zone
"""
_ATTACKS = """
sql_transform sql_file sql_file_in_subquery sql_file_as_argument sql_file_named_like_a_query sql_path
sql_reflect sql_java_method sql_try_reflect sql_insert_directory sql_comment_newline sql_comment_return
sql_insert sql_delete sql_drop sql_drop_view sql_vacuum sql_add_jar sql_set sql_show_settings sql_use_path
sql_execute_immediate sql_script sql_argument expression_file expression_reflect function_reflect
call_function_reflect table_file read_text read_csv read_delta read_options read_stream python_udf map_in_pandas
register_python register_java write_files write_table write_into write_v2 write_stream create_view create_table
drop_view columns_of_path checkpoint add_file read_token read_all_settings substitute
"""
QUERIES, ATTACKS = _QUERIES.split(), _ATTACKS.split()


def queries(spark: Any) -> dict[str, Callable[[], Any]]:
    """Return what clients may request, by name."""
    from pyspark.sql import functions as F

    members = spark.table("grouptrail.memberships")
    return {
        "sql": lambda: spark.sql("SELECT count(*) FROM memberships").collect(),
        "qualified": lambda: spark.sql("SELECT * FROM spark_catalog.grouptrail.memberships").collect(),
        "with": lambda: spark.sql("WITH a AS (SELECT 1 AS x) SELECT x FROM a").collect(),
        "view": lambda: spark.sql("SELECT * FROM worst_groups").toPandas().to_csv(),
        "function": lambda: spark.sql("SELECT * FROM owners_at('billing', '2026-03-04T12:01:30Z')").collect(),
        "show_tables": lambda: spark.sql("SHOW TABLES IN grouptrail").collect(),
        "show_schemas": lambda: spark.sql("SHOW SCHEMAS").collect(),
        "describe": lambda: spark.sql("DESCRIBE memberships").collect(),
        "explain": lambda: spark.sql("EXPLAIN SELECT * FROM memberships").collect(),
        "columns": lambda: members.columns,
        "repr": lambda: repr(members),
        "dataframe": lambda: (
            members.filter("member_id IS NOT NULL")
            .select("group_id", F.upper("member_id").alias("member"))
            .groupBy("group_id")
            .agg(F.countDistinct("member").alias("n"))
            .orderBy(F.desc("n"))
            .limit(3)
            .collect()
        ),
        "join": lambda: members.join(spark.table("rebalances"), "group_id").count(),
        "expression": lambda: members.filter("group_id IN (SELECT group_id FROM worst_groups)").count(),
        "arrow": lambda: members.toArrow().num_rows,
        "show": members.show,
        "local_data": lambda: (
            spark.createDataFrame([("billing", 1)], ["group_id", "x"]).join(members, "group_id").count()
        ),
        "catalog": lambda: [
            spark.catalog.currentDatabase(),
            len(spark.catalog.listTables("grouptrail")),
            len(spark.catalog.listColumns("grouptrail.memberships")),
            spark.catalog.tableExists("grouptrail.memberships"),
        ],
        "time_zone": lambda: spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin"),
    }


def attacks(spark: Any, folder: str, path: str) -> dict[str, Callable[[], Any]]:
    """Return what a server for queries must refuse, by name."""
    from pyspark.sql import functions as F

    def sql(text: str) -> Callable[[], Any]:
        return lambda: spark.sql(text).collect()

    call = [F.lit("java.lang.System"), F.lit("getenv"), F.lit("PATH")]
    rows = spark.range(1)
    return {
        "sql_transform": sql(f"SELECT TRANSFORM(1) USING 'touch {folder}/transform'"),
        "sql_file": sql(f"SELECT * FROM text.`{PASSWD}`"),
        "sql_file_in_subquery": sql(f"SELECT (SELECT max(value) FROM text.`{PASSWD}`)"),
        "sql_file_as_argument": sql(f"SELECT * FROM range((SELECT count(*) FROM text.`{PASSWD}`))"),
        "sql_file_named_like_a_query": sql(f"WITH `text.{PASSWD}` AS (SELECT 1) SELECT * FROM text.`{PASSWD}`"),
        "sql_path": sql(f"SELECT * FROM delta.`{path}`"),
        "sql_reflect": sql("SELECT reflect('java.lang.System', 'getenv', 'PATH')"),
        "sql_java_method": sql("SELECT java_method('java.lang.System', 'getenv', 'PATH')"),
        "sql_try_reflect": sql("SELECT try_reflect('java.lang.System', 'getenv', 'PATH')"),
        "sql_insert_directory": sql(f"INSERT OVERWRITE DIRECTORY '{folder}/csv' USING csv SELECT 1"),
        "sql_comment_newline": sql(f"WITH a AS (SELECT 1 x) -- \\\n(\nDELETE FROM delta.`{path}`"),
        "sql_comment_return": sql(f"-- \rINSERT OVERWRITE DIRECTORY '{folder}/csv' USING csv --\nSELECT 1"),
        "sql_insert": sql("INSERT INTO grouptrail_tables.memberships SELECT * FROM memberships"),
        "sql_delete": sql("DELETE FROM grouptrail_tables.memberships"),
        "sql_drop": sql("DROP TABLE grouptrail_tables.memberships"),
        "sql_drop_view": sql("DROP VIEW grouptrail.memberships"),
        "sql_vacuum": sql("VACUUM grouptrail_tables.memberships"),
        "sql_add_jar": sql("ADD JAR '/etc/hostname'"),
        "sql_set": sql("SET spark.sql.ansi.enabled = false"),
        "sql_show_settings": sql("SET"),
        "sql_use_path": sql("USE delta"),
        "sql_execute_immediate": sql(f"EXECUTE IMMEDIATE 'SELECT * FROM text.`{PASSWD}`'"),
        "sql_script": sql(f"BEGIN SELECT * FROM text.`{PASSWD}`; END"),
        "sql_argument": lambda: spark.sql("SELECT * FROM IDENTIFIER(:name)", {"name": f"text.`{PASSWD}`"}).collect(),
        "expression_file": lambda: rows.filter(f"EXISTS (SELECT * FROM text.`{PASSWD}`)").collect(),
        "expression_reflect": lambda: rows.selectExpr("reflect('java.lang.System', 'getenv', 'PATH')").collect(),
        "function_reflect": lambda: rows.select(F.reflect(*call)).collect(),
        "call_function_reflect": lambda: rows.select(F.call_function("system.builtin.reflect", *call)).collect(),
        "table_file": lambda: spark.table(f"text.`{PASSWD}`").collect(),
        "read_text": lambda: spark.read.text(PASSWD).collect(),
        "read_csv": lambda: spark.read.csv(PASSWD).collect(),
        "read_delta": lambda: spark.read.format("delta").load(path).collect(),
        "read_options": lambda: spark.read.option("path", "/etc").table("grouptrail.memberships").collect(),
        "read_stream": lambda: spark.readStream.table("grouptrail.memberships").isStreaming,
        "python_udf": lambda: rows.select(F.udf(lambda _: "ran")("id")).collect(),
        "map_in_pandas": lambda: rows.mapInPandas(lambda frames: frames, "id long").collect(),
        "register_python": lambda: spark.udf.register("own", lambda _: "ran"),
        "register_java": lambda: spark.udf.registerJavaFunction("own", "java.lang.String"),
        "write_files": lambda: rows.write.parquet(f"{folder}/parquet"),
        "write_table": lambda: rows.write.saveAsTable("own"),
        "write_into": lambda: spark.table("memberships").write.insertInto("grouptrail_tables.memberships"),
        "write_v2": lambda: rows.writeTo("own").using("parquet").create(),
        "write_stream": lambda: spark.readStream.format("rate").load().writeStream.format("console").start(),
        "create_view": lambda: rows.createOrReplaceTempView("memberships"),
        "create_table": lambda: spark.catalog.createTable("own", path="/etc", source="text"),
        "drop_view": lambda: spark.catalog.dropGlobalTempView("own"),
        "columns_of_path": lambda: spark.catalog.listColumns(f"delta.`{path}`"),
        "checkpoint": rows.checkpoint,
        "add_file": lambda: spark.addArtifact("/etc/hostname", file=True),
        "read_token": lambda: spark.conf.get("spark.connect.authenticate.token"),
        "read_all_settings": lambda: spark.conf.getAll,
        "substitute": lambda: spark.conf.set("spark.sql.variable.substitute", "true"),
    }


def main(url: str, folder: str, path: str) -> None:
    """Send all requests; print what came of each."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(url).appName("requests").getOrCreate()
    spark.sql("USE grouptrail")
    results = {}
    requests = queries(spark) | attacks(spark, folder, path)
    assert list(requests) == [*QUERIES, *ATTACKS]
    for name, request in requests.items():
        try:
            results[name] = ("answered", str(request()))
        except Exception as error:
            results[name] = ("refused", str(error))
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
