"""The style, the scripts and the icon of the console: a fixed table, read once.

No path of the file system comes from a URL. Addresses have a digest of all assets, so a browser
keeps them for good, and takes the new ones after an upgrade.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files

KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that browsers fetch: its media type, its content, and that compressed with gzip."""

    kind: str
    content: bytes
    packed: bytes


class Assets:
    """All assets.

    Attributes:
        digest: of all of them.
        by_name: each, by the name of its file.
    """

    def __init__(self) -> None:
        contents = {
            file.name: file.read_bytes()
            for file in sorted(
                files("rmq.server.console").joinpath("static").iterdir(), key=lambda file: file.name
            )
            if file.name.rpartition(".")[2] in KINDS
        }
        self.digest = hashlib.sha256(
            b"".join(hashlib.sha256(content).digest() for content in contents.values())
        ).hexdigest()[:12]
        self.by_name = {
            name: Asset(KINDS[name.rpartition(".")[2]], content, gzip.compress(content, mtime=0))
            for name, content in contents.items()
        }
