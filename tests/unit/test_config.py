"""The configuration: sources of settings, their precedence, and messages about invalid ones."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from grouptrail.config import Config, ConfigError, is_secret, load_config, load_configs
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.spark.streams import kafka_options

SECRET = "hunter2-in-clear"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="{SECRET}";'


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run each test in an empty folder, without a grouptrail.toml of the developer's."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "grouptrail.toml") -> Path:
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def problems(path: Path | None = None, *, flags: dict[str, str] | None = None, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, flags or {}, environ)
    return caught.value.problems


def test_load_config_without_any_source_uses_defaults(tmp_path: Path) -> None:
    """Without any source, the warehouse is a local folder and the broker runs on localhost."""
    config = load_config(None, {}, {})
    assert config.cluster == "default"
    assert config.warehouse == str(tmp_path / "warehouse")
    assert config.kafka_settings() == {"bootstrap.servers": "localhost:9092"}


def test_environment_overrides_file_and_flags_override_both() -> None:
    """Precedence applies to each setting separately."""
    write('cluster = "file"\nwarehouse = "/file"\n[decode]\ntrigger_seconds = 1\nmax_records_per_batch = 1\n')
    environ = {"GROUPTRAIL_WAREHOUSE": "/environment", "GROUPTRAIL_DECODE__TRIGGER_SECONDS": "2"}
    config = load_config(None, {"decode.trigger_seconds": "3"}, environ)
    assert (config.cluster, config.warehouse) == ("file", "/environment")
    assert (config.decode.trigger_seconds, config.decode.max_records_per_batch) == (3, 1)


def test_load_config_file_is_chosen_by_flag_then_environment_then_current_folder() -> None:
    """--config has precedence over GROUPTRAIL_CONFIG, and that over ./grouptrail.toml."""
    write('cluster = "folder"')
    environment, flag = write('cluster = "environment"', "e.toml"), write('cluster = "flag"', "f.toml")
    assert load_config(None, {}, {}).cluster == "folder"
    assert load_config(None, {}, {"GROUPTRAIL_CONFIG": str(environment)}).cluster == "environment"
    assert load_config(flag, {}, {"GROUPTRAIL_CONFIG": str(environment)}).cluster == "flag"


def test_load_config_missing_file_is_reported() -> None:
    """A file that was named must exist."""
    assert problems(Path("nowhere.toml")) == ["--config: no such file: nowhere.toml: check the path"]
    assert problems(GROUPTRAIL_CONFIG="nowhere.toml")[0].startswith("GROUPTRAIL_CONFIG: no such file")


@pytest.mark.parametrize("line", ['"sasl.mechanism" = "PLAIN"', 'sasl.mechanism = "PLAIN"'])
def test_kafka_section_accepts_unquoted_dotted_names(line: str) -> None:
    """TOML parses a bare dotted name as nested tables; it is the same setting."""
    write(f"[kafka]\n{line}\n")
    assert load_config(None, {}, {}).kafka_settings()["sasl.mechanism"] == "PLAIN"


def test_kafka_section_booleans_and_numbers_become_strings() -> None:
    """Numbers and booleans are formatted as Kafka's client reads them."""
    write('[kafka]\n"check.crcs" = true\n"retries" = 3\n"ssl.endpoint.identification.algorithm" = ""\n')
    kafka = load_config(None, {}, {}).kafka_settings()
    assert (kafka["check.crcs"], kafka["retries"], kafka["ssl.endpoint.identification.algorithm"]) == (
        "true",
        "3",
        "",
    )


def test_kafka_environment_variable_underscores_become_dots() -> None:
    """GROUPTRAIL_KAFKA__A_B is kafka."a.b"."""
    config = load_config(None, {}, {"GROUPTRAIL_KAFKA__BOOTSTRAP_SERVERS": "b:1"})
    assert kafka_options(config.kafka_settings()) == {"kafka.bootstrap.servers": "b:1"}


