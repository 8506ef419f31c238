"""`kafka.preset`: the logins of managed services, which explicit settings override."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from grouptrail.config import Config, ConfigError, load_config, load_configs
from grouptrail.config.presets import PRESETS
from grouptrail.config.providers import SecretError
from grouptrail.kafka.msk_iam import uses_msk_iam
from grouptrail.kafka.settings import client_arguments
from grouptrail.runtime.doctor import check_kafka

SECRET = 'Geheim-4719"\\;='
CONFLUENT = {"kafka.preset": "confluent-cloud", "kafka.api.key": "KEY", "kafka.api.secret": SECRET}
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="mine";'


def loaded(settings: dict[str, str]) -> Config:
    """Load settings as variables, where secrets may be."""
    names = {name: name.replace(".", "__", 1).replace(".", "_").upper() for name in settings}
    variables = {f"GROUPTRAIL_{variable}": settings[name] for name, variable in names.items()}
    return load_config(None, {}, variables)


def test_preset_confluent_cloud_logs_in_with_key_and_secret() -> None:
    config = loaded(CONFLUENT)
    arguments = client_arguments(config.kafka_settings())
    assert (arguments["security_protocol"], arguments["sasl_mechanism"]) == ("SASL_SSL", "PLAIN")
    assert (arguments["sasl_plain_username"], arguments["sasl_plain_password"]) == ("KEY", SECRET)
    assert not {"preset", "api.key", "api.secret"} & config.kafka_settings().keys(), "Java would warn of them"


def test_preset_event_hubs_logs_in_with_the_connection_string() -> None:
    text = "Endpoint=sb://n.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0="
    arguments = client_arguments(
        loaded({"kafka.preset": "event-hubs", "kafka.connection.string": text}).kafka_settings()
    )
    assert (arguments["sasl_plain_username"], arguments["sasl_plain_password"]) == ("$ConnectionString", text)


def test_preset_msk_iam_needs_nothing_else() -> None:
    config = loaded({"kafka.preset": "msk-iam"})
    assert uses_msk_iam(config.kafka_settings())
    assert config.source == "topic"


def test_preset_explicit_settings_win() -> None:
    assert loaded(CONFLUENT).source == "admin"
    assert loaded(CONFLUENT | {"source": "topic"}).source == "topic"
    own = loaded({"kafka.preset": "confluent-cloud", "kafka.sasl.jaas.config": JAAS}).kafka_settings()
    assert (own["sasl.jaas.config"], own["sasl.mechanism"]) == (JAAS, "PLAIN")
    oauth = loaded({"kafka.preset": "confluent-cloud", "kafka.sasl.mechanism": "OAUTHBEARER"}).kafka_settings()
    assert (oauth["security.protocol"], oauth.get("sasl.jaas.config")) == ("SASL_SSL", None)


def test_preset_secret_may_be_a_reference(tmp_path: Path) -> None:
    (tmp_path / "api-secret").write_text(f"{SECRET}\n")
    providers = {
        "kafka.config.providers": "mount",
        "kafka.config.providers.mount.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
    }
    config = loaded(CONFLUENT | providers | {"kafka.api.secret": f"${{mount:{tmp_path}:api-secret}}"})
    assert client_arguments(config.kafka_settings())["sasl_plain_password"] == SECRET
    (tmp_path / "api-secret").write_text("renewed")
    assert client_arguments(config.kafka_settings())["sasl_plain_password"] == "renewed"


def test_preset_without_its_secret_raises_one_line() -> None:
    config = loaded({"kafka.preset": "confluent-cloud", "kafka.api.key": "KEY"})
    with pytest.raises(
        SecretError, match=r'kafka.preset = "confluent-cloud" needs kafka."api.secret": set it'
    ) as error:
        config.kafka_settings()
    assert "\n" not in str(error.value)


def test_preset_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(ConfigError, match="KAFKA__PRESET: is no preset: give one of msk-iam, confluent-cloud,"):
        loaded({"kafka.preset": "msk"})


@pytest.mark.parametrize("name", ["kafka.api.secret", "kafka.connection.string"])
def test_preset_secret_is_refused_in_a_flag(name: str) -> None:
    with pytest.raises(ConfigError, match="a secret in a flag is visible to every user"):
        load_config(None, {name: SECRET}, {})


def test_doctor_names_what_a_preset_lacks(tmp_path: Path) -> None:
    variables = {"GROUPTRAIL_KAFKA__PRESET": "event-hubs", "GROUPTRAIL_WAREHOUSE": str(tmp_path)}
    findings = list(check_kafka(load_config(None, {}, variables)))
    needed = 'kafka.preset = "event-hubs" needs kafka."connection.string": set it, or kafka."sasl.jaas.config"'
    assert [(one.status, one.text) for one in findings] == [("FAIL", needed)]


def test_config_shows_what_came_from_the_preset_and_no_secret() -> None:
    config = loaded(CONFLUENT | {"kafka.security.protocol": "SASL_PLAINTEXT"})
    text = config.redacted_toml()
    assert 'source = "admin"  # from kafka.preset\n' in text
    assert '"sasl.mechanism" = "PLAIN"  # from kafka.preset\n' in text
    assert '"sasl.jaas.config" = "**********"  # from kafka.preset\n' in text
    assert '"security.protocol" = "SASL_PLAINTEXT"\n' in text
    assert 'preset = "confluent-cloud"\n' in text
    assert SECRET not in text
    assert tomllib.loads(text)["kafka"]["preset"] == "confluent-cloud"


def test_preset_of_one_cluster_is_its_own(tmp_path: Path) -> None:
    file = tmp_path / "grouptrail.toml"
    file.write_text(
        '[clusters.a.kafka]\npreset = "msk-iam"\n[clusters.b.kafka]\npreset = "event-hubs"\n[clusters.c]\n'
    )
    found = {
        config.cluster: (config.source, "sasl.mechanism" in config.kafka) for config in load_configs(file, {}, {})
    }
    assert found == {"a": ("topic", True), "b": ("admin", True), "c": ("topic", False)}


def test_documentation_has_the_settings_of_each_preset() -> None:
    page = (Path(__file__).parents[2] / "docs" / "managed-kafka.md").read_text("utf-8")
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    for name, preset in PRESETS.items():
        assert not [value for value in preset.settings.values() if f"`{value}`" not in rows[name]], name
        assert ('`source = "admin"`' in rows[name]) == (preset.source == "admin")
