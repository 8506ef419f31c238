"""Secrets that Kafka's settings refer to, as Kafka's config providers write references, and their renewal."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from grouptrail.config import Config
from grouptrail.config.providers import SecretError, resolved
from grouptrail.runtime.kafka_secrets import LOOK_EVERY_SECONDS, KafkaSecrets

PACKAGE = "org.apache.kafka.common.config.provider"
PROVIDERS = {
    "config.providers": "secrets, file,env",
    "config.providers.secrets.class": f"{PACKAGE}.DirectoryConfigProvider",
    "config.providers.file.class": f"{PACKAGE}.FileConfigProvider",
    "config.providers.env.class": f"{PACKAGE}.EnvVarConfigProvider",
}
SECRET = "sasl.oauthbearer.client.credentials.client.secret"
CANARY = "c4n4ry"


def value_of(text: str, **more: str) -> str:
    return resolved({**PROVIDERS, **{name.replace("_", "."): it for name, it in more.items()}, SECRET: text})[SECRET]


def test_resolved_reads_directories_files_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "client-secret").write_text("from a mount\n")
    (tmp_path / "kafka.properties").write_text("# key=no\n! key=no\nother = 1\nke\\u0079 : a\\\n   b\\tc=\\\\\n")
    monkeypatch.setenv("KAFKA_SECRET", "from the environment")
    assert value_of(f"${{secrets:{tmp_path}:client-secret}}") == "from a mount"
    assert value_of(f"${{file:{tmp_path}/kafka.properties:key}}") == "ab\tc=\\"
    assert value_of("<${env:KAFKA_SECRET}|${env:KAFKA_SECRET}>") == "<from the environment|from the environment>"


def test_resolved_drops_the_providers_and_keeps_what_is_no_reference() -> None:
    texts = {"a": "$ec{ret}", "b": "${other:/run:key}", "c": "${secrets}", "bootstrap.servers": "b:1"}
    assert resolved(PROVIDERS | texts) == texts
    assert resolved({"sasl.jaas.config": "${secrets:/run:key}"}) == {"sasl.jaas.config": "${secrets:/run:key}"}


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("${secrets:/no/such:key}", {}, "No such file"),
        ("${secrets:relative:key}", {}, "not absolute"),
        ("${secrets:/run:../key}", {}, "no name of a file"),
        ("${secrets:FOLDER:binary}", {}, "not UTF-8"),
        ("${file:FOLDER/properties:key}", {}, "no such key"),
        ("${env:NO_SUCH_VARIABLE}", {}, "no such variable"),
        ("${env:HOME}", {"config_providers_env_param_allowlist.pattern": "KAFKA_.*"}, "not allowed"),
        ("${secrets:/etc/../run:key}", {"config_providers_secrets_param_allowed.paths": "/etc"}, "allowed.paths"),
        ("x", {"config_providers_secrets_class": "com.example.Vault"}, "DirectoryConfigProvider"),
        ("x", {"config_providers_env_class": ""}, "is missing"),
    ],
)
def test_resolved_unreadable_reference_raises_one_line_that_names_it(
    text: str, more: dict[str, str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "properties").write_text(f"other={CANARY}\n")
    (tmp_path / "binary").write_bytes(CANARY.encode() + b"\xff")
    with pytest.raises(SecretError) as caught:
        value_of(text.replace("FOLDER", str(tmp_path)), **more)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert CANARY not in str(caught.value)


def config_of(folder: Path) -> Config:
    return Config(kafka={**PROVIDERS, SECRET: f"${{secrets:{folder}:key}}"})


def test_config_referenced_secret_is_read_at_each_call_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(CANARY)
    config = config_of(tmp_path)
    assert config.kafka_settings() == {"bootstrap.servers": "localhost:9092", SECRET: CANARY}
    (tmp_path / "key").write_text(f"{CANARY}-2")
    assert config.kafka_settings()[SECRET] == f"{CANARY}-2"
    assert CANARY not in f"{config!r} {config} {config.redacted()} {config.redacted_toml()}"


def test_kafka_secrets_change_is_seen_once_and_a_missing_file_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    (tmp_path / "key").write_text("old")
    secrets = KafkaSecrets(config_of(tmp_path))

    def have_changed() -> bool:
        now[0] += LOOK_EVERY_SECONDS
        return secrets.have_changed()

    assert not have_changed()
    (tmp_path / "key").unlink()
    assert not have_changed()
    (tmp_path / "key").write_text("new")
    assert have_changed()
    (tmp_path / "key").write_text("newer")
    assert not secrets.have_changed(), "looked up before it is due"
    assert [have_changed(), have_changed()] == [True, False]


def test_kafka_secrets_without_references_never_change(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = KafkaSecrets(Config())
    monkeypatch.setattr(Config, "kafka_settings", lambda _: pytest.fail("read again"))
    assert not secrets.have_changed()
