"""The tables of docs/settings.md have a row for each setting and option, as the code has it."""

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.errors import RMQError
from rmq.kernel.core import settings
from rmq.kernel.core.delivery_limits import parse_limits
from rmq.kernel.core.retry import parse_policy
from rmq.kernel.core.validation import TEN_YEARS_MS, parse_duration

PAGE = (Path(__file__).parents[2] / "docs/settings.md").read_text()
DEFAULTS = settings.Settings()
Row = dict[str, str]


def table(page: str, heading: str, number: int = 0) -> dict[str, Row]:
    """Return the rows of a table below a heading, by their first cell without its marks."""
    part = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"(?:^\|.*\n)+", part, re.MULTILINE)[number].splitlines()
    head, _, *rows = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines]
    return {cells[0].strip("`"): dict(zip(head, cells, strict=True)) for cells in rows}


def amount(text: str, is_duration: bool) -> float:
    """Return the number, or the seconds, that a limit stands for."""
    if text == "10 years":
        return TEN_YEARS_MS / 1000
    text = text.replace(" ", "")
    return parse_duration(text) if is_duration else float(text)


def default_of(name: str, text: str) -> object:
    """Return the value that a default stands for, as the code keeps it."""
    if settings._CHECKS[name][0].endswith("_ms"):
        return settings.check({name: None if text == "off" else parse_duration(text)})
    return settings.check({name: int(text) if text.isdecimal() else text})


def is_accepted(name: str, value: Any) -> bool:
    try:
        settings.check({name: value})
    except RMQError:
        return False
    return True


def differences(page: str) -> list[str]:
    """Return what the table of settings says otherwise than the code."""
    rows, found = table(page, "Settings of a topic"), []
    for name in settings.PUBLIC:
        if name not in rows:
            found.append(f"{name} has no row")
            continue
        row, field = rows.pop(name), settings._CHECKS[name][0]
        is_duration = field.endswith("_ms")
        if default_of(name, row["default"].strip("`")) != {field: getattr(DEFAULTS, field)}:
            found.append(f"{name} has another default")
        if (row["set"] == "yes") != (name in settings.CHANGEABLE):
            found.append(f"{name} can be changed, or cannot")
        words = re.findall(r"`(\w+)`", row["limits, unit"])
        found += [
            f"{name} is no {word}"
            for word in words
            if not is_accepted(name, None if word == "off" else word)
        ]
        span = re.match(r"([\d ]+[a-z]*) to ([\d ]+(?:years|[a-z]\b)?)", row["limits, unit"])
        if span is None:
            continue
        low, high = (amount(text.strip(), is_duration) for text in span.groups())
        step = 0.001 if is_duration else 1
        number: Callable[[float], float] = float if is_duration else int
        if not (is_accepted(name, number(low)) and is_accepted(name, number(high))):
            found.append(f"{name} is not {low:g} to {high:g}")
        beyond = [number(high + 1), *([number(low - step)] if low > step else [])]
        found += [f"{name} may be {value:g}" for value in beyond if is_accepted(name, value)]
    return found + [f"{name} is no setting" for name in rows]


def test_each_setting_has_its_row() -> None:
    assert differences(PAGE) == []


@pytest.mark.parametrize(
    ("there", "instead", "found"),
    [
        ("| `lease` |", "| `leese` |", ["lease has no row", "leese is no setting"]),
        ("| `30s` |", "| `31s` |", ["lease has another default"]),
        ("1 s to 12 h", "1 s to 13 h", ["lease is not 1 to 46800"]),
        ("1 s to 12 h", "1 s to 11 h", ["lease may be 39601"]),
        ("1 to 1024", "2 to 1024", ["slots may be 1"]),
        (
            "0 to 16 deliveries | yes",
            "0 to 16 deliveries | no",
            ["max_retries can be changed, or cannot"],
        ),
        ("`dead`, `drop` |", "`dead`, `hide` |", ["on_expire is no hide"]),
        ("16 777 216 bytes", "16 777 217 bytes", ["max_body is not 1 to 1.67772e+07"]),
        ("| `exponential` |", "| `levels` |", ["retry has another default"]),
    ],
)
def test_a_wrong_row_is_found(there: str, instead: str, found: list[str]) -> None:
    assert there in PAGE

    assert differences(PAGE.replace(there, instead, 1)) == found


def options(function: Callable[..., Any], *leave_out: str) -> dict[str, Any]:
    """Return the options of a function, with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    named = [
        each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    return {each.name: each.default for each in named if each.name not in ("self", *leave_out)}


@pytest.mark.parametrize(
    ("heading", "number", "asked"),
    [
        ("Options of a client", 0, options(rmq.Client)),
        ("Options of a send", 0, options(rmq.Topic.send, "body")),
        ("Options of a consumer", 0, options(rmq.Topic.consumer)),
        ("Options of a consumer", 1, options(rmq.Consumer.receive)),
        ("Options of a worker", 0, options(rmq.Worker, "client")),
    ],
)
def test_each_option_has_its_row(heading: str, number: int, asked: dict[str, Any]) -> None:
    rows = table(PAGE, heading, number)

    assert list(rows) == list(asked)
    for name, default in asked.items():
        shown = re.fullmatch(r"`(['\"\w.]+)`(?: s)?", rows[name]["default"])
        if default is not None and default != ():
            assert shown is not None, name
            assert ast.literal_eval(shown[1]) == default, name


def test_the_fields_of_an_outgoing_message_are_the_options_of_a_send() -> None:
    of_a_call = ("durability", "timeout")
    options = [name for name in table(PAGE, "Options of a send") if name not in of_a_call]

    assert [field.name for field in fields(rmq.Outgoing)] == ["body", *options, "marks"]


def test_each_text_means_what_stands_beside_it_in_python() -> None:
    part = PAGE.split("\n### retry, durability and limit as text\n")[1].split("\n## ")[0]
    read: dict[str, Callable[[object], object]] = {
        "retry": parse_policy,
        "durability": settings.parse_durability,
        "limit": parse_limits,
    }
    compared = 0
    for cells in re.findall(r"^\| (.*) \|$", part, re.MULTILINE)[2:]:
        setting, python, text = [re.match(r"`([^`]*)`", cell) for cell in cells.split(" | ")]
        assert setting is not None
        if python and text:
            parse = read[setting[1]]
            assert parse(text[1]) == parse(eval(python[1], {"rmq": rmq})), text[1]
            compared += 1

    assert compared == 9
