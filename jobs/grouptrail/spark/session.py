"""The Spark session: Java, jars, Delta, and the settings that decoding needs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouptrail.console.progress import Log, waiting
from grouptrail.errors import GrouptrailError, first_cause
from grouptrail.memory import MALLOC_ARENAS
from grouptrail.spark import class_data, jvm, object_stores
from grouptrail.spark.jars import fetch_jars, silent
from grouptrail.spark.java import Java, find_java, java_environment
from grouptrail.spark.kafka_login import ALLOWED_URLS, MSK_LIBRARY, msk_dependencies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCALA = "2.13"
_EXIT_SECONDS = 5.0
_LOOK_EVERY_SECONDS = 0.1
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

# When a query is stopped during a batch, Spark searches the Python traceback with a regular expression that needs
# half a kilobyte of stack for each character.
_DEEP_STACK = "-Xss64m"

# The jobs keep little of the data that passes through them. With few cores this collector keeps Java's heap small and
# takes no longer; with the default one the heap grows to its limit (docs/performance.md). Java would begin with a
# 64th of the machine's memory, which fills with garbage in the course of hours.
_SMALL_HEAP = "-XX:+UseSerialGC -Xms256m -XX:NewSize=128m"
_FEW_CORES = 4

# `run`, and short commands, execute much code, most of it rarely: on few cores Java's second compiler takes more time
# than it saves. Java would then halve the room for compiled code, and compile again what it had to remove
# (docs/performance.md).
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=160m"

# pyspark brings these in versions of its own; a second copy on the class path shadows Spark's.
_PART_OF_SPARK = (
    "com.fasterxml.jackson.core:*",
    "com.github.luben:zstd-jni",
    "com.google.code.findbugs:jsr305",
    "commons-codec:commons-codec",
    "commons-logging:commons-logging",
    "commons-pool:commons-pool",
    "io.airlift:aircompressor",
    "io.netty:*",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.httpcomponents:httpclient",
    "org.apache.httpcomponents:httpcore",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    f"org.apache.spark:spark-tags_{_SCALA}",
    "org.locationtech.jts:*",
    "org.lz4:lz4-java",
    "at.yawk.lz4:lz4-java",
    "org.roaringbitmap:*",
    "org.scala-lang:scala-library",
    "org.scala-lang.modules:*",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
)

_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Without it Spark's Kafka source drops internal topics, and reads nothing from __consumer_offsets in silence.
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "true",
    "spark.sql.session.timeZone": "UTC",
    # numpy works on whole batches: at the default of 10,000 rows its fixed costs show.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # The number of tasks in which VACUUM lists files: by default 10,000, even for a small table.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
    # With Hadoop's checksums each file that a batch writes to a local disk would be two, and for each of them Hadoop
    # starts several processes: chmod, readlink.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # Lets a commit that replaces open rows add closed ones, too: see `engines.spark`.
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false",
}

# The file krb5.conf, which libkrb5 takes from a variable of the process, and Java from a system property.
_KERBEROS_VARIABLE, _KERBEROS_PROPERTY = "KRB5_CONFIG", "java.security.krb5.conf"

# Used by Spark's UI only; by default a thousand jobs, stages and plans are retained, with all their tasks.
_UNSEEN = {
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
}


@dataclass(frozen=True)
class SessionSettings:
    """What a session is started with: settings of Spark, which override grouptrail's defaults, and the tables' store.

    `options` are delta-rs's of the store at `location`. Both may hold secrets, in clear. `token_endpoints` are those
    from which Kafka's client in executors may get tokens. With `uses_msk_iam` Kafka's client
    logs in to MSK with AWS IAM.
    """

    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    location: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    token_endpoints: tuple[str, ...] = ()
    uses_msk_iam: bool = False


class SessionError(GrouptrailError):
    """Spark did not start."""


def connector_dependencies() -> tuple[str, str]:
    """Return the Maven coordinates of Delta and of Spark's Kafka source that match the installed packages."""
    spark = version("pyspark")
    return (
        f"io.delta:delta-spark_{spark.rpartition('.')[0]}_{_SCALA}:{version('delta-spark')}",
        f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{spark}",
    )


def connector_jars(log: Log = silent) -> Path:
    """Return the folder of Delta's and the Kafka source's jars, downloaded the first time (about 60 MB)."""
    name = f"connectors/pyspark-{version('pyspark')}-delta-{version('delta-spark')}"
    return fetch_jars(name, connector_dependencies(), exclude=_PART_OF_SPARK, log=log)


def s3_jars(log: Log = silent) -> Path:
    """Return the folder of the jars that Spark's Hadoop needs for S3, downloaded the first time (about 20 MB)."""
    hadoop = _hadoop_version()
    exclude = (object_stores.WHOLE_AWS_SDK, *_PART_OF_SPARK)
    return fetch_jars(f"s3/hadoop-aws-{hadoop}", object_stores.s3_dependencies(hadoop), exclude=exclude, log=log)