def test_spark_settings_come_from_file_and_flags() -> None:
    """File and flags take Spark's full names."""
    write('[spark]\n"spark.driver.memory" = "4g"\n')
    config = load_config(None, {"spark.executor.cores": "2"}, {})
    assert config.spark_settings() == {"spark.driver.memory": "4g", "spark.executor.cores": "2"}


def test_relative_warehouse_in_file_is_resolved_from_the_files_folder(tmp_path: Path) -> None:
    """A command then works from any folder; paths in flags and environment are relative to the current folder."""
    file = write('warehouse = "tables"\ncheckpoints = "marks"', "etc/grouptrail.toml")
    config = load_config(file, {}, {})
    assert warehouse_of(config).table("offset_commits").path == str(tmp_path / "etc/tables/offset_commits")
    assert warehouse_of(config).checkpoint_path("decode") == str(tmp_path / "etc/marks/default/decode")
    assert load_config(file, {"warehouse": "here"}, {}).warehouse == str(tmp_path / "here")


def test_remote_warehouse_uri_is_prefix_of_table_and_checkpoint_paths() -> None:
    """A URI is not made absolute; checkpoints are in the warehouse by default."""
    config = Config(warehouse="s3://bucket/lake/")
    assert warehouse_of(config).table("lag").path == "s3://bucket/lake/lag"
    assert warehouse_of(config).checkpoint_path("decode") == "s3://bucket/lake/_checkpoints/default/decode"


@pytest.mark.parametrize("name", [".", "..", "...", "a/../..", "/", "%2E%2E"])
def test_checkpoint_path_any_cluster_name_is_one_folder_of_its_own(tmp_path: Path, name: str) -> None:
    """None is the checkpoint folder itself or one of its parents."""
    path = Path(Config(warehouse=str(tmp_path), cluster=name).checkpoints_folder(), "decode")
    assert path.resolve().parent.parent == tmp_path / "_checkpoints"
    assert path.parent.name not in (".", "..")
    others = [
        f"{Config(warehouse=str(tmp_path), cluster=other).checkpoints_folder()}/decode"
        for other in (".", "..", "...")
    ]
    assert len({str(path), *others}) == (3 if name in (".", "..", "...") else 4)


@pytest.mark.parametrize(
    "location", ["/data/a%20b", "s3://bucket/a%2Fb", "/data/a\\b", "/data/a\nb", "/data/\x1b[31m"]
)
def test_warehouse_read_differently_by_delta_rs_and_spark_is_refused(location: str) -> None:
    [problem] = problems(None, flags={"warehouse": location})
    assert "which delta-rs and Spark read differently: choose another folder" in problem
    assert "\n" not in problem
    assert "\x1b" not in problem


@pytest.mark.parametrize("location", ["/data/100%", "/data/a b", "/data/50%zz", "s3://bucket/a+b"])
def test_warehouse_other_special_characters_are_accepted(location: str) -> None:
    assert load_config(None, {"warehouse": location}, {}).warehouse == location


def test_load_config_reports_all_problems_with_their_sources() -> None:
    """Problems of all sources are reported together, one line each."""
    file = write('warehous = "x"\n[kafka]\n"group.id" = "g"\n[decode]\nmax_records_per_batch = 0\n')
    texts = problems(file, flags={"cluster": ""}, GROUPTRAIL_DECODE__TRIGGER_SECONDS="soon", GROUPTRAIL_CLUSTR="x")
    assert [problem.split(": ")[0] for problem in texts] == [
        "--cluster",
        str(file),
        str(file),
        "GROUPTRAIL_DECODE__TRIGGER_SECONDS",
        str(file),
        "GROUPTRAIL_CLUSTR",
    ]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('warehous = "x"', "warehous: unknown setting: did you mean warehouse?"),
        ("trigger_seconds = 1", "trigger_seconds: unknown setting: did you mean decode.trigger_seconds?"),
        ("[decode]\nmax_record_per_batch = 1", "did you mean decode.max_records_per_batch?"),
        ("[kafka]\n'bootstrap.server' = 'b:1'", "did you mean bootstrap.servers?"),
        ("[kafka]\n'sasl.mechanisms' = 'PLAIN'", "use the name of Kafka's Java client, sasl.mechanism"),
        ("[zebra]\nx = 1", "unknown setting: known settings are cluster, warehouse"),
    ],
)
def test_load_config_unknown_setting_is_rejected_with_a_suggestion(text: str, hint: str) -> None:
    """A misspelt name is never silently ignored."""
    [problem] = problems(write(text))
    assert hint in problem


