"""The names that `rmq worker` accepts, and its errors."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from tests.cli.program import SHOP, Program, write


def failing(start: Callable[..., Program], *words: object) -> tuple[int, str]:
    program = start(*words)
    return program.end(), program.err


def test_a_slip_in_the_name_of_the_module_is_answered_with_where_it_was_looked_for(shop, start):
    told = f"rmq: No module named 'shpo', in {shop} or on Python's path\n"
    assert failing(start, "shpo") == (1, told)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["shop.py"], "'shop.py' is not a module; write it as import does: rmq worker shop"),
        (["shop:clinet"], "has no 'clinet', did you mean 'client'?; there: client (Client)"),
        (["shop:orders"], "shop:orders is a Topic, not an rmq.Client, rmq.AsyncClient or"),
        (["shop", "--topic", "mail"], "no handler is registered for 'mail'; there are"),
        (["shop", "--url", "redis://x"], "--url: a worker serves the client that shop makes"),
        (["shop", "--health", "here"], "'here' is no HOST:PORT"),
        (["json"], "has no rmq.Client, rmq.AsyncClient or rmq.Worker at its top level"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_name_is_refused_with_a_right_one(shop, start, words, told):
    code, err = failing(start, *words)

    assert code == 2
    assert err.startswith("rmq: ")
    assert told in err
    assert len(err.splitlines()) == 1


def test_a_module_that_is_missing_in_a_package_cannot_be_imported(shop, start):
    code, err = failing(start, "shop.handlers")

    assert code == 1
    assert "No module named 'shop.handlers'; 'shop' is not a package, in " in err


def test_two_clients_are_named_and_one_is_asked_for(tmp_path, start):
    write(tmp_path, """
import rmq
a, b, c = (rmq.Client("redis://localhost:1") for _ in range(3))
for one in (a, b):
    one.topic("x").handler()(lambda body: None)
""")  # fmt: skip
    code, err = failing(start, "shop")

    assert code == 2
    assert "several: a (Client), b (Client); say which, as shop:a" in err


def test_a_client_without_handlers_is_reported(tmp_path, start):
    write(tmp_path, 'import rmq\nclient = rmq.Client("redis://localhost:1")\n')

    code, err = failing(start, "shop")

    assert code == 2
    assert "no handler is registered on this client" in err


def test_a_worker_made_by_the_module_is_run_with_its_own_settings(shop, orders, start):
    with (shop / "shop.py").open("a") as file:
        file.write("\nworker = rmq.Worker(client, grace=0)\n")

    assert failing(start, "shop", "--grace", "1s")[1].startswith("rmq: --grace: shop names an")
    program = start("shop").ready()
    orders.send({"sleep": 1000})
    program.wait_for("begin")
    program.ask(signal.SIGTERM)
    assert program.end() == 4


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("import nothing_here", "ModuleNotFoundError: No module named 'nothing_here'"),
        ("def f():\n    return 1 / 0\nf()", "ZeroDivisionError: division by zero"),
        ("x = (", "SyntaxError: '(' was never closed"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_an_error_in_the_module_shows_its_own_traceback_and_nothing_of_ours(
    tmp_path, start, text, last
):
    write(tmp_path, text + "\n")

    code, err = failing(start, "shop")

    assert code == 1
    assert last in err.splitlines()[:-1]
    assert f'File "{tmp_path}/shop.py", line' in err
    assert "importlib" not in err
    assert "target.py" not in err
    assert err.splitlines()[-1].startswith("rmq: module 'shop' cannot be imported: ")


def test_two_handlers_of_one_topic_are_refused_where_the_second_stands(shop, start):
    with (shop / "shop.py").open("a") as file:
        file.write("\n@orders.handler()\ndef again(body): ...\n")

    code, err = failing(start, "shop")

    assert code == 1
    assert "@orders.handler()" in err
    assert "has a handler already, handle; a message has one handler" in err


def test_settings_that_differ_from_those_in_redis_are_wrong_usage(shop, client, name, start):
    client.topic(name, lease=7).open()

    code, err = failing(start, "shop")

    assert code == 2
    assert "lease" in err


def test_check_lists_handlers_and_writes_nothing(shop, client, name, start):
    program = start("shop", "--check")

    assert program.end() == 0
    assert program.out.splitlines()[1].split()[-3:] == ["to", "be", "created"]
    assert name not in client.admin.topics()
    client.topic(name, lease=1, retry="immediate").open()
    assert start("shop", "--check", "--json").end() == 0
    assert json.loads(program.out.splitlines()[-1])["handlers"][0]["exists"] is True


def test_check_tells_what_is_wrong_by_its_exit_code(shop, client, name, start):
    client.topic(name, lease=7).open()
    assert failing(start, "shop", "--check")[0] == 2
    write(shop, SHOP.format(url="redis://127.0.0.1:1", topic=name))
    assert failing(start, "shop", "--check")[0] == 5


def test_the_log_of_a_module_that_has_set_up_logging_is_left_alone(shop, start):
    text = (shop / "shop.py").read_text()
    write(shop, "import logging\nlogging.basicConfig(format='mine: %(message)s')\n" + text)

    program = start("shop").ready()

    assert "mine: working on" in program.err
    assert " INFO " not in program.err


def test_a_failing_handler_is_one_line_in_the_log(tmp_path, server, name, client, start):
    write(tmp_path, f"""
import rmq
client = rmq.Client({server.url!r})
@client.topic({name!r}, max_retries=0).handler()
def handle(body: int) -> None:
    raise RuntimeError("\\x1b[31mred")
""")  # fmt: skip
    program = start("shop").ready()
    id = client.topic(name).send(1).id

    program.wait_for(
        f"handle: {id}, attempt 1, failed, and is a dead letter: RuntimeError: \\x1b[31mred"
    )
