"""Ask the sentinels which server is the master, for the heartbeat's process.

As `rmq.kernel.transport.master_finder`, with nothing but the standard library.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not imported: `typing` would be a tenth of the heartbeat's memory
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


ASK_S = 1.0  # a connection is kept for so long without asking again
ANSWER_TIMEOUT_S = 0.5  # to connect to a sentinel, and for its reply


def master(options: dict[str, Any], connect: Callable[[dict[str, Any]], Any]) -> tuple[str, int]:
    """Return host and port of the master.

    Args:
        options: of the connections of a client, as `Transport.connection_options` gives them.
        connect: makes a ScriptConnection with such options.

    Raises:
        OSError: no sentinel names a master that can be used.
    """
    given = options["sentinels"]
    errors = []
    for host, port in given["hosts"]:
        sentinel = connect(
            {
                "host": host, "port": port, "tls": options.get("tls"),
                "username": given["username"], "password": given["password"],
                "timeout": min(options["timeout"], ANSWER_TIMEOUT_S),
            }
        )  # fmt: skip
        try:
            reply = sentinel.send_words(["SENTINEL", "MASTER", given["service"]])
            if not isinstance(reply, list):
                raise OSError(str(reply))
            fields = dict(zip(reply[::2], reply[1::2]))  # noqa: B905
            if {b"s_down", b"o_down"} & set(fields[b"flags"].split(b",")):
                raise OSError("it cannot reach the master")
            return fields[b"ip"].decode(), int(fields[b"port"])
        except OSError as error:
            errors.append(f"{host}:{port}: {error}")
        finally:
            sentinel.close()
    raise OSError(f"no sentinel names a master ({'; '.join(errors)})")
