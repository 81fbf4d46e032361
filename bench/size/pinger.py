"""Send PING to a Redis again and again: `python -m bench.size.pinger PORT FILE`.

A process of its own: what it waits for is Redis, and not the interpreter of the one that measures.
It ends when its connection does, or it is terminated.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time

PAUSE_S = 0.0005
RECORD = struct.Struct(
    "dd"
)  # when it was sent, by the monotonic clock, and seconds until its reply


def main(port: int, path: str) -> None:
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port)) as line,
        open(path, "ab", buffering=0) as file,
    ):
        while True:
            began = time.monotonic()
            line.sendall(b"PING\r\n")
            if not line.recv(1024):
                return
            file.write(RECORD.pack(began, time.monotonic() - began))
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