def test_kafka_section_accepts_plugin_settings() -> None:
    """A login module or metrics reporter has settings that Kafka does not list."""
    assert "acme.oauth.scope" in Config(kafka={"acme.oauth.scope": "x", "sasl.oauthbearer.scope": "y"}).kafka


@pytest.mark.parametrize(
    "name",
    [
        *("group.id", "key.deserializer", "value.deserializer", "isolation.level"),
        *("auto.offset.reset", "enable.auto.commit", "interceptor.classes"),
    ],
)
def test_kafka_section_rejects_settings_that_grouptrail_controls(name: str) -> None:
    """Each message gives the reason."""
    [problem] = problems(write(f'[kafka]\n"{name}" = "x"'))
    assert f"kafka.{name}: cannot be set: " in problem


def test_bootstrap_servers_without_port_is_rejected() -> None:
    """The Java client would reject it only when it connects."""
    assert "must be host:port" in problems(flags={"kafka.bootstrap.servers": "a:1,b"})[0]
    assert Config(kafka={"bootstrap.servers": "a:1, SSL://b.c:2,[::1]:3"}).kafka


def test_spark_section_rejects_names_not_starting_with_spark() -> None:
    """Spark silently ignores any other name."""
    assert "is not a Spark setting" in problems(write('[spark]\n"fs.s3a.endpoint" = "x"'))[0]


def test_spark_environment_variable_is_rejected() -> None:
    """spark.driver.maxResultSize has an upper-case letter that a variable's name cannot express."""
    assert "case-sensitive" in problems(GROUPTRAIL_SPARK__SPARK_DRIVER_MEMORY="1g")[0]


def test_load_config_ignores_kubernetes_service_variables() -> None:
    """Kubernetes sets them in every pod of a namespace with a service named grouptrail."""
    links = [
        "GROUPTRAIL_PORT",
        "GROUPTRAIL_SERVICE_HOST",
        "GROUPTRAIL_PORT_9090_TCP_ADDR",
        "GROUPTRAIL_UI_SERVICE_PORT",
    ]
    assert load_config(None, {}, dict.fromkeys(links, "tcp://10.0.0.1:9090")) == Config()


def test_secret_in_a_flag_is_rejected_without_being_shown() -> None:
    """Flags are visible in ps; the message says where secrets belong and does not repeat the secret."""
    [problem] = problems(flags={"kafka.sasl.jaas.config": JAAS})
    assert "GROUPTRAIL_KAFKA__SASL_JAAS_CONFIG" in problem
    assert SECRET not in problem


def test_exporter_password_is_redacted_rejected_as_flag_and_needs_a_user() -> None:
    """The password is never printed, is rejected as a flag, and requires a user name."""
    variables = {"GROUPTRAIL_EXPORTER__BASIC_AUTH_USER": "prometheus"}
    password = {"GROUPTRAIL_EXPORTER__BASIC_AUTH_PASSWORD": SECRET}
    config = load_config(None, {}, {**variables, **password})
    assert SECRET not in f"{config!r} {config} {config.redacted()}"
    [problem] = problems(flags={"exporter.basic_auth_password": SECRET, "exporter.basic_auth_user": "prometheus"})
    assert "in GROUPTRAIL_EXPORTER__BASIC_AUTH_PASSWORD" in problem
    assert SECRET not in problem
    for half in (variables, password):
        with pytest.raises(ConfigError, match="belong together: set both"):
            load_config(None, {}, half)
    with pytest.raises(ConfigError, match="GROUPTRAIL_EXPORTER__BASIC_AUTH_USER"):
        load_config(None, {}, {"GROUPTRAIL_EXPORTER__BASIC_AUTH_USER": "a:b", **password})


