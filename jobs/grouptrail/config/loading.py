"""Load the configuration: merge the sources, split by cluster, validate, and report every problem at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from grouptrail.config.model import GROUPTRAIL_SECTIONS, SECTIONS, Config
from grouptrail.config.placement import exposure, is_bare_section, is_spark_variable, placement_problems
from grouptrail.config.sources import (
    CLUSTERS,
    COMMAND_LINE,
    ENVIRONMENT,
    Setting,
    find_file,
    read_environment,
    read_file,
    read_flags,
)
from grouptrail.errors import GrouptrailError


class ConfigError(GrouptrailError):
    """The configuration is wrong: the message has one line for each problem, with its place."""

    def __init__(self, problems: list[str]) -> None:
        head = [] if len(problems) == 1 else [f"{len(problems)} problems in the configuration:"]
        super().__init__("\n  ".join([*head, *problems]))
        self.problems = problems


def load_config(
    path: str | os.PathLike[str] | None,
    overrides: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """Load the configuration of one cluster: the only one, or the one that the setting `cluster` names.

    Parameters and errors are those of `load_configs`; raises ConfigError, too, where there are several clusters and
    none is named.
    """
    configs = load_configs(path, overrides, environ)
    if len(configs) > 1:
        names = ", ".join(config.cluster for config in configs)
        raise ConfigError([f"several clusters are configured ({names}): select one with --cluster"])
    return configs[0]


def load_configs(
    path: str | os.PathLike[str] | None,
    overrides: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
) -> tuple[Config, ...]:
    """Load the configuration of every cluster, or of the one that the setting `cluster` names.

    `path` is the TOML file (None: GROUPTRAIL_CONFIG, else grouptrail.toml if there is one), `overrides` the flags by
    dotted name. Raises ConfigError with every problem of file, environment and flags.
    """
    problems: list[str] = []
    file = find_file(None if path is None else str(path), environ, problems)
    settings = list(read_file(file, problems))
    warning = None if file is None else exposure(file, settings)
    clusters = tuple(
        dict.fromkeys(
            setting.full_path[1] for setting in settings if setting.full_path[0] == CLUSTERS and setting.full_path[1:]
        )
    )
    settings += [*read_environment(environ, clusters), *read_flags(overrides)]
    problems += [problem for setting in settings for problem in placement_problems(setting, clusters)]
    configs = [_validate(part, problems) for part in _by_cluster(settings, clusters, problems)]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return tuple(config.with_warning(warning) for config in configs if config is not None)


def _by_cluster(settings: list[Setting], clusters: Sequence[str], problems: list[str]) -> Iterator[list[Setting]]:
    """Yield the settings of each cluster; later ones override earlier ones.

    Settings of the cluster override those that all clusters share, and flags override both.
    """
    if not clusters:
        yield settings
        return
    asked = [setting for setting in settings if setting.full_path == ("cluster",)]
    if asked and asked[-1].value not in clusters:
        problems.append(f"{asked[-1].place}: no such cluster: configured are {', '.join(clusters)}")
        return
    shared = [setting for setting in settings if setting.full_path[0] not in ("cluster", CLUSTERS)]
    chosen = [asked[-1].value] if asked else clusters
    problems += [
        f"{setting.place}: several clusters are configured: select one with --cluster"
        for setting in shared
        if len(chosen) > 1 and setting.path == ("kafka", "bootstrap.servers") and setting.source is COMMAND_LINE
    ]
    problems += [
        f"{setting.place}: {len(clusters)} clusters are configured, and a file has lines of one: set "
        f"{CLUSTERS}.NAME.broker_log.files"
        for setting in shared
        if len(clusters) > 1 and setting.path == ("broker_log", "files") and setting.value
        if setting.source is not COMMAND_LINE or len(chosen) > 1
    ]
    for name in chosen:
        merged = [*shared, *(setting for setting in settings if setting.cluster == name)]
        merged.sort(key=lambda setting: setting.source is COMMAND_LINE)
        yield [*merged, Setting(("cluster",), name, ENVIRONMENT)]


def _validate(settings: list[Setting], problems: list[str]) -> Config | None:
    """Return the configuration, or None after adding its problems."""
    tree: dict[str, Any] = {}
    by_path: dict[tuple[str, ...], Setting] = {}
    for setting in settings:
        if not is_bare_section(setting) and not is_spark_variable(setting):
            by_path[setting.path] = setting
            *sections, name = setting.path
            node = tree.setdefault(sections[0], {}) if sections else tree
            node[name] = setting.value
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_context=True, include_input=False):
            path = tuple(str(part) for part in fault["loc"])
            setting = (
                by_path.get(path)
                or by_path.get(path[:2])
                or next(other for at, other in by_path.items() if at[0] == path[0])
            )
            problems.append(f"{setting.place}: {_message(fault['type'], fault['msg'], setting)}")
    return None


def _message(kind: str, message: str, setting: Setting) -> str:
    """Return pydantic's message as one line; for an unknown setting, suggest the known ones."""
    if kind != "extra_forbidden":
        return message.removeprefix("Value error, ")
    known = [name for name in Config.model_fields if name not in SECTIONS]
    known += [f"{name}.{key}" for name, section in GROUPTRAIL_SECTIONS.items() for key in section.model_fields]
    spelled = {setting.spell(name): name for name in known}
    near = get_close_matches(setting.source.spell(setting.name), spelled, n=1, cutoff=0.8) or [
        text for text, name in spelled.items() if name.split(".")[-1] == setting.path[-1]
    ]
    if near:
        return f"unknown setting: did you mean {near[0]}?"
    return f"unknown setting: known settings are {', '.join(spelled)}"
