"""Read the business key of a delivery, and check business keys and names of consumers.

A business key identifies work that must be done once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmq.errors import InvalidKey, InvalidType, InvalidValue
from rmq.kernel.core.keys import check_name
from rmq.kernel.delivery.delivery import DeliveryData

KEY_BYTES = 200  # UTF-8; fits a unique index of MariaDB, and a claim in a worker's memory
CONSUMER_BYTES = 64
HEADER = "header:"

Key = str | Callable[[Any], object] | None


def key_reader(key: Key) -> Callable[[DeliveryData], str]:
    """Return the function that reads the business key of a delivery.

    The returned function gives a key of 1 to 200 bytes of UTF-8. It raises InvalidKey if the
    delivery has no such key.

    Args:
        key: "header:NAME" for the value of a header, or a function that gets the handler's body, or
            None. With None, the key is the message's id without its slot. If the message has a
            dedup key, the slot and the acceptance number are added.

    Raises:
        InvalidType: The key is not a str, a function or None.
        InvalidValue: The key is a str but not "header:NAME".
    """
    if key is None:
        return _default_key
    if callable(key):
        return lambda delivery: _checked(_call(key, delivery), delivery, "the function")
    if not isinstance(key, str):
        raise InvalidType(
            f"key: {type(key).__name__}; give 'header:NAME' or a function of the body"
        )
    if not key.startswith(HEADER) or key == HEADER:
        raise InvalidValue(f"key: {key!r}; give 'header:NAME' or a function of the body")
    name = key.removeprefix(HEADER)
    return lambda delivery: _checked(delivery.headers.get(name), delivery, f"header {name!r}")


def _default_key(delivery: DeliveryData) -> str:
    # The id has no slot, as in an outbox stub. If a topic is created again with another number of
    # slots, the stub is resent under an id with another slot, and must keep its key.
    id = str(delivery.id.with_slot(0, 0))
    if not delivery.id.is_derived or delivery.schedule_time is not None:
        return id
    # A message that is sent again after the dedup window, or with another basis, has the same id.
    # It is a new message with new work, so its key needs slot and acceptance number.
    return f"{id}:{delivery.slot}:{delivery.offset}"


def _call(key: Callable[[Any], object], delivery: DeliveryData) -> object:
    try:
        return key(delivery.body)
    except Exception as error:
        raise InvalidKey(
            f"key: {getattr(key, '__qualname__', key)!s} raised {type(error).__name__} for "
            f"{delivery.id}: {error}; nothing was run"
        ) from error


def _checked(key: object, delivery: DeliveryData, source: str) -> str:
    try:
        return check_key(str(key) if type(key) is int else key)
    except InvalidValue as error:
        reason = str(error).removeprefix("key: ")
        raise InvalidKey(
            f"key: {source} gave for {delivery.id}: {reason}. Nothing was run"
        ) from None


def check_key(key: object) -> str:
    """Check that a business key has 1 to 200 bytes of UTF-8, and return the key.

    Raises:
        InvalidValue: The key is not 1 to 200 bytes of UTF-8.
    """
    if not isinstance(key, str):
        raise InvalidValue(f"key: {type(key).__name__}; a key is a str or an int")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidValue("key: text that is not valid Unicode") from None
    if not 1 <= size <= KEY_BYTES:
        raise InvalidValue(
            f"key: {size} bytes; a key has 1 to {KEY_BYTES}, give a digest of a longer key"
        )
    return key


def check_consumer(name: str) -> str:
    """Check the name of a consumer, and return the name.

    The consumer keeps its claims or ledger rows under this name.

    Raises:
        InvalidType: The name is not a str.
        InvalidValue: The name does not consist of 1 to 64 characters A-Z a-z 0-9 . _ -
    """
    if len(check_name(name, "consumer")) > CONSUMER_BYTES:
        raise InvalidValue(f"consumer: {len(name)} characters; give at most {CONSUMER_BYTES}")
    return name
