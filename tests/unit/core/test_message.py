import pytest

from rmq.core.message import Receipt
from rmq.errors import InvalidReceipt


@pytest.mark.parametrize("text", ["", ":", "0" * 26, "0" * 26 + ":x", "0" * 26 + ":1790000000099"])
def test_a_text_that_is_not_a_receipt_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceipt):
        Receipt.parse(text)
