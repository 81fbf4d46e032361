"""The objects that offloaded bodies leave in a store, as tests look at them."""

from __future__ import annotations

import fsspec


def objects(url: str) -> list[str]:
    files, root = fsspec.core.url_to_fs(url)
    return sorted(files.find(root))


def damage(url: str, data: bytes | None) -> None:
    files, _ = fsspec.core.url_to_fs(url)
    for path in objects(url):
        files.rm_file(path) if data is None else files.pipe_file(path, data)
