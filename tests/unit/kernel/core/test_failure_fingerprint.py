"""Fingerprints: golden values, and what must not change them."""

from __future__ import annotations

import pytest

from rmq.kernel.core.failure import Failure, fingerprint, normalised, origin

TRACE = """Traceback (most recent call last):
  File "/srv/venv/lib/python3.11/site-packages/rmq/worker/running/invoker.py", line 80, in run
    handler(delivery)
  File "/srv/app/orders.py", line {line}, in charge
    client.post(url)
  File "/srv/venv/lib/python3.11/site-packages/httpx/_client.py", line 1, in post
    raise TimeoutException
httpx.ReadTimeout: {text}
"""


def dead(error: str, line: int = 12, reason: str = "failed") -> Failure:
    return Failure(reason, 3, error, TRACE.format(line=line, text=error))


# The values themselves: a change of them splits every group that users know. Do not adapt them.
GOLDEN = {
    "ReadTimeout: no answer in 30 s": "738e1a4eef50",
    "KeyError: 'tenant-7'": "15f4893b672e",
    "ValueError: order 17 has -3.5 items": "314b0c2d20cb",
    "ZeroDivisionError": "38c72e57f4e0",
    "": "9c874788f0b9",
}


@pytest.mark.parametrize("error", GOLDEN)
def test_the_fingerprint_of_an_error_is_this(error: str) -> None:
    assert fingerprint(dead(error)) == GOLDEN[error]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: order 17 is bad", "ValueError: order 9000001 is bad"),
        ("KeyError: 'a'", "KeyError: 'b c d'"),
        ("E: 0e2d0f3c-5a43-4c58-a0c4-7a2b33d3a111", "E: 6f2d0f3c-5a43-4c58-a0c4-7a2b33d3a999"),
        ("E: id 06gvgg09v400001cftsm90hr4s gone", "E: id 06gvgg09v400001cftsm90hr5t gone"),
        ("E: at 0x7f001122 in", "E: at 0xdeadbeef00 in"),
        ("E: no /tmp/a/b.txt here", "E: no /var/lib/x here"),
        ("E: GET https://a.b/c?d=1 failed", "E: GET http://x.y failed"),
        ("E: took 1.5 s", "E: took 12 s"),
        ("E: first\nsecond line a", "E: first\nanother line"),
    ],
)  # fmt: skip
def test_what_differs_from_message_to_message_does_not_count(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)
    assert fingerprint(dead(one)) == fingerprint(dead(other, line=99))


def test_type_message_place_and_reason_count() -> None:
    prints = {
        fingerprint(dead("ValueError: bad colour")),
        fingerprint(dead("TypeError: bad colour")),
        fingerprint(dead("ValueError: bad shape")),
        fingerprint(Failure("failed", 3, "ValueError: bad colour")),
        fingerprint(dead("ValueError: bad colour", reason="rejected")),
    }
    assert len(prints) == 5


def test_the_origin_is_the_last_frame_in_the_users_own_code() -> None:
    assert origin(TRACE.format(line=1, text="x")) == "orders.py:charge"
    assert origin('  File "C:\\app\\jobs.py", line 3, in <module>\n') == "jobs.py:<module>"
    assert origin("") == ""


def test_deliveries_do_not_count_and_none_has_no_fingerprint() -> None:
    assert fingerprint(Failure("failed", 1, "x")) == fingerprint(Failure("failed", 9, "x"))
    assert fingerprint(None) == ""
