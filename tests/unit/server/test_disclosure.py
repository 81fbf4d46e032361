"""Disclosure: bodies, fields and tracebacks that a principal is not shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmq.http_framework import message as web_message
from rmq.http_framework.message import HIDDEN
from rmq.http_framework.principal import Principal
from rmq.http_framework.problems import ApiError
from rmq.kernel.core.access import Role
from rmq.server.disclosure import Disclosure

SECRET = "4111-1111"
VIEWER = Principal("v", Role.VIEWER, False, "token")
READER = Principal("r", Role.VIEWER, True, "token")
OPERATOR = Principal("o", Role.OPERATOR, False, "token")
ADMIN = Principal("a", Role.ADMIN, False, "token")


def message(body: Any, **headers: str) -> web_message.MessageList:
    failure = web_message.Failure(
        reason="failed", deliveries=2, error="ValueError: no", traceback="File 1", fingerprint="f"
    )
    attempt = web_message.Attempt(
        number=1, at=None, reason="failed", error="KeyError", traceback="File 2", worker="h:1"
    )
    step = web_message.Step(name="s", state="done", at=None, value=web_message.body_of(body))
    shown = web_message.StoredMessage(
        id="0" * 26, queue="dead", slot=0, offset=1, body=web_message.body_of(body), type=None,
        group=None, share_key=None, weight=None, held=False,
        priority=None, due=None, expires=None, merge_key=None, headers=headers, deliveries=2,
        deadline=None, held_by_query=False, died=None, failure=failure, unreadable="",
        attempts=[attempt], steps=[step], waits_for=None,
    )  # fmt: skip
    return web_message.MessageList(messages=[shown], cursor=None)


def test_a_viewer_sees_no_body_and_no_traceback_but_the_error() -> None:
    shown = Disclosure().shown(VIEWER, message({"card": SECRET})).messages[0]

    assert (shown.body.kind, shown.body.text) == ("hidden", HIDDEN)
    assert shown.steps[0].value.text == HIDDEN
    assert shown.body.size == len(json.dumps({"card": SECRET}))
    assert (shown.failure.traceback, shown.failure.error) == (HIDDEN, "ValueError: no")
    assert (shown.attempts[0].traceback, shown.attempts[0].error) == (HIDDEN, "KeyError")


@pytest.mark.parametrize("principal", [READER, OPERATOR, ADMIN], ids=lambda each: each.name)
def test_who_may_see_bodies_sees_all(principal: Principal) -> None:
    shown = Disclosure().shown(principal, message({"card": SECRET}, k="v"))

    assert shown == message({"card": SECRET}, k="v")


@pytest.mark.parametrize(
    "body",
    [
        {"card": SECRET},
        {"a": [{"Card": SECRET}]},
        {"card": {"number": SECRET}},
        json.dumps({"card": SECRET}),
        json.dumps({"card": SECRET}).encode(),
        '{"c\\u0061rd": "' + SECRET + '"}',
        f"card={SECRET}",
        f"card={SECRET}".encode(),
        {"card": SECRET, "raw": b"\xff"},
        {"Message": json.dumps({"card": SECRET})},
        {"Message": json.dumps({"Message": json.dumps([{"CARD": SECRET}])})},
        {"Message": '{"c\\u0061rd": "' + SECRET + '"}'},
        {"fields": [["card", SECRET]]},
        {"params": [{"name": "Card", "value": SECRET}]},
        {"form": f"a=1&card={SECRET}"},
        {"url": f"https://shop.example/?card={SECRET}"},
        json.dumps({"card": SECRET}).encode("utf-16"),
        f"card={SECRET}".encode("utf-16"),
        {"pad": ["x"] * web_message.DECODED_MAX, "card": SECRET},
        {"pad": "x" * web_message.SHOWN_MAX, "card": SECRET},
        {"card": SECRET + "x" * web_message.SHOWN_MAX},
    ],
)
def test_redacted_fields_are_nowhere_in_an_answer(body: Any) -> None:
    found = Disclosure(("CARD",)).shown(OPERATOR, message(body, token="t", n="1")).messages[0]

    assert SECRET not in found.body.text
    assert SECRET not in found.steps[0].value.text
    assert found.body.kind in ("json", "hidden")
    assert found.headers == {"token": "t", "n": "1"}
    unchanged = Disclosure(("card",)).shown(ADMIN, message(body))
    assert unchanged == message(body)  # the control: an admin sees it


def test_what_has_no_such_field_stays_as_it_is() -> None:
    body = {"n": 1, "Message": '{ "n":1.0 }', "tags": ["a", "b"], "text": "no such thing"}

    found = Disclosure(("card",)).shown(OPERATOR, message(body)).messages[0]

    assert found.body == web_message.body_of(body)


def test_a_body_that_is_nested_too_deeply_to_be_looked_through_is_hidden() -> None:
    text = "[" * 900 + '{"card": 1}' + "]" * 900

    found = Disclosure(("card",)).shown(OPERATOR, message(text)).messages[0]

    assert '"card": 1' not in found.body.text


def test_redacted_headers_keep_their_names() -> None:
    found = Disclosure(("Token",)).shown(READER, message(1, token="t", n="1")).messages[0]

    assert found.headers == {"token": "***", "n": "1"}
    assert found.body.text == "1"


@pytest.mark.parametrize(
    ("principal", "text", "refused"),
    [
        (VIEWER, "body.n=1", True),
        (VIEWER, "error contains x and not (body contains 1)", True),
        (VIEWER, "error contains x and header.tenant=7", False),
        (VIEWER, "header.token=7", True),
        (READER, "body.n=1", False),
        (READER, "body.card contains 4", True),
        (OPERATOR, "body.x[0].Card=4", True),
        (OPERATOR, "body.x contains 4", True),
        (OPERATOR, "body.x=4", False),
        (OPERATOR, 'body.x[1]<"4"', True),
        (OPERATOR, "body.x<4", False),
        (ADMIN, "body.card contains 4 and header.token=7", False),
    ],
)
def test_a_filter_does_not_ask_for_what_is_not_shown(
    principal: Principal, text: str, refused: bool
) -> None:
    disclosure = Disclosure(("card", "token"))
    if refused:
        with pytest.raises(ApiError) as caught:
            disclosure.check_filter(principal, text)
        assert caught.value.kind == "forbidden"
    else:
        disclosure.check_filter(principal, text)
