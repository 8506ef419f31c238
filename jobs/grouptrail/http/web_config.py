"""The web configuration file of Prometheus and its exporters (`--web.config.file`), read again when it changes.

Source of the format: docs/web-configuration.md of Prometheus' exporter toolkit.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from grouptrail.console.progress import Log
from grouptrail.errors import GrouptrailError
from grouptrail.http.access import Access, Users
from grouptrail.http.rates import RateLimit
from grouptrail.http.tls import limit_ciphers, limit_curves, plain_name, tls_context

_REQUIRED = "RequireAndVerifyClientCert"
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    _REQUIRED: ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_HASH = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
# A check at the highest cost takes seconds, at 31 a day.
_COSTS = range(4, 15)
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class WebConfigError(GrouptrailError):
    """A web configuration file, or one that it names, cannot be used."""


@dataclass(frozen=True)
class ServerSettings:
    """How clients connect and what they need: TLS or not, access, headers of all responses, and a limit of rate."""

    tls: ssl.SSLContext | None
    access: Access
    headers: Mapping[str, str] = field(default_factory=dict)
    rate_limit: RateLimit | None = None


class WebConfigFile:
    """The settings in a web configuration file, as of now.

    They are read again once the file, or one that it names, has changed. If that fails, the last ones stay in use and
    `log` gets the reason. Raises WebConfigError if they cannot be used at first.
    """

    def __init__(self, path: Path, access: Access, log: Log) -> None:
        """`access` is what clients need besides what the file says."""
        self._path = path
        self._access = access
        self._log = log
        self._changing = threading.Lock()
        self._files: list[Path] = [path]
        self._seen: list[object] = []
        self._problem: str | None = None
        self._settings = self._read()

    def current(self) -> ServerSettings:
        """Return the settings as of now. May be called from any thread."""
        if _versions(self._files) != self._seen:
            with self._changing:
                if _versions(self._files) != self._seen:
                    self._read_again()
        return self._settings

    def _read_again(self) -> None:
        try:
            settings = self._read()
            if (settings.tls is None) != (self._settings.tls is None):
                raise WebConfigError(f"{self._path}: TLS is switched on and off by a restart alone")
        except WebConfigError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._say(f"{error}; what it said before stays in use")
        else:
            self._settings, self._problem = settings, None
            self._say(f"{self._path} has changed: its users and certificates are in use")

    def _say(self, line: str) -> None:
        # The output may be closed; requests must be answered anyway.
        with contextlib.suppress(OSError, ValueError):
            self._log(line)

    def _read(self) -> ServerSettings:
        # As of before they are read: what changes meanwhile is read again.
        self._seen = _versions(self._files)
        try:
            config = _parsed(self._path)
            tls = config.tls_server_config
            named = [] if tls is None else list(tls.files())
            self._files, self._seen = [self._path, *named], [self._seen[0], *_versions(named)]
            return config.settings(self._access)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            text = "; ".join(_problem(one["type"], one["loc"], one["msg"]) for one in problems)
            raise WebConfigError(f"{self._path}: {text}") from None
        except OSError as error:
            raise WebConfigError(f"{self._path}: {_named(error)}: check the files that it names") from error
        except ValueError as error:
            raise WebConfigError(f"{self._path}: {error}") from error


def _versions(files: list[Path]) -> list[object]:
    """Return what changes with the files, also where a link to them is replaced."""
    return [_version(file) for file in files]


def _version(file: Path) -> object:
    try:
        about = file.stat()
    except OSError as error:
        return error.errno
    return about.st_mtime_ns, about.st_size, about.st_ino, about.st_dev


def _parsed(path: Path) -> _File:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WebConfigError(f"cannot read {path} ({reason}): check exporter.web_config_file") from error
    try:
        tree = yaml.load(text, _UniqueKeys)
    except yaml.YAMLError as error:
        # Not the text itself: it has secrets.
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        raise ValueError(
            f"no valid YAML{where}: {getattr(error, 'problem', None) or 'it cannot be parsed'}"
        ) from None
    if tree is None:
        # Also a file that is just being written: all could see everything for that moment.
        raise ValueError("is empty: write {} for neither TLS nor users")
    config = _File.model_validate(tree)
    tls = config.tls_server_config
    return config if tls is None else config.model_copy(update={"tls_server_config": tls.beside(path)})


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a mapping that has a key twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's
        """Return a mapping."""
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        if len(mapping) < len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key stands twice", node.start_mark)
        return mapping


def _problem(kind: str, place: tuple[int | str, ...], message: str) -> str:
    where = ".".join(map(str, place))
    text = "unknown setting" if kind == "extra_forbidden" else message.removeprefix("Value error, ")
    return f"{where}: {text}" if where else text


def _named(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"the certificate, key or CA cannot be used ({error.reason or error})"
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, tree: Any) -> Any:
        """Leave out what is named without a value, as in `headers:`."""
        return {name: value for name, value in tree.items() if value is not None} if isinstance(tree, dict) else tree


def _one_of(known: Mapping[str, Any], why: str, value: str) -> str:
    if value not in known:
        raise ValueError(f"must be {' or '.join(known)}{why}")
    return value


def _hash(hashed: str) -> str:
    match = _HASH.fullmatch(hashed)
    if not match:
        raise ValueError("is no hash of bcrypt: make one with `htpasswd -nBC 10 USER`")
    if int(match[1]) not in _COSTS:
        raise ValueError(
            f"has the cost {int(match[1])}, for which clients do not wait: use {_COSTS[0]} to {_COSTS[-1]}"
        )
    return hashed


def _duration(value: Any) -> Any:
    """Return the seconds of one of Go's durations, such as 1m30s."""
    if value == 0:
        return 0.0
    if not isinstance(value, str) or not _DURATION.fullmatch(value):
        raise ValueError("must be a duration such as 1s or 200ms")
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)([a-zµ]+)", value))


