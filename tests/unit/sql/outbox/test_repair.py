from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from rmq.outbox import Outbox


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (("sqlite://", 1), rmq.InvalidType, "engine: str"),
        ((None, -1), rmq.InvalidValue, "older_than"),
        ((None, "1d"), rmq.InvalidType, "older_than"),
    ],
)
def test_purge_names_the_argument_that_it_refuses(
    given: tuple[Any, Any], error: type[Exception], message: str
) -> None:
    engine = given[0] or sa.create_engine("sqlite://")

    with pytest.raises(error, match=message):
        Outbox().purge(engine, given[1])
