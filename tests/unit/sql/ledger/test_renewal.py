"""The thread that renews the ledger's claims."""

from __future__ import annotations

from typing import Any

from rmq.sql.ledger.renewal import ThreadRenewal
from rmq.sql.ledger.rows import Row


def test_all_claims_of_a_ledger_are_renewed_by_one_thread() -> None:
    engine: Any = None  # nothing is due within the test
    renewal = ThreadRenewal(lambda *args, **options: None, engine, False)
    row = Row("mail", "orders", "key", "owner")

    with renewal.renewing(row, 600_000):
        thread = renewal._thread
        assert thread is not None
        with renewal.renewing(row, 600_000):
            assert renewal._thread is thread
    renewal.end()
