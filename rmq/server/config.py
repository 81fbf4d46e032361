"""Settings of the server: from flags, the environment, a file, or the default; and which of these.

A flag wins over the environment, the environment over the file, the file over the default.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from rmq.core.keys import check_name
from rmq.core.validation import parse_duration
from rmq.errors import ConfigurationError, InvalidValue

FILE_VARIABLE = "RMQ_CONFIG"
FILES = ("rmq.toml", "~/.config/rmq/rmq.toml", "/etc/rmq/rmq.toml")  # the first one that exists
TOKEN_MIN = 32  # bytes of a token, as `openssl rand -hex 16` writes them
LOG_LEVELS = ("debug", "info", "warning", "error")


class Address(NamedTuple):
    """Where the server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse HOST:PORT; the default host is 127.0.0.1.

        Raises:
            ValueError: it is not one.
        """
        host, _, port = text.rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is no HOST:PORT, as 127.0.0.1:8800 or [::]:8800")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    @property
    def is_local(self) -> bool:
        """Whether programs of this machine alone can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DEFAULT_LISTEN = Address("127.0.0.1", 8800)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of a server.

    Attributes:
        url: where Redis is; None: the embedded one, or redis://localhost:6379/0.
        prefix: first part of every key.
        listen: where HTTP is served.
        hosts: names of this server in URLs, beside that of `listen` and of this machine.
        token: what requests must have in their header Authorization; None: no token is needed.
        token_file: where the token is read from, instead.
        embedded: a directory; the server runs a Redis there.
        log_level: debug, info, warning or error.
        log_json: whether log lines are JSON.
        grace_s: seconds that a stop waits for services.
        origins: by the name of a setting, where its value came from.
        file: the configuration file that was read; None: there is none.
    """

    url: str | None = None
    prefix: str = "rmq"
    listen: Address = DEFAULT_LISTEN
    hosts: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    embedded: str | None = None
    log_level: str = "info"
    log_json: bool = False
    grace_s: float = 10.0
    origins: Mapping[str, str]
    file: Path | None = None

    @classmethod
    def load(
        cls,
        flags: Mapping[str, Any],
        environ: Mapping[str, str] | None = None,
        file: str | None = None,
    ) -> ServerConfig:
        """Read all settings.

        Args:
            flags: by name, as `Setting.read` returns them; None: not given.
            environ: the environment; None: that of this process.
            file: the configuration file; None: RMQ_CONFIG, or the first of FILES that exists.

        Raises:
            ConfigurationError: the file cannot be read, or a setting cannot work.
        """
        environ = os.environ if environ is None else environ
        path, table = _read_file(file or environ.get(FILE_VARIABLE))
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for setting in SETTINGS:
            in_file = _lookup(table, setting.key)
            if flags.get(setting.name) is not None:
                values[setting.name], origins[setting.name] = flags[setting.name], setting.flag
            elif environ.get(setting.variable):
                text = environ[setting.variable]
                values[setting.name] = setting.checked(text, setting.variable)
                origins[setting.name] = setting.variable
            elif in_file is not None:
                values[setting.name] = setting.checked(in_file, f"{path}: {setting.key}")
                origins[setting.name] = str(path)
            else:
                origins[setting.name] = "default"
        _refuse_unknown(table, path)
        return cls(**values, origins=origins, file=path)

    def read_token(self) -> str | None:
        """Return the token, from the file where it is in one; None: none is needed.

        Raises:
            ConfigurationError: it cannot be read or is too short, or there is none and other
                machines could ask.
        """
        token = self.token
        if token is None and self.token_file is not None:
            try:
                token = Path(self.token_file).expanduser().read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"token_file: {self.token_file}: {error}") from None
        if token is not None and len(token.encode()) < TOKEN_MIN:
            raise ConfigurationError(f"token: give {TOKEN_MIN} random bytes: openssl rand -hex 32")
        if token is None and not self.listen.is_local:
            raise ConfigurationError(
                f"listen: {self.listen}: other machines could ask, so a token is needed: give "
                "RMQ_SERVER_TOKEN or --token-file, or listen at 127.0.0.1"
            )
        if token is None and "*" in self.hosts:
            raise ConfigurationError("hosts: * needs a token; or give the names of this server")
        return token

    def changed(self, other: ServerConfig) -> list[str]:
        """Return the names of the settings that differ from another configuration's."""
        skipped = ("origins", "file")
        return [
            each.name
            for each in fields(self)
            if each.name not in skipped and getattr(self, each.name) != getattr(other, each.name)
        ]


