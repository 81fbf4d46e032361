import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mssql

import rmq
from rmq.sql.database import now_ms


def test_another_database_is_refused_by_name():
    with pytest.raises(rmq.ConfigurationError, match="mssql is not supported"):
        sa.select(now_ms()).compile(dialect=mssql.dialect())
