"""References to secrets outside the settings, as Kafka's client resolves them (KIP-297).

    "sasl.oauthbearer.client.credentials.client.secret" = "${secrets:/run/secrets/kafka:client-secret}"
    "config.providers" = "secrets"
    "config.providers.secrets.class" = "org.apache.kafka.common.config.provider.DirectoryConfigProvider"

They are resolved here and not by Java, so that all clients have the same values, and read again at each call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from grouptrail.errors import GrouptrailError

PROVIDERS = "config.providers"

_PACKAGE = "org.apache.kafka.common.config.provider."
_REFERENCE = re.compile(r"\$\{([^}:]*):(?:([^}]*):)?([^}:]*)\}")
_PROPERTY = re.compile(r"\s*((?:[^\\\s=:]|\\.)+)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


class SecretError(GrouptrailError):
    """A setting refers to a secret that cannot be read, or to a provider that is not known."""


def is_reference(value: str) -> bool:
    """Return whether a value is nothing but a reference, which is no secret."""
    return _REFERENCE.fullmatch(value) is not None


def refers(settings: Mapping[str, str]) -> bool:
    """Return whether settings may refer to secrets elsewhere, which may change."""
    return PROVIDERS in settings


def resolved(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Kafka's client with the values that they refer to, without the providers' own settings.

    Raises SecretError, whose message has no value.
    """
    names = [name.strip() for name in settings.get(PROVIDERS, "").split(",") if name.strip()]
    providers = {name: _provider(name, settings) for name in names}

    def value_of(setting: str, found: re.Match[str]) -> str:
        name, path, key = found[1], found[2] or "", found[3]
        if name not in providers:
            return found[0]
        try:
            return providers[name](path, key)
        except (OSError, KeyError, ValueError) as error:
            raise SecretError(
                f'kafka."{setting}" refers to {found[0]}, which cannot be read ({_reason(error)}): mount the secret '
                "there, or correct the reference"
            ) from None

    return {
        setting: _REFERENCE.sub(lambda found, of=setting: value_of(of, found), value)  # type: ignore[misc]
        for setting, value in settings.items()
        if setting != PROVIDERS and not setting.startswith(f"{PROVIDERS}.")
    }


def _provider(name: str, settings: Mapping[str, str]) -> Callable[[str, str], str]:
    setting = f"{PROVIDERS}.{name}.class"
    kind = settings.get(setting, "")
    parameters = f"{PROVIDERS}.{name}.param."
    paths = [Path(path) for path in settings.get(f"{parameters}allowed.paths", "").split(",") if path.strip()]
    if kind == f"{_PACKAGE}DirectoryConfigProvider":
        return lambda path, key: _of_directory(_allowed(path, paths), key)
    if kind == f"{_PACKAGE}FileConfigProvider":
        return lambda path, key: _of_file(_allowed(path, paths), key)
    if kind == f"{_PACKAGE}EnvVarConfigProvider":
        pattern = re.compile(settings.get(f"{parameters}allowlist.pattern", ".*"))
        return lambda path, key: _of_environment(path, key, pattern)
    raise SecretError(
        f'kafka."{setting}" is {kind or "missing"}: give one of '
        f"{_PACKAGE}DirectoryConfigProvider, …FileConfigProvider or …EnvVarConfigProvider"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return (error.strerror if isinstance(error, OSError) else None) or str(error.args[0])


def _allowed(path: str, allowed: list[Path]) -> Path:
    place = Path(os.path.normpath(path))
    if not place.is_absolute():
        raise ValueError("the path is not absolute")
    if allowed and not any(place.is_relative_to(one) for one in allowed):
        raise ValueError("the path is not among allowed.paths")
    return place


def _of_directory(folder: Path, key: str) -> str:
    """Return the content of a file, as Kubernetes mounts secrets; without the end of its last line."""
    if os.sep in key or key in ("", ".", ".."):
        raise ValueError("the key is no name of a file")
    return (folder / key).read_text("utf-8").removesuffix("\n").removesuffix("\r")


def _of_file(file: Path, key: str) -> str:
    """Return a value of a properties file."""
    for line in _CONTINUED.sub(r"\1", file.read_text("utf-8")).splitlines():
        found = None if line.lstrip().startswith(("#", "!")) else _PROPERTY.match(line)
        if found and _unescaped(found[1]) == key:
            return _unescaped(found[2])
    raise KeyError("it has no such key")


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _CONTROLS.get(code, code)

    return _ESCAPE.sub(character, text)


def _of_environment(path: str, key: str, allowed: re.Pattern[str]) -> str:
    if path or not allowed.fullmatch(key):
        raise ValueError("the variable is not allowed")
    if key not in os.environ:
        raise KeyError("there is no such variable")
    return os.environ[key]