def msk_jars(log: Log = silent) -> Path:
    """Return the folder of AWS's library for logins to MSK, downloaded the first time (about 7 MB)."""
    # Not its jar with everything in it: that one has a Netty of its own, which Spark does not start with.
    name = f"msk/{MSK_LIBRARY.partition(':')[2].replace(':', '-')}"
    return fetch_jars(name, msk_dependencies(), alone=(MSK_LIBRARY,), exclude=_PART_OF_SPARK, log=log)


def _pyspark_jars() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def _hadoop_version() -> str:
    """Return the version of the Hadoop in pyspark."""
    for jar in _pyspark_jars().glob("hadoop-client-api-*.jar"):
        return jar.stem.removeprefix("hadoop-client-api-")
    raise SessionError("pyspark has no Hadoop among its jars: pip install pyspark, which brings one")


def driver_java_options() -> str:
    """Return the Java options of a driver; the package must be in a folder, not in an archive."""
    return f"{_DEEP_STACK} -Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"


def collector_options(settings: SessionSettings) -> str:
    """Return the garbage collector's options; empty if the user has chosen one: Java does not start with two."""
    given = [settings.spark.get("spark.driver.extraJavaOptions", "")]
    given += [os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")]
    chosen = any(re.search(r"-XX:\+Use\w+GC", options) for options in given)
    return "" if chosen or not _has_few_cores() else _SMALL_HEAP


def _has_few_cores() -> bool:
    return (os.cpu_count() or 1) <= _FEW_CORES


def class_data_archive(java: Java) -> Path:
    """Return the path of the class-data archive of the embedded session, which `make prepare` makes."""
    return class_data.archive("spark", java, [*connector_jars().iterdir(), *_pyspark_jars().iterdir()])


@contextlib.contextmanager
def starting_jvm(settings: SessionSettings, log: Log = silent) -> Iterator[Future[dict[str, str]]]:
    """Start the JVM of `run`'s embedded session in the background; yield the settings, for `start_session`.

    If the block fails, the JVM is ended, unless it ran before.
    """
    # Its modules import each other: two threads that import it at the same time may each find one half loaded.
    import pyspark  # noqa: F401

    is_new = not jvm.is_running()
    jvm_settings: Future[dict[str, str]] = Future()

    def start() -> None:
        try:
            jvm_settings.set_result(_start_jvm(settings, log, is_varied=True))
        except Exception as error:
            jvm_settings.set_exception(error)

    threading.Thread(target=start, name="start-jvm", daemon=True).start()
    try:
        yield jvm_settings
    except BaseException:
        if is_new:
            jvm.kill()
        jvm_settings.exception()
        raise


def start_session(
    settings: SessionSettings,
    app: str,
    log: Log = silent,
    *,
    jvm_settings: Future[dict[str, str]] | None = None,
    is_varied: bool = False,
) -> SparkSession:
    """Return the Spark session of this process.

    Under spark-submit the cluster's Java and class path are used, and submitted settings override grouptrail's
    defaults. Otherwise Java and the jars are found (or downloaded, with progress in `log`), and Spark runs in a
    JVM of this process. `jvm_settings`: what `starting_jvm` yielded for these settings. `is_varied` is as for
    `settings_of`.
    """
    with jvm.ended_by_signals():
        from pyspark.sql import SparkSession

        all_settings = (
            _start_jvm(settings, log, is_varied=is_varied) if jvm_settings is None else jvm_settings.result()
        )
        builder = SparkSession.builder.appName(app)
        for name, value in all_settings.items():
            builder = builder.config(name, value)
        # In the main thread Spark would replace the handler of SIGINT by one that prints stack traces.
        with _errors_in_one_line(), ThreadPoolExecutor(1) as pool:
            spark = pool.submit(builder.getOrCreate).result()
    _configure_kerberos(spark)
    return spark


def _configure_kerberos(spark: SparkSession) -> None:
    """Let Java in the driver read the krb5.conf that libkrb5 reads, unless the user names another."""
    if file := os.environ.get(_KERBEROS_VARIABLE):
        jvm_view: Any = spark.sparkContext._jvm
        system = jvm_view.java.lang.System
        if system.getProperty(_KERBEROS_PROPERTY) is None:
            system.setProperty(_KERBEROS_PROPERTY, file)


def _of_executors(spark: Mapping[str, str], endpoints: Sequence[str]) -> dict[str, str]:
    """Return the settings that let Kafka's clients in the executors log in, with the user's own Java options."""
    options, variable = "spark.executor.extraJavaOptions", f"spark.executorEnv.{_KERBEROS_VARIABLE}"
    file = spark.get(variable) or os.environ.get(_KERBEROS_VARIABLE)
    properties = {ALLOWED_URLS: ",".join(endpoints), _KERBEROS_PROPERTY: file}
    given = spark.get(options, "")
    added = [f"-D{name}={value}" for name, value in properties.items() if value and name not in given]
    return ({options: " ".join([given, *added]).strip()} if added else {}) | ({variable: file} if file else {})


@contextlib.contextmanager
def session(
    settings: SessionSettings, app: str, log: Log = silent, *, is_varied: bool = False
) -> Iterator[SparkSession]:
    """Yield a session for one command, and stop it; say meanwhile that Spark is starting, which takes seconds."""
    with waiting("starting Spark"):
        spark = start_session(settings, app, log, is_varied=is_varied)
    try:
        yield spark
    finally:
        spark.stop()


def is_lost(spark: SparkSession, fault: BaseException) -> bool:
    """Return whether a session's application has ended: its JVM is gone, or its cluster has ended it.

    While Java exits, py4j may fail before that shows: after such a fault wait some seconds for the end.
    """
    from py4j.protocol import Py4JError, Py4JJavaError

    is_unanswered = isinstance(fault, Py4JError | ConnectionError) and not isinstance(fault, Py4JJavaError)
    deadline = time.monotonic() + (_EXIT_SECONDS if is_unanswered else 0)
    while not _has_stopped(spark):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY_SECONDS)
    return True


