"""A server in its own network namespace, with a delay.

Two namespaces have a TUN device each, and a child process carries packets between them when they
are due. That also works on kernels without `netem`. The child needs some us of CPU time per packet.
Namespaces and devices are removed when the bench ends; leftovers of a killed bench are removed by
the next run.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import perf_counter

from tests.faults.partition import Network, NotPermitted, Side
from tests.servers import Server, die_with_parent

ADDRESSES: dict[Side, str] = {"left": "10.89.1.1", "right": "10.89.1.2"}
TUN = "/dev/net/tun"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_PR_SET_TIMERSLACK = 29
MTU = 65_000  # a packet holds a batch, as with network cards that segment packets themselves


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise NotPermitted(f"ip {' '.join(words)}: {done.stderr.strip()[:200]}")


def _open(side: Side) -> int:
    """Make a TUN device in this thread's namespace; return its descriptor."""
    try:
        device = os.open(TUN, os.O_RDWR)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH14x", b"far", _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        raise NotPermitted(f"{TUN}: {error.strerror}; needs root, and the module tun") from None
    other = ADDRESSES["left" if side == "right" else "right"]
    _ip("address", "add", ADDRESSES[side], "peer", other, "dev", "far")
    _ip("link", "set", "far", "mtu", str(MTU), "up")
    return device


@contextlib.contextmanager
def far_server(
    binary: str, round_trip_ms: float
) -> Iterator[tuple[Server, str, Callable[[], AbstractContextManager[None]]]]:
    """Start a server with a longer round trip.

    Yields the server, its URL, and a context manager inside which a thread reaches that URL.

    Raises:
        NotPermitted: This machine does not permit namespaces or devices; the error says why.
    """
    with contextlib.ExitStack() as stack:
        network = Network()
        stack.callback(network.close)
        ends = []
        for side in ADDRESSES:
            with network.inside(side):
                ends.append(_open(side))
            stack.callback(os.close, ends[-1])
        carrier = subprocess.Popen(
            [sys.executable, "-m", "bench.link", *map(str, ends), str(round_trip_ms / 2e3)],
            stdin=subprocess.DEVNULL, pass_fds=ends, preexec_fn=die_with_parent,
        )  # fmt: skip
        stack.callback(carrier.wait)
        stack.callback(carrier.kill)
        with network.inside("right"):
            server = Server(binary, "--bind", "0.0.0.0", "--protected-mode", "no")
        stack.callback(server.stop)
        url = f"redis://{ADDRESSES['right']}:{server.port}/0"
        yield server, url, lambda: network.inside("left")


def carry(one: int, other: int, delay_s: float) -> None:
    """Carry packets between two devices, each after a delay, until one of them ends."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # wake up on time, not up to 50 us late
    opposite = {one: other, other: one}
    under_way: deque[tuple[float, int, bytes]] = deque()
    while True:
        wait_s = max(0.0, under_way[0][0] - perf_counter()) if under_way else None
        for device in select.select([one, other], [], [], wait_s)[0]:
            packet = os.read(device, MTU + 100)
            under_way.append((perf_counter() + delay_s, opposite[device], packet))
        while under_way and under_way[0][0] <= perf_counter():
            _, device, packet = under_way.popleft()
            os.write(device, packet)


if __name__ == "__main__":
    carry(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
