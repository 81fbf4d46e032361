"""Messages of kombu in messages of topics."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta

import pytest

try:
    from rmq.integrations.celery import envelope
except ImportError:
    if os.environ.get("CI"):
        raise
    pytest.skip("the extra celery is not installed", allow_module_level=True)


def message(body="1", **named):
    given = {"headers": {}, "properties": {"priority": 0, "delivery_info": {"exchange": ""}}}
    return {
        "body": body, "content-type": "application/json", "content-encoding": "utf-8", **given,
        **named,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (message('[1, {"a": null}]'), "body"),
        (message("[NaN]"), "text"),
        (message("no json"), "text"),
        (message("a: 1", **{"content-type": "application/x-yaml"}), "text"),
        (message("eJw=", headers={"compression": "application/x-gzip"}), "text"),
        (message(b"\x80\x04N.", **{"content-type": "application/x-python-serialize"}), "hex"),
    ],
)
def test_a_body_is_stored_readable_and_comes_back(given, key):
    packed = envelope.pack(given)

    assert [name for name in ("body", "text", "hex") if name in packed] == [key]
    found = envelope.unpack(packed, "tag")
    assert found["body"] == given["body"]
    assert found["content-type"] == given["content-type"]
    assert found["properties"]["delivery_tag"] == "tag"


def test_a_message_of_another_program_has_a_json_body():
    found = envelope.unpack({"id": 7}, "tag", redelivered=True)

    assert (found["body"], found["content-type"]) == ('{"id": 7}', "application/json")
    assert found["properties"]["delivery_info"] == {"redelivered": True}


@pytest.mark.parametrize(
    ("priority", "reverses", "expected"),
    [(0, False, 100), (9, False, 109), (12, False, 109), (-1, False, 100), (None, False, 100),
     ("x", False, 100), (0, True, 109), (9, True, 100)],
)  # fmt: skip
def test_priorities(priority, reverses, expected):
    given = message(properties={"priority": priority})

    assert envelope.send_options(given, reverses)["priority"] == expected


def test_the_type_is_the_name_of_the_task():
    options = envelope.send_options(message(headers={"task": "a b.c" + "x" * 200}), False)

    assert options["type"] == ("a_b.c" + "x" * 200)[:128]
    assert "type" not in envelope.send_options(message(), False)


def test_times_of_both_protocols():
    due = datetime.now(UTC) + timedelta(seconds=60)
    ends = due + timedelta(seconds=5)
    task = {"task": "t", "eta": due.isoformat(), "expires": ends.isoformat()}
    for given in (message(headers=task), message(str(task).replace("'", '"'))):
        options = envelope.send_options(given, False)
        assert options["at"] == due
        assert options["expires"] == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize("eta", [None, "2020-01-01T00:00:00+00:00", "2999-01-01T00:00:00", "x"])
def test_a_time_that_is_over_or_has_no_zone_is_no_due_time(eta):
    assert "at" not in envelope.send_options(message(headers={"task": "t", "eta": eta}), False)


def test_the_shorter_expiry_counts():
    ends = datetime.fromtimestamp(time.time() + 60, UTC).isoformat()
    given = message(headers={"task": "t", "expires": ends}, properties={"expiration": "2000"})

    assert envelope.send_options(given, False)["expires"] == 2.0
    past = message(headers={"task": "t", "expires": "2020-01-01T00:00:00+00:00"})
    assert envelope.send_options(past, False)["expires"] == 0.001


def test_names_of_topics():
    assert envelope.topic_name("celery") == "celery"
    assert envelope.topic_name("w1@host.dq2", "shop.") == "shop.w1-40-host.dq2"
