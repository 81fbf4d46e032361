"""Settings of the server: where each comes from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import rmq
from rmq.server.config import SETTINGS, Address, ServerConfig

FILE = """
url = "redis://file/1"
prefix = "shop"

[server]
listen = "127.0.0.1:9001"
log_json = true
grace = "30s"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "rmq.toml"
    path.write_text(FILE)
    return str(path)


def test_flag_wins_over_environment_over_file_over_default(file: str) -> None:
    environ = {"RMQ_CONFIG": file, "RMQ_PREFIX": "env", "RMQ_SERVER_GRACE": "5s"}

    config = ServerConfig.load({"grace_s": 1.0}, environ)

    assert (config.grace_s, config.prefix, config.url) == (1.0, "env", "redis://file/1")
    assert (config.listen, config.log_json) == (Address("127.0.0.1", 9001), True)
    assert config.log_level == "info"
    assert dict(config.origins) == {
        "url": file, "prefix": "RMQ_PREFIX", "listen": file, "embedded": "default",
        "log_level": "default", "log_json": file, "grace_s": "--grace", "hosts": "default",
        "root_path": "default",
        "token": "default", "token_file": "default", "auth": "default", "redact": "default",
        "proxy_addresses": "default", "proxy_user_header": "default", "rate": "default",
        "proxy_role_header": "default", "connections_max": "default",
        "connections_per_address": "default", "polls": "default",
    }  # fmt: skip


def test_without_a_file_there_are_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    config = ServerConfig.load({}, {})

    assert config.file is None
    assert str(config.listen) == "127.0.0.1:8800"
    assert set(config.origins) == {setting.name for setting in SETTINGS}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[server\n", "is not TOML"),
        ("[server]\nlisten = 8800\n", "server.listen: 8800 is not text"),
        ("[server]\nlisten = 'here'\n", "server.listen: 'here' is not HOST:PORT"),
        ("[server]\nlisten = ':99999'\n", "server.listen: ':99999' is not HOST:PORT"),
        ("[server]\ngrace = '2h'\n", "server.grace: '2h': give 0 to 1h"),
        ("[server]\ngrace = true\n", "server.grace: True is not a duration"),
        ("[server]\nlog_level = 'loud'\n", "server.log_level: 'loud' is not one of debug"),
        ("[server]\nlog_json = 'perhaps'\n", "server.log_json: 'perhaps' is neither"),
        ("[server]\nlisen = ':1'\n", "server.lisen: unknown setting; known settings are"),
        ("prefix = 'a b'\n", "prefix: "),
        ("[server]\nhosts = ['http://a']\n", "server.hosts: 'http://a' is not a host name"),
        ("[server]\nhosts = [7]\n", "server.hosts: [7] is not a list of names"),
        ("[server]\ntoken = 7\n", "server.token: the value is not valid"),
        ("url = 5\n", "url: the value is not valid"),
    ],
)
def test_what_cannot_work_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "rmq.toml"
    path.write_text(text)

    with pytest.raises(rmq.ConfigurationError) as caught:
        ServerConfig.load({}, {}, str(path))

    assert str(caught.value).startswith(str(path))
    assert named in str(caught.value)


def test_a_named_file_must_exist_and_a_variable_is_named() -> None:
    with pytest.raises(rmq.ConfigurationError, match=r"/nowhere/rmq\.toml: cannot be read"):
        ServerConfig.load({}, {"RMQ_CONFIG": "/nowhere/rmq.toml"})
    with pytest.raises(rmq.ConfigurationError, match="RMQ_SERVER_GRACE: 'soon'"):
        ServerConfig.load({}, {"RMQ_SERVER_GRACE": "soon"})


def test_changes_are_told_by_name(file: str) -> None:
    config = ServerConfig.load({}, {"RMQ_CONFIG": file})
    other = ServerConfig.load({"log_level": "debug"}, {"RMQ_CONFIG": file, "RMQ_PREFIX": "b"})

    assert config.changed(config) == []
    assert other.changed(config) == ["prefix", "log_level"]


@pytest.mark.parametrize(
    ("text", "host", "shown"),
    [
        (":80", "127.0.0.1", "127.0.0.1:80"),
        ("[::1]:80", "::1", "[::1]:80"),
        ("db.local:80", "db.local", "db.local:80"),
    ],
)
def test_addresses_are_parsed_and_shown(text: str, host: str, shown: str) -> None:
    assert Address.parse(text) == (host, 80)
    assert str(Address.parse(text)) == shown


# --- authentication ------------------------------------------------------------------------------

TOKEN = "0123456789abcdef" * 2


def chosen(**given: str) -> str:
    """How requests are authenticated with these settings of the environment."""
    environ = {f"RMQ_SERVER_{name.upper()}": value for name, value in given.items()}
    config = ServerConfig.load({}, environ, "/dev/null")
    return config.choose_auth(config.read_token())


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.8.0.1:1", "[::1]:1", "localhost:1", ":1"])
def test_no_token_is_needed_where_this_machine_alone_can_ask(listen: str) -> None:
    assert chosen(listen=listen) == chosen(listen=listen, auth="none") == "none"
    assert chosen(listen=listen, token=TOKEN) == chosen(listen=listen, auth="token") == "token"


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "10.0.0.7:1", "rmq.internal:1"])
def test_an_address_that_others_reach_needs_tokens(listen: str) -> None:
    assert chosen(listen=listen) == chosen(listen=listen, token=TOKEN) == "token"
    with pytest.raises(rmq.ConfigurationError, match="--auth token and create tokens"):
        chosen(listen=listen, auth="none")
    assert TOKEN not in repr(ServerConfig.load({}, {"RMQ_SERVER_TOKEN": TOKEN}, "/dev/null"))


def test_without_any_setting_this_machine_alone_can_ask() -> None:
    config = ServerConfig.load({}, {}, "/dev/null")

    assert (config.listen.is_local, config.choose_auth(config.read_token())) == (True, "none")


def test_settings_of_who_may_ask_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(rmq.ConfigurationError, match="a token is set"):
        chosen(auth="none", token=TOKEN)
    with pytest.raises(rmq.ConfigurationError, match=r"set server\.proxy_addresses"):
        chosen(auth="proxy")
    assert chosen(auth="proxy", proxy_addresses="10.0.0.0/8, ::1") == "proxy"
    for name, value in (
        ("auth", "yes"), ("proxy_addresses", "proxy.internal"), ("proxy_addresses", "10.0.0.1,"),
        ("proxy_user_header", "X User"), ("rate", "0"), ("connections_max", "-1"),
        ("redact", "a,,b"),
    ):  # fmt: skip
        with pytest.raises(rmq.ConfigurationError, match=f"RMQ_SERVER_{name.upper()}"):
            chosen(**{name: value})


def test_a_token_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    config = ServerConfig.load({"token_file": str(path)}, {}, "/dev/null")
    assert config.read_token() == TOKEN

    path.unlink()
    with pytest.raises(rmq.ConfigurationError, match=r"token_file: .* No such file"):
        config.read_token()


@pytest.mark.parametrize("token", ["short", TOKEN[:-1]])
def test_a_short_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(rmq.ConfigurationError, match="token: use 32 random bytes") as caught:
        ServerConfig.load({}, {"RMQ_SERVER_TOKEN": token}, "/dev/null").read_token()
    assert token not in str(caught.value)


def test_any_name_needs_a_token() -> None:
    with pytest.raises(rmq.ConfigurationError, match="hosts: \\* needs --auth token"):
        chosen(hosts="*")
    assert chosen(hosts="*", token=TOKEN) == "token"
