"""What Java is started with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grouptrail.config import load_config
from grouptrail.runtime.warehouses import session_settings
from grouptrail.spark import session
from grouptrail.spark.java import Java
from grouptrail.spark.session import collector_options, settings_of

OPTIONS = "spark.spark.driver.extraJavaOptions"


@pytest.fixture(autouse=True)
def without_java_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("cores", "small"), [(1, True), (4, True), (5, False), (None, True)])
def test_collector_options_few_cores_use_the_serial_collector(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, small: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert ("UseSerialGC" in collector_options(session_settings(load_config(None, {}, {})))) is small


@pytest.mark.parametrize("way", ["configuration", "environment"])
def test_collector_options_user_chosen_collector_is_kept(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    given = {OPTIONS: "-Xss8m -XX:+UseZGC"} if way == "configuration" else {}
    if way == "environment":
        monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseParallelGC")
    assert collector_options(session_settings(load_config(None, given, {}))) == ""


def test_collector_options_other_java_options_keep_the_serial_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert "UseSerialGC" in collector_options(
        session_settings(load_config(None, {OPTIONS: "-XX:+UseStringDeduplication"}, {}))
    )


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A session in this process, with a Java that is there and no jars."""
    for name in ("SPARK_ENV_LOADED", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(session, "find_java", lambda: Java(tmp_path, "17.0.1", 17, "test"))
    monkeypatch.setattr(session, "connector_jars", lambda _=None: tmp_path)


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize(("ui", "kept"), [("false", "20"), ("true", None)])
def test_spark_settings_limit_retained_executions_only_without_the_ui(ui: str, kept: str | None) -> None:
    settings = settings_of(session_settings(load_config(None, {"spark.spark.ui.enabled": ui}, {})))
    assert settings.get("spark.sql.ui.retainedExecutions") == kept


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize(("cores", "is_run", "is_quick"), [(2, True, True), (2, False, False), (8, True, False)])
def test_starting_jvm_of_run_on_few_cores_does_without_the_second_compiler(
    monkeypatch: pytest.MonkeyPatch, cores: int, is_run: bool, is_quick: bool
) -> None:
    """Other commands use Spark for one long piece of work."""
    started: list[dict[str, str]] = []
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(session.jvm, "start", started.append)
    if is_run:
        with session.starting_jvm(session_settings(load_config(None, {}, {}))) as jvm_settings:
            jvm_settings.result()
    else:
        session._start_jvm(session_settings(load_config(None, {}, {})), lambda _: None)
    [settings] = started
    assert ("TieredStopAtLevel=1" in settings["spark.driver.defaultJavaOptions"]) is is_quick


@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize(("given", "arenas"), [({}, "2"), ({"MALLOC_ARENA_MAX": "4"}, "4")])
def test_embedded_session_java_and_workers_return_freed_memory(given: dict[str, str], arenas: str) -> None:
    """Unless the user has chosen otherwise."""
    for name in ("MALLOC_ARENA_MAX", "MIMALLOC_PURGE_DELAY"):
        os.environ.pop(name, None)
    os.environ.update(given)
    settings_of(session_settings(load_config(None, {}, {})))
    assert (os.environ["MALLOC_ARENA_MAX"], os.environ["MIMALLOC_PURGE_DELAY"]) == (arenas, "0")


def test_starting_jvm_pyspark_is_imported_by_one_thread() -> None:
    """A job's check, in this thread, imports pyspark too, and its modules import each other."""
    code = """
import sys
from grouptrail.config import load_config
from grouptrail.runtime.warehouses import session_settings
from grouptrail.spark import session
loaded = []
session._start_jvm = lambda *_, **__: loaded.append("pyspark.sql" in sys.modules) or {}
before = "pyspark" in sys.modules
with session.starting_jvm(session_settings(load_config(None, {}, {}))) as jvm_settings:
    jvm_settings.result()
print(before, *loaded)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"], run.stderr


ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
EXECUTORS = "spark.executor.extraJavaOptions"


def of_clusters(*urls: str, **given: str) -> dict[str, str]:
    """Return the session's settings for clusters whose clients get tokens from these endpoints."""
    login = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
    setting = "kafka.sasl.oauthbearer.token.endpoint.url"
    configs = [load_config(None, {**login, setting: url, **given} if url else given, {}) for url in urls]
    return settings_of(session_settings(*configs))


def test_settings_of_token_endpoints_of_all_clusters_are_allowed_in_executors() -> None:
    settings = of_clusters("https://a.example/token", "", "https://b.example/token", "https://a.example/token")
    assert settings[EXECUTORS] == f"-D{ALLOWED}=https://a.example/token,https://b.example/token"
    assert EXECUTORS not in of_clusters("")


KERBEROS, PYTHON_S = "java.security.krb5.conf", "spark.executorEnv.KRB5_CONFIG"


def test_settings_of_krb5_config_reach_java_and_python_in_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KRB5_CONFIG", raising=False)
    assert not {EXECUTORS, PYTHON_S} & of_clusters("").keys()
    monkeypatch.setenv("KRB5_CONFIG", "/etc/driver.conf")
    settings = of_clusters("")
    assert (settings[EXECUTORS], settings[PYTHON_S]) == (f"-D{KERBEROS}=/etc/driver.conf", "/etc/driver.conf")
    given = of_clusters("", **{f"spark.{PYTHON_S}": "executor.conf"})
    assert (given[EXECUTORS], given[PYTHON_S]) == (f"-D{KERBEROS}=executor.conf", "executor.conf")
    own = f"-Xss1m -D{KERBEROS}=own.conf"
    assert of_clusters("", **{f"spark.{EXECUTORS}": own})[EXECUTORS] == own


def test_settings_of_token_endpoint_keeps_java_options_of_the_user() -> None:
    option = f"spark.{EXECUTORS}"
    assert of_clusters("https://a/t", **{option: "-Xss1m"})[EXECUTORS] == f"-Xss1m -D{ALLOWED}=https://a/t"
    own = f"-D{ALLOWED}=https://other/t"
    assert of_clusters("https://a/t", **{option: own})[EXECUTORS] == own