@pytest.mark.parametrize("secret", ["sasl.jaas.config", "ssl.key.password", "ssl.keystore.key", "acme.api.token"])
def test_config_secrets_are_redacted_except_in_client_settings(secret: str) -> None:
    """repr, str and redacted() show stars; the options passed to clients hold the secret."""
    config = Config(kafka={secret: SECRET}, spark={"spark.hadoop.fs.s3a.secret.key": SECRET})
    assert SECRET not in f"{config!r} {config} {config.redacted()}"
    assert kafka_options(config.kafka_settings())[f"kafka.{secret}"] == SECRET
    assert config.spark_settings()["spark.hadoop.fs.s3a.secret.key"] == SECRET


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("spark", "spark.hadoop.fs.s3a.encryption.key", SECRET),
        ("spark", "spark.hadoop.fs.s3a.bucket.lake.encryption.key", SECRET),
        ("spark", "spark.hadoop.fs.azure.sas.container.account.blob.core.windows.net", SECRET),
        ("spark", "spark.hadoop.fs.azure.sas.fixed.token.account", SECRET),
        ("spark", "spark.driver.extraJavaOptions", f"-Djavax.net.ssl.trustStorePassword={SECRET}"),
        ("spark", "spark.executorEnv.API", SECRET),
        ("spark", "spark.sql.catalog.lake.uri", SECRET),
        ("spark", "spark.acme.plugin.pin", SECRET),
        ("spark", "spark.jars.repositories", f"https://user:{SECRET}@maven.example/repository"),
        ("spark", "spark.eventLog.dir", f"https://logs.example/?sig={SECRET}"),
        ("storage", "azure_storage_sas_key", SECRET),
        ("storage", "aws_sse_customer_key_base64", SECRET),
        ("storage", "google_service_account_key", SECRET),
        ("storage", "endpoint_url", f"https://user:{SECRET}@s3.example"),
        ("kafka", "acme.interceptor.pin", SECRET),
    ],
)
def test_config_settings_not_known_to_be_harmless_are_hidden(section: str, name: str, value: str) -> None:
    config = Config.model_validate({section: {name: value}})
    assert SECRET not in repr(config) + str(config) + config.redacted_toml() + str(config.redacted())
    clear = {"spark": config.spark_settings, "storage": config.storage_options, "kafka": config.kafka_settings}
    assert clear[section]()[name] == value


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("spark", "spark.driver.memory", "4g"),
        ("spark", "spark.sql.shuffle.partitions", "8"),
        ("spark", "spark.ui.enabled", "true"),
        ("spark", "spark.jars.packages", "org.apache.hadoop:hadoop-aws:3.4.1"),
        ("spark", "spark.hadoop.fs.s3a.endpoint", "https://s3.example"),
        ("spark", "spark.hadoop.fs.s3a.bucket.lake.endpoint.region", "eu-west-1"),
        ("storage", "aws_region", "eu-west-1"),
        ("storage", "AWS_ENDPOINT_URL", "https://s3.example"),
        ("storage", "azure_storage_account_name", "lake"),
        ("kafka", "security.protocol", "SASL_SSL"),
    ],
)
def test_config_harmless_settings_are_shown(section: str, name: str, value: str) -> None:
    assert Config.model_validate({section: {name: value}}).redacted()[section][name] == value