def _has_stopped(spark: SparkSession) -> bool:
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except Exception:  # py4j raises several when nobody answers
        return True


def _start_jvm(settings: SessionSettings, log: Log, *, is_varied: bool = False) -> dict[str, str]:
    """Start the JVM of an embedded session; return the session's settings."""
    logging.getLogger().addFilter(_is_not_of_py4j)
    all_settings = settings_of(settings, log, is_varied=is_varied)
    with _errors_in_one_line():
        if not _is_submitted():
            jvm.start(all_settings)
    return all_settings


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Omit what py4j logs as the root logger: it shows a lost JVM with stack traces, and raises an error, too."""
    return record.module != "java_gateway"


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Raise any error as SessionError."""
    try:
        yield
    except Exception as error:
        raise SessionError(f"Spark did not start ({first_cause(error)}): run grouptrail doctor") from error


def settings_of(settings: SessionSettings, log: Log = silent, *, is_varied: bool = False) -> dict[str, str]:
    """Return the session's settings, secrets in clear; later sources override earlier ones.

    `is_varied`: it executes much code, each part of it for a short time.
    """
    of_store = object_stores.spark_settings(settings.location, settings.options)
    of_place = _submitted() if _is_submitted() else _embedded(settings, log, is_varied=is_varied)
    all_settings = {**_SETTINGS, **of_store, **of_place, **settings.spark}
    return all_settings | _of_executors(all_settings, settings.token_endpoints)


def is_local(settings: SessionSettings) -> bool:
    """Return whether Spark runs in a JVM of this process, without a cluster."""
    return not _is_submitted() and settings.spark.get("spark.master", "local").startswith("local")


def _is_submitted() -> bool:
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def _submitted() -> dict[str, str]:
    """Return the settings of spark-submit: flags, `--conf` and spark-defaults.conf."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # SparkConf reads the JVM's settings, if there is one
    return dict(SparkConf().getAll())


def _embedded(settings: SessionSettings, log: Log, *, is_varied: bool) -> dict[str, str]:
    java = find_java()
    os.environ.update(java_environment(java))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Spark's workers take python3 from PATH otherwise, which may lack numpy.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The JVM and its workers return what they have freed.
    os.environ.setdefault("MALLOC_ARENA_MAX", str(MALLOC_ARENAS))
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")
    folders = [connector_jars(log)]
    if object_stores.is_s3(settings.location):
        folders.append(s3_jars(log))
    if settings.uses_msk_iam:
        folders.append(msk_jars(log))
    options = [driver_java_options(), collector_options(settings)]
    if is_varied and _has_few_cores():
        options.append(_QUICK_COMPILER)
    if len(folders) == 1:  # the whole class path must be the archive's
        options.append(class_data.options(class_data_archive(java)))
    # The folder of Spark's default database, which nothing here uses; a Hive catalog may have tables there.
    has_hive = settings.spark.get("spark.sql.catalogImplementation", "").lower() == "hive"
    folder = {} if has_hive else {"spark.sql.warehouse.dir": str(jvm.private_folder() / "spark-warehouse")}
    has_ui = settings.spark.get("spark.ui.enabled", "").lower() == "true"
    return (
        ({} if has_ui else _UNSEEN)
        | folder
        | {
            # A task whose Python worker was killed is retried, as on a cluster.
            "spark.master": "local[*, 4]",
            "spark.driver.memory": "2g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraClassPath": os.pathsep.join(f"{folder}/*" for folder in folders),
            "spark.driver.defaultJavaOptions": " ".join(filter(None, options)),
        }
    )
