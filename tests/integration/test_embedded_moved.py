"""A new owner of an embedded directory may serve it on another socket; clients follow it there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq.kernel.transport.embedded.embedded import Embedded
from tests.conftest import any_binary
from tests.integration.driven import connect
from tests.servers import Server


class Moving:
    """Stands in for an embedded server: `ensure` finds it on the socket of `later`."""

    def __init__(self, first: Path, later: Path) -> None:
        self.socket = str(first)
        self.later = str(later)

    def ensure(self) -> None:
        self.socket = self.later

    def close(self) -> None:
        pass


def test_a_client_follows_its_embedded_server_to_another_socket(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "first", tmp_path / "later"]
    first, later = (Server(any_binary(), "--unixsocket", str(path)) for path in paths)
    try:
        moving: Any = Moving(*paths)
        monkeypatch.setattr(Embedded, "open", lambda directory: moving)
        with connect(kind, f"embedded://{tmp_path}", retry_for=0) as api:
            api.ping()
            first.kill()

            api.topic("moved").send("after")  # the first repetition goes there

            assert api.admin.stats("moved")["accepted"] == 1
        with later.raw() as raw:
            assert raw.smembers("rmq:topics") == {b"moved"}
    finally:
        first.stop()
        later.stop()
