"""The table `rmq_ledger`: one row for each business key of a consumer and topic."""

from __future__ import annotations

import sqlalchemy as sa

from rmq.core.business_key import CONSUMER_BYTES, KEY_BYTES
from rmq.sql.database import ExactText

CONSUMING, CONSUMED = "consuming", "consumed"
COMMAND = "rmq ledger create"  # creates the table

metadata = sa.MetaData()

# InnoDB by name: the default of a server may be MyISAM, which has no transactions.
ledger = sa.Table(
    "rmq_ledger",
    metadata,
    sa.Column("consumer", ExactText(CONSUMER_BYTES), primary_key=True),
    sa.Column("topic", ExactText(128), primary_key=True),
    sa.Column("key", ExactText(KEY_BYTES), primary_key=True),
    sa.Column("state", sa.String(9), nullable=False, comment="consuming, consumed"),
    sa.Column(
        "owner", ExactText(64), nullable=False, comment="message id : delivery number : random"
    ),
    sa.Column("expires", sa.BigInteger, comment="epoch ms; null: never"),
    sa.Column("created", sa.BigInteger, nullable=False, comment="epoch ms"),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)
sa.Index("rmq_ledger_created", ledger.c.created)  # for purge
