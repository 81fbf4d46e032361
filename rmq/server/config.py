"""Read the settings of the server.

A setting comes from a flag, the environment, a file, or a default. A flag overrides the
environment, the environment overrides the file, and the file overrides the default.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from rmq.cli_framework import config_file
from rmq.errors import ConfigurationError, InvalidValue
from rmq.kernel.core.environment import variable
from rmq.kernel.core.keys import check_name
from rmq.kernel.core.validation import parse_duration

TOKEN_MIN = 32  # bytes of a token, as many as `openssl rand -hex 16` writes
LOG_LEVELS = ("debug", "info", "warning", "error")


class Address(NamedTuple):
    """The address at which the server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse HOST:PORT. The default host is 127.0.0.1.

        Raises:
            ValueError: The text is not HOST:PORT.
        """
        host, _, port = text.rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is not HOST:PORT, for example 127.0.0.1:8800 or [::]:8800")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Auth = Literal["none", "token", "proxy"]
AUTHS: tuple[Auth, ...] = get_args(Auth)
DEFAULT_LISTEN = Address("127.0.0.1", 8800)
RATE = 500.0  # requests per second
CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS = 512, 64
POLLS = 1000  # long polls and streams of a token
POLLS_ALL = 4000  # of all tokens, because each has a file descriptor and some memory
OF_EVERY_COMMAND = ("url", "prefix")  # top-level keys of the file, outside of the table `server`


# --- readers of settings -------------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def _address(value: object) -> Address:
    return Address.parse(_text(value))


def _prefix(value: object) -> str:
    return check_name(value, "prefix")


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError(f"{value!r} is neither true nor false")


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a duration, for example 10s or 1m")
    seconds = parse_duration(str(value))
    if not 0 <= seconds <= 3600:
        raise ValueError(f"{value!r}: give 0 to 1h")
    return seconds


def read_hosts(value: object) -> tuple[str, ...]:
    """Parse host names from a list, or from text with commas.

    Raises:
        ValueError: A name is not valid.
    """
    listed = _listed(value, "names, for example rmq.internal,10.0.0.7")
    names = tuple(name.lower().strip("[]") for name in listed)
    for name in names:
        if not name or set(name) & set("/@, ") or (name.count(":") == 1):
            raise ValueError(f"{name!r} is not a host name; give it without scheme and port")
    return names


def read_addresses(value: object) -> tuple[str, ...]:
    """Parse addresses or networks from a list, or from text with commas.

    Raises:
        ValueError: An address is not valid.
    """
    return tuple(str(ipaddress.ip_network(each)) for each in _words(value, "addresses"))


def _listed(value: object, of: str) -> list[str]:
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise ValueError(f"{value!r} is not a list of {of}")
    return [each.strip() for each in listed]


def _words(value: object, of: str) -> list[str]:
    words = _listed(value, f"{of}, with commas")
    if not all(words):
        raise ValueError(f"{value!r}: a word is missing")
    return words


def _names(value: object) -> tuple[str, ...]:
    return tuple(_words(value, "names"))


def _root_path(value: object) -> str:
    text = value.rstrip("/") if isinstance(value, str) else value
    if not isinstance(text, str) or not re.fullmatch(r"(/[A-Za-z0-9._~-]{1,64}){0,8}", text):
        raise ValueError(f"{value!r} is not a path, for example /rmq")
    if text.startswith(("/console", "/api", "/livez", "/readyz", "/metrics")):
        raise ValueError(f"{value!r}: the server uses this path itself; choose another path")
    return text


def _header(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9-]{1,64}", value):
        raise ValueError(f"{value!r} is not the name of a header")
    return value


def _one_of(words: Sequence[str]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"{value!r} is not one of {', '.join(words)}")
        return str(value)

    return read


def _count(value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,6}", text) or not int(text):
        raise ValueError(f"{value!r}: give 1 to 999999")
    return int(text)


class Setting(NamedTuple):
    """A setting of the server, and the places where you can set it."""

    name: str
    key: str  # name in the file; a dot separates table and key
    variable: str
    flag: str  # empty if the setting has no flag
    read: Callable[[Any], Any]  # parses text, or a value of TOML; raises ValueError or InvalidValue
    is_secret: bool  # a secret is not part of the repr

    @classmethod
    def of(cls, field: Field[Any]) -> Setting:
        """Return the setting for a field of ServerConfig. Derive its key, variable and flag."""
        word = field.name.removesuffix("_s")
        key = word if field.name in OF_EVERY_COMMAND else f"server.{word}"
        variable = "RMQ_" + key.replace(".", "_").upper()
        flag = "--" + word.replace("_", "-") if field.metadata["has_flag"] else ""
        return cls(field.name, key, variable, flag, field.metadata["read"], not field.repr)

    def checked(self, value: object, where: str) -> Any:
        """Parse the value of a setting. If the value is wrong, the error says where it was set."""
        try:
            return self.read(value)
        except (ValueError, InvalidValue) as error:
            shown = "the value is not valid" if self.is_secret else str(error)
            raise ConfigurationError(f"{where}: {shown}") from None


def _by(read: Callable[[Any], Any], *, has_flag: bool = False) -> dict[str, Any]:
    return {"read": read, "has_flag": has_flag}


# --- settings: a field for each -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of a server.

    Attributes:
        url: URL of Redis. Default: the embedded Redis if `embedded` is set, otherwise
            redis://localhost:6379/0.
        prefix: Prefix of all keys in Redis.
        listen: Address of the HTTP server.
        root_path: Path below which a reverse proxy serves this server, or empty if there is no such
            path.
        hosts: Other host names of this server, besides `listen` and the names of this machine.
        auth: Mode of authentication: "none", "token" or "proxy". Default: "none" at a local address
            without a token, otherwise "token".
        token: Token of an admin. The tokens of `rmq token` are valid as well.
        token_file: File that contains the token.
        proxy_addresses: Addresses or networks of a trusted proxy.
        proxy_user_header: Header in which the proxy names the user.
        proxy_role_header: Header in which the proxy names the user's roles. With None, all users
            are viewers.
        redact: Headers and fields of bodies whose values only admins may see.
        rate: Maximum number of requests per second of a user or program.
        connections_max: Maximum number of open connections.
        connections_per_address: Maximum number of open connections from one address.
        polls: Maximum number of long polls and streams of a token. They do not count as
            connections.
        embedded: Directory of an embedded Redis that the server runs, or None.
        log_level: Log level: debug, info, warning or error.
        log_json: Whether log lines are JSON.
        grace_s: Maximum number of seconds for which a stop waits for services.
        origins: For each setting, where its value comes from.
        file: Configuration file that was read, or None.
    """

    url: str | None = field(default=None, repr=False, metadata=_by(_text, has_flag=True))
    prefix: str = field(default="rmq", metadata=_by(_prefix, has_flag=True))
    listen: Address = field(default=DEFAULT_LISTEN, metadata=_by(_address, has_flag=True))
    root_path: str = field(default="", metadata=_by(_root_path))
    hosts: tuple[str, ...] = field(default=(), metadata=_by(read_hosts, has_flag=True))
    auth: Auth | None = field(default=None, metadata=_by(_one_of(AUTHS), has_flag=True))
    # No flag: other users of the machine can see the arguments of a process.
    token: str | None = field(default=None, repr=False, metadata=_by(_text))
    token_file: str | None = field(default=None, metadata=_by(_text, has_flag=True))
    proxy_addresses: tuple[str, ...] = field(default=(), metadata=_by(read_addresses))
    proxy_user_header: str = field(default="X-Forwarded-User", metadata=_by(_header))
    proxy_role_header: str | None = field(default=None, metadata=_by(_header))
    redact: tuple[str, ...] = field(default=(), metadata=_by(_names))
    rate: float = field(default=RATE, metadata=_by(_count))
    connections_max: int = field(default=CONNECTIONS_MAX, metadata=_by(_count))
    connections_per_address: int = field(default=CONNECTIONS_PER_ADDRESS, metadata=_by(_count))
    polls: int = field(default=POLLS, metadata=_by(_count))
    embedded: str | None = field(default=None, metadata=_by(_text, has_flag=True))
    log_level: str = field(default="info", metadata=_by(_one_of(LOG_LEVELS), has_flag=True))
    log_json: bool = field(default=False, metadata=_by(_switch, has_flag=True))
    grace_s: float = field(default=10.0, metadata=_by(_seconds, has_flag=True))
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
            flags: Value of each setting from a flag, as `Setting.read` returns it. The value is
                None if the flag is missing.
            environ: Environment to read. Default: the environment of this process.
            file: Configuration file. Default: the file that RMQ_CONFIG names, or the first file of
                `config_file.FILES` that exists.

        Raises:
            ConfigurationError: The file cannot be read, or a setting is not valid.
        """
        found, table = config_file.read_file(file or variable(config_file.VARIABLE, environ))
        path = None if found is None else Path(found)
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for setting in SETTINGS:
            in_file = _lookup(table, setting.key)
            if flags.get(setting.name) is not None:
                values[setting.name], origins[setting.name] = flags[setting.name], setting.flag
            elif text := variable(setting.variable, environ):
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
        """Return the token from the settings or from the token file, or None.

        Raises:
            ConfigurationError: The token cannot be read or is too short.
        """
        token = self.token
        if token is None and self.token_file is not None:
            try:
                token = Path(self.token_file).expanduser().read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"token_file: {self.token_file}: {error}") from None
        if token is not None and len(token.encode()) < TOKEN_MIN:
            raise ConfigurationError(f"token: use {TOKEN_MIN} random bytes: openssl rand -hex 32")
        return token

    def choose_auth(self, token: str | None) -> Auth:
        """Return the mode of authentication. Pass the result of `read_token` as `token`.

        Raises:
            ConfigurationError: The server would be open to other machines without a token, or two
                settings contradict each other.
        """
        chosen = self.auth or ("none" if token is None and self.listen.is_local else "token")
        if chosen == "none":
            if not self.listen.is_local:
                raise ConfigurationError(
                    f"auth: none at {self.listen}: every client could do everything; use "
                    "--auth token and create tokens (rmq token create), or listen at 127.0.0.1"
                )
            if token is not None:
                raise ConfigurationError("auth: none, but a token is set; remove one of them")
            if "*" in self.hosts:
                raise ConfigurationError(
                    "hosts: * needs --auth token; or list the names of this server"
                )
        if chosen == "proxy" and not self.proxy_addresses:
            raise ConfigurationError(
                "auth: proxy: set server.proxy_addresses, the addresses of the proxy"
            )
        return chosen

    def changed(self, other: ServerConfig) -> list[str]:
        """Return the names of the settings that another configuration changes."""
        names = [setting.name for setting in SETTINGS]
        return [name for name in names if getattr(self, name) != getattr(other, name)]


SETTINGS = tuple(Setting.of(each) for each in fields(ServerConfig) if each.metadata)


# --- the file ------------------------------------------------------------------------------------


def _lookup(table: Mapping[str, Any], key: str) -> Any:
    value: Any = table
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _refuse_unknown(table: Mapping[str, Any], path: Path | None) -> None:
    known = {setting.key for setting in SETTINGS}
    found = [key for key in table if not isinstance(table[key], Mapping)]
    for name, section in table.items():
        if isinstance(section, Mapping):
            found += [f"{name}.{key}" for key in section]
    unknown = [key for key in found if key not in known]
    if unknown:
        raise ConfigurationError(
            f"{path}: {unknown[0]}: unknown setting; known settings are {', '.join(sorted(known))}"
        )
