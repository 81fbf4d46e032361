from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from rmq.kernel.core.interceptor import middleware_of
from rmq.ledger import exactly_once

ENGINE = sa.create_engine("sqlite://")


@pytest.mark.parametrize("source", ["postgresql://u:hunter2@h/x", None, ENGINE.connect])
def test_a_value_that_is_not_a_source_is_refused_and_not_shown(source: Any) -> None:
    with pytest.raises(rmq.InvalidType, match=r"source: .*give an Engine") as raised:
        exactly_once(source)
    assert "hunter2" not in str(raised.value)


def test_a_function_without_the_parameter_is_refused() -> None:
    def handle(body: Any, session: Any) -> None: ...

    with pytest.raises(rmq.InvalidType, match=r"handle takes no 'connection' by name.*parameter="):
        exactly_once(ENGINE)(handle)
    with pytest.raises(rmq.InvalidType, match="takes no 'db' by name"):
        exactly_once(ENGINE, parameter="db")(handle)
    with pytest.raises(rmq.InvalidType, match="takes no 'given' by name"):
        exactly_once(ENGINE, parameter="given")(lambda body, **given: None)
    assert (
        middleware_of(exactly_once(ENGINE, parameter="session")(handle))[0].parameter == "session"
    )


@pytest.mark.parametrize(
    "options", [{"ttl": 0.5}, {"consumer": "a b"}, {"key": "id"}, {"parameter": 7}]
)
def test_options_out_of_range_are_refused(options: Any) -> None:
    with pytest.raises(rmq.ConfigurationError, match=next(iter(options))):
        exactly_once(ENGINE, **options)(lambda body, connection: None)