def test_secret_encryption_key_in_a_flag_is_rejected() -> None:
    for name in ("spark.hadoop.fs.s3a.encryption.key", "spark.hadoop.fs.azure.sas.container.account"):
        [problem] = problems(flags={f"spark.{name}": SECRET})
        assert "a secret in a flag is visible to every user" in problem
        assert SECRET not in problem


@pytest.mark.parametrize(
    ("settings", "mode", "is_warned"),
    [
        (f'[kafka]\n"ssl.key.password" = "{SECRET}"', 0o644, True),
        (f'[kafka]\n"ssl.key.password" = "{SECRET}"', 0o640, True),
        (f'[kafka]\n"ssl.key.password" = "{SECRET}"', 0o620, True),
        (f'[kafka]\n"ssl.key.password" = "{SECRET}"', 0o600, False),
        (f'[clusters.one.kafka]\n"sasl.jaas.config" = "{SECRET}"', 0o644, True),
        (f'[exporter]\nbasic_auth_user = "me"\nbasic_auth_password = "{SECRET}"', 0o644, True),
        (f'warehouse = "s3://user:{SECRET}@bucket/lake"', 0o644, True),
        ('[kafka]\n"ssl.key.password" = "${secrets:/run/secrets:key}"', 0o644, False),
        ('[kafka]\n"sasl.oauthbearer.client.credentials.client.id" = "grouptrail"', 0o644, False),
        (f'[kafka]\n"sasl.jaas.config" = "{SECRET} ${{secrets:/run/secrets:key}}"', 0o644, True),
        ('warehouse = "s3://bucket/lake"\n[web]\ntoken_file = "token"', 0o644, False),
    ],
)
def test_file_with_secrets_that_others_can_read_gives_a_warning(settings: str, mode: int, is_warned: bool) -> None:
    file = write(settings)
    file.chmod(mode)
    [config] = load_configs(file, {}, {})
    expected = f"{file} has passwords, and other users can read it: chmod go= {file}" if is_warned else None
    assert config.warning == expected


@pytest.mark.parametrize(("id", "field"), [("geteuid", "st_uid"), ("getegid", "st_gid")])
def test_file_of_another_user_or_group_may_be_read_by_the_group(
    id: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in deploy/README.md: root owns the file, and a service reads it by its group; root may check it."""
    file = write(f'[kafka]\n"ssl.key.password" = "{SECRET}"')
    monkeypatch.setattr(os, id, lambda: getattr(file.stat(), field) + 1)
    for mode, warning in ((0o640, None), (0o644, f"chmod o= {file}")):
        file.chmod(mode)
        [config] = load_configs(file, {}, {})
        assert (config.warning or "").endswith(warning or "")
        assert (config.warning is None) == (warning is None)


def test_config_error_does_not_contain_secrets() -> None:
    """Neither an invalid setting next to a secret nor a misplaced secret reveals it."""
    file = write(
        f"cluster = ['{SECRET}']\n[decode]\ntrigger_seconds = '{SECRET}'\n[spark]\n'fs.secret' = '{SECRET}'\n"
        f"[kafka]\n'ssl.key.password' = ['{SECRET}']\n'group.id' = '{SECRET}'\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(file, {}, {})
    assert len(caught.value.problems) >= 4
    assert SECRET not in str(caught.value)


def test_pydantic_validation_error_does_not_contain_secrets() -> None:
    """A program that builds a Config itself may log pydantic's message."""
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"cluster": "", "kafka": {"acme.key": [SECRET]}, "decode": {"trigger_seconds": SECRET}})
    assert SECRET not in str(caught.value)


def test_is_secret_endpoint_url_and_servers_are_not_secret() -> None:
    """Endpoints and class names may be printed and passed as flags."""
    assert not is_secret("sasl.oauthbearer.token.endpoint.url")
    assert not is_secret("bootstrap.servers")
    assert not is_secret("token_file")


