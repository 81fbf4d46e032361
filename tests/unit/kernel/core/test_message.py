import pytest

from rmq.errors import InvalidReceipt
from rmq.kernel.core import ids
from rmq.kernel.core.message import Receipt, SendResult
from rmq.kernel.producer.results import StoredResults


@pytest.mark.parametrize("text", ["", ":", "0" * 26, "0" * 26 + ":x", "0" * 26 + ":1790000000099"])
def test_a_text_that_is_not_a_receipt_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceipt):
        Receipt.parse(text)


def test_stored_results_are_a_list_of_results_to_those_who_look() -> None:
    run = ids.make_run(2, 5, 3)
    results = StoredResults(run, 2, 12, "fsync")
    expected = [SendResult(run[n], "stored", 2, 10 + n, None, "fsync") for n in range(3)]

    assert list(results) == expected
    assert [results[0], results[1], results[-1]] == expected
    assert results[1:] == expected[1:]
    assert len(results) == 3
    assert results == expected
    assert expected == results
    assert results == StoredResults(run, 2, 12, "fsync")
    assert results != StoredResults(run, 2, 13, "fsync")
    assert repr(results) == repr(expected)
    assert expected[2] in results
    with pytest.raises(IndexError):
        results[3]
    with pytest.raises(TypeError):
        hash(results)
