"""Settings in which all that can hold a secret holds a canary, found by a walk through the settings' model."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from grouptrail.config.clients import KAFKA_CLIENT_SETTINGS
from grouptrail.config.model import Config, Section
from grouptrail.config.secrets import is_secret
from grouptrail.config.toml import to_toml
from grouptrail.locations import normalized

CANARY = "c4n4ry"
TOKEN = f"{CANARY}-token-of-twenty-or-more-characters"
LOGIN = f"{CANARY}-user:{CANARY}/p@{CANARY}"

# Sections whose names are other programs': every secret that Kafka's client knows, and of each kind some others.
_CLIENT_SECRETS = {
    "kafka": {name: CANARY for name in KAFKA_CLIENT_SETTINGS if is_secret(name)}
    | {"acme.plugin.pin": CANARY}
    | {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:1/token?key={CANARY}",
    },
    "spark": {
        "spark.hadoop.fs.s3a.secret.key": CANARY,
        "spark.acme.plugin.pin": CANARY,
        "spark.executorEnv.API": CANARY,
        "spark.eventLog.dir": f"https://{LOGIN}@logs.example/?sig={CANARY}",
    },
    "storage": {
        "aws_secret_access_key": CANARY,
        "azure_storage_sas_key": CANARY,
        "acme_pin": CANARY,
    },
}


def planted(address: str, folder: Path | None = None, model: type[BaseModel] = Config) -> dict[str, Any]:
    """Return settings with a canary wherever one fits.

    `address` is that of all folders; it has canaries of its own. Files are written into `folder`, if any.
    """
    settings: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kinds = {*_kinds(field.annotation), *(getattr(one, "func", None) for one in field.metadata)}
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            settings[name] = planted(address, folder, field.annotation)
        elif dict in kinds:
            settings[name] = dict(_CLIENT_SECRETS[name])
        elif SecretStr in kinds:
            settings[name] = f"X-Key={CANARY}" if name == "headers" else CANARY
        elif normalized in kinds:
            settings[name] = address
        elif Path in kinds and folder is not None:
            settings[name] = str(folder / name)
            Path(settings[name]).write_text(f"{TOKEN}\n")
            Path(settings[name]).chmod(0o600)
    if "basic_auth_password" in settings:
        settings["basic_auth_user"] = "prometheus"
        settings.pop("web_config_file", None)  # it takes the place of the password
    return settings


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation, and the functions that validate them."""
    yield typing.get_origin(annotation) or annotation
    for part in (*typing.get_args(annotation), *getattr(annotation, "__metadata__", ())):
        yield getattr(part, "func", None)
        yield from _kinds(part)


def write(file: Path, settings: dict[str, Any], **sections: dict[str, Any]) -> Path:
    """Write settings as a file that only its owner can read; those in `sections` override them."""
    merged = settings | {name: settings.get(name, {}) | values for name, values in sections.items()}
    file.touch(mode=0o600)
    file.write_text(to_toml(merged))
    return file