_Version = Annotated[str, AfterValidator(partial(_one_of, _VERSIONS, ": older versions are not secure (RFC 8996)"))]
_ClientAuth = Annotated[
    str, AfterValidator(partial(_one_of, _CLIENT_AUTH, ": others take certificates that nobody has verified"))
]
_Duration = Annotated[float, BeforeValidator(_duration)]
_Hash = Annotated[str, AfterValidator(_hash)]
_User = Annotated[str, Field(min_length=1, pattern="^[^:]*$")]


class _Tls(_Part):
    cert: str = ""
    key: str = ""
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth_type: _ClientAuth = "NoClientCert"
    client_allowed_sans: tuple[str, ...] = ()
    min_version: _Version = "TLS12"
    max_version: _Version = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True
    curve_preferences: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("cert", "key"):
            if bool(getattr(self, name)) == bool(getattr(self, f"{name}_file")):
                raise ValueError(f"set one of {name} and {name}_file")
        if self.client_ca and self.client_ca_file:
            raise ValueError("set one of client_ca and client_ca_file")
        if (self.client_ca or self.client_ca_file) and self.client_auth_type == "NoClientCert":
            raise ValueError(f"no client is asked for a certificate: set client_auth_type: {_REQUIRED}")
        if self.client_allowed_sans and self.client_auth_type != _REQUIRED:
            raise ValueError(f"client_allowed_sans needs client_auth_type: {_REQUIRED}")
        if self.min_version > self.max_version:
            raise ValueError("min_version is newer than max_version")
        return self

    def files(self) -> Iterator[Path]:
        """Yield the files that are named."""
        yield from map(Path, filter(None, (self.cert_file, self.key_file, self.client_ca_file)))

    def beside(self, path: Path) -> Self:
        """Return the same with relative paths taken from the folder of the configuration file at `path`."""
        names = ("cert_file", "key_file", "client_ca_file")
        located = {name: str(path.parent / getattr(self, name)) for name in names if getattr(self, name)}
        return self.model_copy(update=located)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context. Raises OSError or ValueError."""
        for path in self.files():
            path.read_bytes()  # OpenSSL's error does not name the file
        with tempfile.TemporaryDirectory() as folder:  # Python loads certificates from files alone
            certificate, key = (
                Path(file) if file else _written(Path(folder) / name, text)
                for name, file, text in (("cert", self.cert_file, self.cert), ("key", self.key_file, self.key))
            )
            context = tls_context(certificate, key, None)
        context.verify_mode = _CLIENT_AUTH[self.client_auth_type]
        if self.client_ca or self.client_ca_file:
            context.load_verify_locations(self.client_ca_file or None, cadata=self.client_ca or None)
        elif context.verify_mode is not ssl.CERT_NONE:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = _VERSIONS[self.min_version]
        context.maximum_version = _VERSIONS[self.max_version]
        if not self.prefer_server_cipher_suites:
            context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        if self.cipher_suites:
            limit_ciphers(context, self.cipher_suites)
        if self.curve_preferences:
            limit_curves(context, self.curve_preferences)
        return context


def _written(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


class _Headers(_Part):
    strict_transport_security: str = Field(default="", alias="Strict-Transport-Security")
    content_type_options: Literal["", "nosniff"] = Field(default="", alias="X-Content-Type-Options")
    frame_options: Literal["", "deny", "sameorigin"] = Field(default="", alias="X-Frame-Options")
    xss_protection: str = Field(default="", alias="X-XSS-Protection")
    content_security_policy: str = Field(default="", alias="Content-Security-Policy")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(not value.isprintable() or not value.isascii() for value in self.named().values()):
            raise ValueError("the value of a header must be ASCII text of one line")
        return self

    def named(self) -> dict[str, str]:
        """Return the values that are set by the headers' names."""
        return {name: value for name, value in self.model_dump(by_alias=True).items() if value}


class _Http(_Part):
    http2: bool = True
    """Has no effect: the server speaks HTTP/1.1, as every client can."""
    headers: _Headers = _Headers()


class _Rate(_Part):
    interval: _Duration = 0.0
    burst: int = Field(default=0, ge=0)


class _File(_Part):
    tls_server_config: Annotated[_Tls | None, BeforeValidator(lambda tree: tree or None)] = None
    http_server_config: _Http = _Http()
    basic_auth_users: dict[_User, _Hash] = Field(default_factory=dict)
    rate_limit: _Rate = _Rate()

    def settings(self, access: Access) -> ServerSettings:
        """Return the server's settings; `access` has what the file does not say. Raises OSError or ValueError."""
        tls = self.tls_server_config
        if tls is not None:
            access = replace(
                access,
                has_certificates=tls.client_auth_type == _REQUIRED,
                allowed_names=frozenset(map(plain_name, tls.client_allowed_sans)),
            )
        if self.basic_auth_users:
            access = replace(access, users=Users({}, self.basic_auth_users))
        rate = self.rate_limit
        return ServerSettings(
            None if tls is None else tls.context(),
            access,
            self.http_server_config.headers.named(),
            RateLimit(rate.interval, rate.burst) if rate.interval else None,
        )
