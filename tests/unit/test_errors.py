import rmq
from rmq.errors import RMQError

SIGNALS = ("Snooze", "Reject", "Retry")  # a handler raises them to settle its delivery


def test_every_public_error_is_an_rmq_error() -> None:
    public = [getattr(rmq, name) for name in rmq.__all__ if name not in SIGNALS]
    errors = [cls for cls in public if isinstance(cls, type) and issubclass(cls, Exception)]

    assert len(errors) > 20
    assert [cls for cls in errors if not issubclass(cls, RMQError)] == []


def test_errors_of_a_value_or_a_type_are_those_of_python_too() -> None:
    assert issubclass(rmq.InvalidValue, ValueError)
    assert issubclass(rmq.InvalidType, TypeError)
    assert issubclass(rmq.PayloadTooLarge, ValueError)