def test_load_config_invalid_toml_reports_the_line_and_other_problems() -> None:
    """A file that does not parse does not hide problems of flags and environment."""
    texts = problems(write("cluster = \n"), flags={"cluster": ""})
    assert "not valid TOML" in texts[0]
    assert "line 1" in texts[0]
    assert texts[1].startswith("--cluster: ")


def test_section_given_a_single_value_is_rejected() -> None:
    """Both in the file and in the environment."""
    assert "is a section" in problems(write('kafka = "b:1"'))[0]
    os.remove("grouptrail.toml")
    assert "is a section" in problems(GROUPTRAIL_KAFKA="b:1")[0]


# --- exporter -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ('deny_groups = ["a", "b["]', "exporter.deny_groups: 'b[' is not a valid pattern: close [ with ]"),
        ('allow_topics = ["x[z-a]"]', "exporter.allow_topics: 'x[z-a]' is not a valid pattern: a range is reversed"),
        ('allow_groups = [""]', "exporter.allow_groups: an empty pattern matches nothing"),
        ('also_as = ["kminion", "telegraf"]', "exporter.also_as: Input should be 'kafka_exporter'"),
        ('listen = "9308"', "exporter.listen: must be host:port"),
        ('listen = "localhost:99999"', "exporter.listen: must be host:port"),
        ('granularity = "member"', "exporter.granularity: Input should be 'partition', 'topic' or 'group'"),
        ("series_budget = 0", "exporter.series_budget: "),
        ('tls_key = "key.pem"', "tls_certificate and tls_key belong together: set both"),
        ('tls_client_ca = "ca.pem"', "tls_client_ca requires TLS: set tls_certificate and tls_key"),
    ],
)
def test_exporter_section_invalid_setting_is_reported_with_its_file(setting: str, hint: str) -> None:
    """Patterns that a shell would match literally or never are rejected, too."""
    file = write(f"[exporter]\n{setting}\n")
    (problem,) = problems(file)
    assert problem.startswith(f"{file}: ")
    assert hint in problem


def test_exporter_deny_groups_accepts_shell_patterns() -> None:
    """Character sets may contain ranges, ] and -; a flag separates patterns by commas."""
    patterns = ("*", "billing-?", "[[]x]", "a[]-]b", "[!a-z0-9]*", "a-b", "]")
    config = load_config(None, {"exporter.deny_groups": ", ".join(patterns)}, {})
    assert config.exporter.deny_groups == patterns


def test_group_stop_seconds_is_read_from_file_and_flag_and_shown_as_written(tmp_path: Path) -> None:
    """A name may have colons."""
    expected = (("a:hourly-*", 7200.0), ("*", 60.0))
    file = tmp_path / "grouptrail.toml"
    file.write_text('[lag]\ngroup_stop_seconds = ["a:hourly-*:7200", "*:60"]\n')
    assert load_config(file, {}, {}).lag.group_stop_seconds == expected
    config = load_config(None, {"lag.group_stop_seconds": "a:hourly-*:7200, *:60"}, {})
    assert config.lag.group_stop_seconds == expected
    assert config.redacted()["lag"]["group_stop_seconds"] == ["a:hourly-*:7200", "*:60"]
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize("text", ["hourly", "hourly:0", "hourly:never", ":60", "[a:60"])
def test_group_stop_seconds_invalid_value_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--set lag.group_stop_seconds: "):
        load_config(None, {"lag.group_stop_seconds": text}, {})


def test_thin_samples_is_read_from_file_flag_and_environment(tmp_path: Path) -> None:
    """It is a list in the file and comma-separated text in a flag or variable; redacted() shows it as written."""
    expected = ((1.0, 60), (7.0, 600))
    assert load_config(None, {}, {}).maintain.thin_samples == expected
    file = tmp_path / "own.toml"
    file.write_text('[maintain]\nthin_samples = ["0.5:30", "7:600"]\n')
    assert load_config(file, {}, {}).maintain.thin_samples == ((0.5, 30), (7.0, 600))
    assert load_config(None, {"maintain.thin_samples": "1:60, 7:600"}, {}).maintain.thin_samples == expected
    assert load_config(None, {}, {"GROUPTRAIL_MAINTAIN__THIN_SAMPLES": ""}).maintain.thin_samples == ()
    assert load_config(None, {}, {}).redacted()["maintain"]["thin_samples"] == ["1:60", "7:600"]


