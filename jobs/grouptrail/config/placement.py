"""Checks of where a setting was found: some settings are valid only in some sources or sections."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from grouptrail.config.model import SECTIONS
from grouptrail.config.providers import is_reference
from grouptrail.config.secrets import is_secret
from grouptrail.config.sources import CLUSTERS, COMMAND_LINE, ENVIRONMENT, Setting, variable_name
from grouptrail.locations import with_locations_shown

_CLUSTER_NAME = re.compile(r"[A-Za-z0-9_-]+")

# Clusters of one configuration share these: one Spark application writes all of them into one warehouse and serves
# their metrics at one address.
SHARED = ("cluster", "warehouse", "checkpoints", "storage", "spark", "maintain", "otlp")
_SHARED_OF_EXPORTER = (
    *("listen", "refresh_seconds", "also_as", "tls_certificate", "tls_key", "tls_client_ca"),
    *("basic_auth_user", "basic_auth_password", "web_config_file"),
)


def placement_problems(setting: Setting, clusters: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with a setting at its place; `clusters` are those that the file names."""
    if is_bare_section(setting):
        yield f"{setting.place}: is a section, not a setting: set the settings in it"
    if setting.full_path[0] == CLUSTERS and len(setting.full_path) > 1:
        yield from _cluster_problems(setting, clusters)
    elif setting.full_path == ("cluster",) and clusters and setting.source not in (ENVIRONMENT, COMMAND_LINE):
        yield f"{setting.place}: the sections [clusters.NAME] name the clusters: remove it"
    if not setting.source.can_hold_secrets and is_secret(setting.path[-1]):
        remedy = "set it in the configuration file"
        if setting.path[0] != "spark":
            remedy += f" or in {variable_name(setting.name)}"
        yield f"{setting.place}: a secret in a flag is visible to every user of the machine (ps): {remedy}"
    elif is_spark_variable(setting):
        yield (
            f"{setting.place}: Spark's setting names are case-sensitive, environment variables here are not: "
            "use the configuration file or --set"
        )


def _cluster_problems(setting: Setting, clusters: Sequence[str]) -> Iterator[str]:
    name = setting.full_path[1]
    if not _CLUSTER_NAME.fullmatch(name):
        yield f"{setting.place}: a cluster name may contain only letters, digits, - and _"
    elif name not in clusters:
        known = f"configured are {', '.join(clusters)}" if clusters else "the configuration file has no clusters"
        yield f"{setting.place}: no such cluster: {known}"
    elif any(other != name and variable_name(other) == variable_name(name) for other in clusters):
        yield f"{setting.place}: two clusters have the same name in environment variables: rename one"
    section, key = [*setting.path, ""][:2]
    if section in SHARED or (section == "exporter" and key in _SHARED_OF_EXPORTER):
        yield f"{setting.place}: all clusters share this setting: move it out of [clusters.{name}]"


def exposure(file: Path, settings: Sequence[Setting]) -> str | None:
    """Return what is wrong with the rights of a file with these settings: others can read the secrets in it.

    A group may read it that someone chose: of a file that belongs to another user, or to another group than this
    process, as in deploy/README.md.
    """
    if not any(map(_is_secret, settings)):
        return None
    about = file.stat()
    is_usual = (about.st_uid, about.st_gid) == (os.geteuid(), os.getegid())
    unwanted = 0o077 if is_usual else 0o007
    if not about.st_mode & unwanted:
        return None
    rights = "go=" if unwanted & 0o070 else "o="
    return f"{file} has passwords, and other users can read it: chmod {rights} {file}"


def _is_secret(setting: Setting) -> bool:
    value = setting.value
    if not isinstance(value, str) or (setting.path[0] == "kafka" and is_reference(value)):
        return False
    return is_secret(setting.path[-1]) or with_locations_shown(value) != value


def is_bare_section(setting: Setting) -> bool:
    """Return whether a section was given a single value."""
    if setting.full_path[0] == CLUSTERS and setting.cluster is None:
        return bool(setting.value != {})
    return len(setting.path) == 1 and setting.path[0] in SECTIONS


def is_spark_variable(setting: Setting) -> bool:
    """Return whether an environment variable is meant as a Spark setting."""
    return setting.path[0] == "spark" and setting.source is ENVIRONMENT
