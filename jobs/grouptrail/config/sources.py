"""Where settings come from: the TOML file, environment variables and flags, each read into a list of settings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grouptrail.config.model import CLIENT_SECTIONS
from grouptrail.locations import is_uri

DEFAULT_FILE = "grouptrail.toml"
CLUSTERS = "clusters"
_FOLLOWED = ("broker_log", "files")

_PREFIX = "GROUPTRAIL_"
_FILE_VARIABLE = f"{_PREFIX}CONFIG"
_DOTTED_SECTIONS = ("kafka", "spark")
_FLAGS = {"cluster": "--cluster", "warehouse": "--warehouse", "kafka.bootstrap.servers": "--bootstrap-server"}

# Kubernetes sets such variables in every pod of a namespace that has a service named grouptrail.
_KUBERNETES_LINK = re.compile(r"GROUPTRAIL_(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT(_\d+_(TCP|UDP)\w*)?)")


@dataclass(frozen=True)
class Source:
    """A source of settings: `spell` returns a dotted name as this source writes it, `locate` where it stands."""

    spell: Callable[[str], str]
    locate: Callable[[str], str]
    can_hold_secrets: bool = True


@dataclass(frozen=True)
class Setting:
    """One setting and its source.

    `full_path` is section and name, as in `("decode", "trigger_seconds")` and `("cluster",)`; of a setting of one
    cluster it is `("clusters", "production", "decode", "trigger_seconds")`.
    """

    full_path: tuple[str, ...]
    value: Any
    source: Source

    @property
    def cluster(self) -> str | None:
        """The cluster that the setting is for, or None where it is for all."""
        return self.full_path[1] if self.full_path[0] == CLUSTERS and len(self.full_path) > 2 else None

    @property
    def path(self) -> tuple[str, ...]:
        """Section and name, without the cluster."""
        return self.full_path if self.cluster is None else self.full_path[2:]

    @property
    def name(self) -> str:
        """The dotted name."""
        return ".".join(self.full_path)

    @property
    def place(self) -> str:
        """Where the setting was found, for messages."""
        return self.source.locate(self.name)

    def spell(self, name: str) -> str:
        """Return the name of another setting of the same cluster, as this setting's source writes it."""
        return self.source.spell(".".join([*self.full_path[: len(self.full_path) - len(self.path)], name]))


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without grouptrail's settings: other programs need none, and some are secrets."""
    return {name: value for name, value in environ.items() if not name.startswith(_PREFIX)}


def find_file(path: str | None, environ: Mapping[str, str], problems: list[str]) -> Path | None:
    """Return the file to read, or None where none was named and there is no grouptrail.toml."""
    named = path if path is not None else environ.get(_FILE_VARIABLE)
    if not named:
        return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None
    if Path(named).is_file():
        return Path(named)
    place = "--config" if path is not None else _FILE_VARIABLE
    problems.append(f"{place}: no such file: {named}: check the path")
    return None


def read_file(file: Path | None, problems: list[str]) -> Iterator[Setting]:
    """Yield the settings of a TOML file, none where there is no file."""
    if file is None:
        return
    try:
        tree = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{file}: not valid TOML: {error}")
        return
    except OSError as error:
        problems.append(f"{file}: cannot read the file: {error.strerror}")
        return
    source = Source(spell=lambda name: name, locate=lambda name: f"{file}: {name}")
    for setting in _file_settings(tree, file, source):
        yield replace(setting, value=_located(setting, file)) if setting.path == _FOLLOWED else setting


def _located(setting: Setting, file: Path) -> Any:
    """Return patterns of files that are relative to the folder of the settings file; other values as they are."""
    value = setting.value.split(",") if isinstance(setting.value, str) else setting.value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        return setting.value
    folder = file.absolute().parent
    return [one if not one or is_uri(one) else str(folder / Path(one.strip()).expanduser()) for one in value]


def _file_settings(tree: Mapping[str, Any], file: Path, source: Source) -> Iterator[Setting]:
    for key, value in tree.items():
        if key in ("warehouse", "checkpoints") and isinstance(value, str) and value and not is_uri(value):
            yield Setting((key,), str(file.absolute().parent / Path(value).expanduser()), source)
        elif key == CLUSTERS and isinstance(value, dict):
            yield from _cluster_settings(value, source)
        else:
            yield from _section_settings((key,), value, source)


def _cluster_settings(clusters: Mapping[str, Any], source: Source) -> Iterator[Setting]:
    """Yield one empty setting for each cluster, which names it, and the settings in its sections."""
    for name, sections in clusters.items():
        if isinstance(sections, dict):
            yield Setting((CLUSTERS, name), {}, source)
            for section, value in sections.items():
                yield from _section_settings((CLUSTERS, name, section), value, source)
        else:
            yield Setting((CLUSTERS, name), sections, source)


def _section_settings(path: tuple[str, ...], value: Any, source: Source) -> Iterator[Setting]:
    """Yield the settings of a section, or the one setting where the value is no section."""
    if isinstance(value, dict):
        items = _leaves(value) if path[-1] in CLIENT_SECTIONS else value.items()
        yield from (Setting((*path, name), leaf, source) for name, leaf in items)
    else:
        yield Setting(path, value, source)


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values: TOML reads `sasl.mechanism` without quotes as a table in a table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def read_environment(environ: Mapping[str, str], clusters: Sequence[str]) -> Iterator[Setting]:
    """Yield the settings of environment variables, in the order of their names."""
    cluster_names = {cluster.lower().replace("-", "_"): cluster for cluster in clusters}
    for variable, value in sorted(environ.items()):
        ours = variable.startswith(_PREFIX) and variable != _FILE_VARIABLE
        if ours and not _KUBERNETES_LINK.fullmatch(variable):
            path = variable.removeprefix(_PREFIX).lower().split("__")
            cluster: list[str] = []
            if path[0] == CLUSTERS and len(path) > 2:
                cluster, path = [CLUSTERS, cluster_names.get(path[1], path[1])], path[2:]
            section, *names = path
            if names:
                name = "__".join(names)
                names = [name.replace("_", ".") if section in _DOTTED_SECTIONS else name]
            yield Setting((*cluster, section, *names), value, ENVIRONMENT)


def read_flags(overrides: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the settings of command-line flags, given by dotted names."""
    for name, value in overrides.items():
        path = _path(name)
        if path[0] == "spark" and not name.startswith("spark.spark."):
            path = ("spark", name)
        yield Setting(path, value, COMMAND_LINE)


def variable_name(name: str) -> str:
    """Return the environment variable of a setting given by its dotted name."""
    *sections, last = _path(name)
    return _PREFIX + "__".join([*sections, last.replace(".", "_")]).replace("-", "_").upper()


def _flag(name: str) -> str:
    return _FLAGS.get(name, f"--set {name}")


def _path(name: str) -> tuple[str, ...]:
    """Return section and name of a dotted name. The names of Kafka's and Spark's settings have dots of their own."""
    section, dot, rest = name.partition(".")
    if section != CLUSTERS:
        return (section, rest) if dot else (section,)
    cluster, dot, rest = rest.partition(".")
    return (section, cluster, *_path(rest)) if dot else (section, cluster)


ENVIRONMENT = Source(spell=variable_name, locate=variable_name)
COMMAND_LINE = Source(spell=_flag, locate=_flag, can_hold_secrets=False)
