"""Store large bodies outside of Redis, and refer to them in messages.

The body in a message is then a reference:

    1 byte      0x43: the body is an object, in the format of `Compressed`
    the rest    msgpack: store, name, bytes, SHA-256 of the object

The name of an object is <topic>/<stamp of the topic>/<time>-<random>, so RMQ never writes an object
twice. Other programs may write references to Redis, so a process uses only the stores in its own
configuration. Calls of a store block, so RMQ runs them in a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgpack

from rmq.errors import ConfigurationError, DecodeError, InvalidValue, StoreUnavailable
from rmq.kernel.core import packages
from rmq.kernel.core.environment import variable

OFFLOADED = 4  # how a body of codec 3 is stored; continues the numbers of `compression`
FIRST = bytes((OFFLOADED << 4 | 3,))
VARIABLE = "RMQ_STORES"
THREADS = 8  # threads that read, write or remove objects for one call
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}/[0-9]{1,20}/([0-9]{14})-[0-9a-f]{24}", re.ASCII)
_TIME = "%Y%m%d%H%M%S"

T = TypeVar("T")
U = TypeVar("U")


class Reference(NamedTuple):
    """The bytes in a stored message that say where its body is.

    They name the store and the object, and contain the object's size and SHA-256.
    """

    store: str
    name: str
    size: int
    digest: bytes

    @classmethod
    def read(cls, packed: bytes) -> Reference:
        """Read a reference from its bytes. If the bytes are not a reference, raise DecodeError."""
        try:
            reference = cls(*msgpack.unpackb(packed))
            if tuple(map(type, reference)) == (str, str, int, bytes):
                name = _NAME.fullmatch(reference.name)
                if name and not reference.name.startswith(("./", "../")):
                    return reference
        except (ValueError, TypeError, msgpack.UnpackException):
            pass
        raise DecodeError(f"body of {len(packed)} bytes: its reference to a store is damaged")

    @property
    def packed(self) -> bytes:
        """The reference as bytes, which a stored message contains."""
        packed: bytes = msgpack.packb(tuple(self))
        return packed

    @property
    def described(self) -> str:
        """The reference as a text for people."""
        return f"its body of {self.size} bytes, {self.store}/{self.name}"


def not_read(packed: bytes) -> DecodeError:
    """Return the error for a body that RMQ has not read from its object store."""
    reference = Reference.read(packed)
    error = DecodeError(f"{reference.described}, is in a store (rmq.Offloaded)")
    error.reference = reference
    return error


class Store:
    """A store for objects.

    Args:
        url: URL for fsspec: memory://..., file:///..., s3://bucket/...
    """

    def __init__(self, url: str) -> None:
        if not isinstance(url, str) or "://" not in url:
            raise InvalidValue(f"store: {url!r}; give a URL, such as file:///srv/bodies")
        if "@" in urlsplit(url).netloc:
            raise InvalidValue("store: the URL has a user; set the user in fsspec's configuration")
        self.url = url.rstrip("/")
        self._files()

    def _files(self) -> tuple[Any, str]:
        """Return fsspec's file system for this process, and the store's root."""
        options = {"auto_mkdir": True} if self.url.startswith(("file:", "local:")) else {}
        fsspec = packages.load("fsspec", "offloaded", "rmq.Offloaded")
        try:
            files, root = fsspec.core.url_to_fs(self.url, **options)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(f"store: {self.url}: {error}") from error
        return files, root.rstrip("/")

    def new_reference(self, topic: str, stamp: bytes, now_ms: int, data: bytes) -> Reference:
        """Return the reference to an object that the caller will write."""
        written = datetime.fromtimestamp(now_ms // 1000, UTC).strftime(_TIME)
        name = f"{topic}/{stamp.decode()}/{written}-{os.urandom(12).hex()}"
        return Reference(self.url, name, len(data), hashlib.sha256(data).digest())

    def write(self, reference: Reference, data: bytes) -> None:
        """Write an object. Raises the exceptions of the store."""
        files, root = self._files()
        files.pipe_file(f"{root}/{reference.name}", data)

    def read(self, reference: Reference) -> bytes:
        """Return the bytes of an object. Raises the exceptions of the store."""
        files, root = self._files()
        data: bytes = files.cat_file(f"{root}/{reference.name}")
        return data

    def remove(self, name: str) -> None:
        """Remove an object if it exists. Raises the exceptions of the store."""
        files, root = self._files()
        with contextlib.suppress(FileNotFoundError):
            files.rm_file(f"{root}/{name}")

    def find(self, topic: str, stamp: bytes, before_ms: int) -> dict[str, int]:
        """Return the names and sizes of a topic's objects that were written before a given time."""
        files, root = self._files()
        files.invalidate_cache()
        limit = datetime.fromtimestamp(before_ms // 1000, UTC).strftime(_TIME)
        found = {}
        prefix = f"{root}/{topic}/{stamp.decode()}"
        for path, entry in files.find(prefix, detail=True).items():
            name = f"{topic}/{stamp.decode()}/{path.rpartition('/')[2]}"
            match = _NAME.fullmatch(name)
            if match and match[1] < limit:
                found[name] = int(entry.get("size") or 0)
        return found


_stores: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()
_lock = threading.Lock()
_of_environment: dict[str, Store] = {}


def open_store(url: str) -> Store:
    """Open a store for objects.

    The process may read objects of this store as long as you keep the returned object.

    Raises:
        InvalidValue, ConfigurationError: The URL is not valid, or a package is missing.
    """
    store = Store(url)
    with _lock:
        return _stores.setdefault(store.url, store)


def known_stores() -> list[Store]:
    """Return the stores that this process may read.

    These are the stores of all `rmq.Offloaded` objects in this process, and the stores in
    RMQ_STORES.

    Raises:
        InvalidValue, ConfigurationError: RMQ_STORES is not valid, or a package is missing.
    """
    for url in (variable(VARIABLE) or "").split():
        if url not in _of_environment:
            _of_environment[url] = open_store(url)
    with _lock:
        return list(_stores.values())


def _store_of(reference: Reference) -> Store:
    with _lock:
        store = _stores.get(reference.store)
    try:
        known = [store] if store else [s for s in known_stores() if s.url == reference.store]
    except (InvalidValue, ConfigurationError) as error:
        raise DecodeError(f"{reference.described}: {error}") from error
    if not known:
        raise DecodeError(
            f"{reference.described}: this process does not have the store; give it to "
            f"rmq.Offloaded, or in {VARIABLE}"
        )
    return known[0]


# --- several objects, in threads -----------------------------------------------------------------


def _each(call: Callable[[T], U], items: Sequence[T]) -> list[U]:
    if len(items) < 2:
        return list(map(call, items))
    with ThreadPoolExecutor(min(THREADS, len(items)), "rmq-objects") as threads:
        return list(threads.map(call, items))


def write_all(store: Store, objects: Iterable[tuple[Reference, bytes]]) -> None:
    """Write objects. If one of them cannot be written, remove the objects that were written before.

    Raises:
        StoreUnavailable: The store refused an object.
    """

    def write(item: tuple[Reference, bytes]) -> Exception | None:
        try:
            store.write(*item)
        except Exception as error:  # whatever the store's package raises
            return error
        return None

    given = list(objects)
    errors = [error for error in _each(write, given) if error is not None]
    if errors:
        remove_all([reference for reference, _ in given])
        raise StoreUnavailable(
            f"store {store.url}: {type(errors[0]).__name__}: {errors[0]!s:.200}; nothing was sent"
        ) from errors[0]


def read_all(references: Sequence[Reference], limit: int) -> list[bytes | DecodeError]:
    """Read objects. Return the bytes of each object, or an error.

    You get an error for an object that is unreadable, or that has more bytes than `limit`.
    """

    def read(reference: Reference) -> bytes | DecodeError:
        what = reference.described
        try:
            if reference.size > limit:
                return DecodeError(f"{what}, is larger than rmq.Offloaded.limit, {limit} bytes")
            data = _store_of(reference).read(reference)
        except FileNotFoundError:
            return DecodeError(f"{what}, is missing: was it removed from the store?")
        except DecodeError as error:
            return error
        except Exception as error:  # whatever the store's package raises
            return DecodeError(f"{what}, cannot be read: {type(error).__name__}: {error!s:.200}")
        if len(data) != reference.size or hashlib.sha256(data).digest() != reference.digest:
            return DecodeError(f"{what}, is damaged: its size or its SHA-256 differs")
        return data

    return _each(read, references)


def copy_all(
    references: Sequence[Reference], topic: str, stamp: bytes, now_ms: int
) -> list[Reference | None]:
    """Copy objects within their stores, for messages of a topic.

    Return the new references. If an object is missing or damaged, its new reference is None.

    Raises:
        StoreUnavailable: This process does not have the store, or the store refused a call.
    """

    def copy(reference: Reference) -> Reference | None:
        try:
            store = _store_of(reference)
            data = store.read(reference)
            if hashlib.sha256(data).digest() != reference.digest:
                return None
            copied = store.new_reference(topic, stamp, now_ms, data)
            store.write(copied, data)
        except FileNotFoundError:
            return None
        except DecodeError as error:
            raise StoreUnavailable(str(error)) from error
        except Exception as error:  # whatever the store's package raises
            raise StoreUnavailable(
                f"{reference.described}, cannot be copied: {type(error).__name__}: {error!s:.200}"
            ) from error
        return copied

    return _each(copy, references)


def remove_all(references: Sequence[Reference]) -> list[str]:
    """Remove objects. Return a string for each object.

    The string is '' if the object was removed, otherwise it is an error.
    """

    def remove(reference: Reference) -> str:
        try:
            _store_of(reference).remove(reference.name)
        except Exception as error:  # a later removal, by tombstone or sweep, tries again
            return f"{type(error).__name__}: {error!s:.300}"
        return ""

    return _each(remove, references)