@pytest.mark.parametrize("text", ["7", "0:60", "1:0", "1:60:2", "day:60", "-1:60", "inf:60", "1:0.5"])
def test_thin_samples_invalid_value_is_rejected(text: str) -> None:
    """The message shows the expected form."""
    with pytest.raises(ConfigError, match=r"--set maintain.thin_samples: must be pairs days:seconds"):
        load_config(None, {"maintain.thin_samples": text}, {})


CLUSTERS = """
warehouse = "lake"
[kafka]
"security.protocol" = "SASL_SSL"
[lag]
stop_seconds = 60
[clusters.production.kafka]
"bootstrap.servers" = "p:9092"
"sasl.mechanism" = "PLAIN"
[clusters.production.lag]
exact_groups = ["billing"]
[clusters.eu-2.kafka]
bootstrap.servers = "e:9092"
security.protocol = "PLAINTEXT"
[clusters.spare]
"""


def test_load_configs_cluster_settings_override_shared_settings() -> None:
    """A cluster's settings override shared ones; all clusters share a warehouse, with separate checkpoints."""
    production, eu, spare = load_configs(write(CLUSTERS), {}, {})
    assert [config.cluster for config in (production, eu, spare)] == ["production", "eu-2", "spare"]
    assert production.kafka_settings() == {
        "bootstrap.servers": "p:9092", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
    }  # fmt: skip
    assert eu.kafka_settings() == {"bootstrap.servers": "e:9092", "security.protocol": "PLAINTEXT"}
    assert spare.kafka_settings()["bootstrap.servers"] == "localhost:9092"
    assert (production.lag.exact_groups, eu.lag.exact_groups) == (("billing",), ())
    assert {config.lag.stop_seconds for config in (production, eu)} == {60}
    assert production.warehouse == eu.warehouse
    assert warehouse_of(eu).checkpoint_path("lag") == f"{eu.warehouse}/_checkpoints/eu-2/lag"


def test_load_configs_cluster_settings_come_from_environment_and_flags() -> None:
    """Secrets of a cluster come from the environment; a flag overrides the cluster's section in the file."""
    environ = {"GROUPTRAIL_CLUSTERS__EU_2__KAFKA__SASL_JAAS_CONFIG": SECRET, "GROUPTRAIL_LAG__STOP_SECONDS": "9"}
    production, eu, _ = load_configs(write(CLUSTERS), {"clusters.production.lag.stop_seconds": "5"}, environ)
    assert eu.kafka_settings()["sasl.jaas.config"] == SECRET
    assert SECRET not in str(eu)
    assert "sasl.jaas.config" not in production.kafka_settings()
    assert (production.lag.stop_seconds, eu.lag.stop_seconds) == (5, 9)


