import pytest

from rmq.errors import InvalidReceipt
from rmq.kernel.core import ids
from rmq.kernel.core.message import Receipt, SendResult
from rmq.kernel.producer.results import CallResults
from rmq.kernel.producer.scripts import SendReply


@pytest.mark.parametrize("text", ["", ":", "0" * 26, "0" * 26 + ":x", "0" * 26 + ":1790000000099"])
def test_a_text_that_is_not_a_receipt_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceipt):
        Receipt.parse(text)


def test_results_of_stored_merged_and_known_messages_are_those_of_each() -> None:
    run, into = ids.make_range(2, 5, 5), ids.make_range(2, 5, 2)
    results = CallResults(run, 2, SendReply(12, "smdms", b"".join(into.members())), "memory")
    each = [("stored", 11), ("merged", 11), ("duplicate", 11), ("merged", 11), ("stored", 12)]
    targets = [None, into[0], None, into[1], None]
    expected = [
        SendResult(id, status, 2, offset, target, "memory")
        for id, (status, offset), target in zip(run, each, targets, strict=True)
    ]

    assert list(results) == expected
    assert [results[n] for n in range(-5, 5)] == expected * 2
    assert results[1:3] == expected[1:3]


def test_results_of_stored_messages_are_a_list_to_those_who_look() -> None:
    run = ids.make_range(2, 5, 3)
    results = CallResults(run, 2, SendReply(12, ""), "fsync")
    expected = [SendResult(run[n], "stored", 2, 10 + n, None, "fsync") for n in range(3)]

    assert list(results) == expected
    assert [results[0], results[1], results[-1]] == expected
    assert results[1:] == expected[1:]
    assert len(results) == 3
    assert results == expected
    assert expected == results
    assert results == CallResults(run, 2, SendReply(12, ""), "fsync")
    assert results != CallResults(run, 2, SendReply(13, ""), "fsync")
    assert repr(results) == repr(expected)
    assert expected[2] in results
    with pytest.raises(IndexError):
        results[3]
    with pytest.raises(TypeError):
        hash(results)