# --- the settings --------------------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError(f"{value!r} is neither true nor false")


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is no duration, as 10s or 1m")
    seconds = parse_duration(str(value))
    if not 0 <= seconds <= 3600:
        raise ValueError(f"{value!r}: give 0 to 1h")
    return seconds


def read_hosts(value: object) -> tuple[str, ...]:
    """Return names of a host from a list, or from text with commas.

    Raises:
        ValueError: one is no name.
    """
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise ValueError(f"{value!r} is no list of names, as rmq.internal,10.0.0.7")
    names = tuple(name.strip().lower().strip("[]") for name in listed)
    for name in names:
        if not name or set(name) & set("/@, ") or (name.count(":") == 1):
            raise ValueError(f"{name!r} is no name of a host; give it without scheme and port")
    return names


def _level(value: object) -> str:
    if value not in LOG_LEVELS:
        raise ValueError(f"{value!r} is none of {', '.join(LOG_LEVELS)}")
    return str(value)


class Setting(NamedTuple):
    """A setting of the server, and the ways to give it."""

    name: str
    key: str  # in the file; a dot stands between table and key
    variable: str
    flag: str
    read: Callable[[Any], Any]  # from text, or what TOML has; raises ValueError or InvalidValue
    is_secret: bool = False

    def checked(self, value: object, where: str) -> Any:
        """Read a value; an error names where it stood."""
        try:
            return self.read(value)
        except (ValueError, InvalidValue) as error:
            shown = "the value is not valid" if self.is_secret else str(error)
            raise ConfigurationError(f"{where}: {shown}") from None


SETTINGS = (
    Setting("url", "url", "RMQ_URL", "--url", _text, is_secret=True),
    Setting(
        "prefix", "prefix", "RMQ_PREFIX", "--prefix", lambda value: check_name(value, "prefix")
    ),
    Setting(
        "listen", "server.listen", "RMQ_SERVER_LISTEN", "--listen",
        lambda value: Address.parse(_text(value)),
    ),
    Setting("hosts", "server.hosts", "RMQ_SERVER_HOSTS", "--hosts", read_hosts),
    # No flag: whoever sees the processes of a machine sees their words.
    Setting("token", "server.token", "RMQ_SERVER_TOKEN", "", _text, is_secret=True),
    Setting(
        "token_file", "server.token_file", "RMQ_SERVER_TOKEN_FILE", "--token-file", _text,
    ),
    Setting("embedded", "server.embedded", "RMQ_SERVER_EMBEDDED", "--embedded", _text),
    Setting("log_level", "server.log_level", "RMQ_SERVER_LOG_LEVEL", "--log-level", _level),
    Setting("log_json", "server.log_json", "RMQ_SERVER_LOG_JSON", "--log-json", _switch),
    Setting("grace_s", "server.grace", "RMQ_SERVER_GRACE", "--grace", _seconds),
)  # fmt: skip


# --- the file ------------------------------------------------------------------------------------


def _read_file(named: str | None) -> tuple[Path | None, dict[str, Any]]:
    """Read the file that was named, or the first that exists; its path and its table."""
    candidates = [named] if named else FILES
    for candidate in candidates:
        path = Path(candidate).expanduser()
        if not named and not path.is_file():
            continue
        try:
            return path, tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path}: is not TOML: {error}") from None
    return None, {}


def _lookup(table: Mapping[str, Any], key: str) -> Any:
    value: Any = table
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _refuse_unknown(table: Mapping[str, Any], path: Path | None) -> None:
    """Refuse keys that mean nothing: a slip of the pen would go unnoticed."""
    known = {setting.key for setting in SETTINGS}
    found = [key for key in table if not isinstance(table[key], Mapping)]
    for name, section in table.items():
        if isinstance(section, Mapping):
            found += [f"{name}.{key}" for key in section]
    unknown = [key for key in found if key not in known]
    if unknown:
        raise ConfigurationError(
            f"{path}: {unknown[0]}: no such setting; there are {', '.join(sorted(known))}"
        )
