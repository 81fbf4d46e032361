from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from rmq.ledger import Ledger

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize("engine", [f"postgresql://u:{SECRET}@h/x", None, 7])
def test_a_value_that_is_not_an_engine_is_refused_and_not_shown(engine: Any) -> None:
    with pytest.raises(rmq.InvalidType, match=r"engine: .*create_engine") as raised:
        Ledger(engine)
    assert SECRET not in str(raised.value)


def test_a_ledger_shows_no_password() -> None:
    store = Ledger(sa.create_engine(f"postgresql+psycopg://u:{SECRET}@h/x"))

    assert SECRET not in repr(store)
    assert "postgresql" in repr(store)


@pytest.mark.parametrize("options", [{"consumer": "a b"}, {"consumer": "c" * 65}, {"hold": 0.5}])
def test_options_out_of_range_are_refused(options: Any) -> None:
    with pytest.raises(rmq.InvalidValue, match=next(iter(options))):
        Ledger(sa.create_engine("sqlite://"), **options)