def test_load_config_several_clusters_requires_one_by_name() -> None:
    """A flag or variable selects the cluster; without one the error lists the names."""
    file = write(CLUSTERS)
    chosen = load_config(file, {"cluster": "eu-2", "kafka.bootstrap.servers": "other:1"}, {})
    assert (chosen.cluster, chosen.kafka_settings()["bootstrap.servers"]) == ("eu-2", "other:1")
    assert load_config(file, {}, {"GROUPTRAIL_CLUSTER": "production"}).cluster == "production"
    assert problems(file) == ["several clusters are configured (production, eu-2, spare): select one with --cluster"]
    assert problems(file, flags={"cluster": "test"}) == [
        "--cluster: no such cluster: configured are production, eu-2, spare"
    ]
    assert problems(file, flags={"kafka.bootstrap.servers": "x:1"}) == [
        "--bootstrap-server: several clusters are configured: select one with --cluster"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('cluster = "a"\n[clusters.b]\n', "cluster: the sections [clusters.NAME] name the clusters: remove it"),
        ('[clusters.a]\nwarehouse = "x"\n', "clusters.a.warehouse: all clusters share this setting: move it out of"),
        ('[clusters.a.exporter]\nlisten = ":1"\n', "clusters.a.exporter.listen: all clusters share this setting"),
        ('[clusters."a/b".kafka]\nretries = 1\n', "a cluster name may contain only letters, digits, - and _"),
        ("[clusters.a-b]\n[clusters.a_b]\n", "two clusters have the same name in environment variables"),
        ("[clusters.a]\nkafka = 1\n", "clusters.a.kafka: is a section, not a setting: set the settings in it"),
        ("[clusters]\na = 1\n", "clusters.a: is a section, not a setting: set the settings in it"),
        ("clusters = 1\n", "clusters: is a section, not a setting: set the settings in it"),
        ("[clusters.a.lag]\nstop_second = 1\n", "did you mean clusters.a.lag.stop_seconds?"),
        ('[clusters.a.kafka]\n"group.id" = "g"\n', "clusters.a.kafka.group.id: cannot be set"),
    ],
)
def test_clusters_section_invalid_setting_is_reported_with_its_path(text: str, expected: str) -> None:
    """The path includes the cluster's section."""
    assert any(expected in problem for problem in problems(write(text))), problems(write(text))


def test_environment_variable_of_unknown_cluster_is_rejected() -> None:
    """Ignoring the variable would leave the cluster without its password."""
    texts = problems(write(CLUSTERS), GROUPTRAIL_CLUSTERS__PRODUKTION__KAFKA__SASL_MECHANISM="PLAIN")
    assert "no such cluster: configured are production, eu-2, spare" in texts[0]


def test_warehouse_in_the_home_of_an_unknown_user_is_refused() -> None:
    """Found by test_fuzz.py: it ended with a stack trace."""
    with pytest.raises(ConfigError, match=r"warehouse.*no user of this machine"):
        load_config(None, {"warehouse": "~no-such-user/lake"}, {})


def test_files_to_follow_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    """In the environment they are relative to the folder in which grouptrail is started, as the warehouse is."""
    file = write('[broker_log]\nfiles = ["logs/*.log", "/var/log/server.log"]', "etc/grouptrail.toml")
    assert load_config(file, {}, {}).broker_log.files == (str(tmp_path / "etc/logs/*.log"), "/var/log/server.log")
    environ = {"GROUPTRAIL_BROKER_LOG__FILES": "a.log, b.log"}
    assert load_config(None, {}, environ).broker_log.files == (str(tmp_path / "a.log"), str(tmp_path / "b.log"))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ('files = ["s3://bucket/server.log"]', "is no local file: give paths of files, or patterns"),
        ('files = [""]', "is no local file"),
        ("files = [1]", "broker_log.files"),
        ('time_zone = "Mars"', "'Mars' is no time zone: use a name such as Europe/Berlin"),
    ],
)
def test_invalid_settings_of_files_to_follow_are_reported(setting: str, expected: str) -> None:
    [problem] = problems(write(f"[broker_log]\n{setting}\n"))
    assert expected in problem


def test_each_cluster_follows_files_of_its_own() -> None:
    """A file has lines of one cluster: those of others would get wrong causes."""
    own = '[clusters.a.broker_log]\nfiles = ["/a/server.log"]\n[clusters.b]\n'
    a, b = load_configs(write(own), {}, {})
    assert (a.broker_log.files, b.broker_log.files) == (("/a/server.log",), ())
    [problem] = problems(write(f'[broker_log]\nfiles = ["/server.log"]\n{own}'))
    assert problem.endswith(
        "broker_log.files: 2 clusters are configured, and a file has lines of one: set clusters.NAME.broker_log.files"
    )
