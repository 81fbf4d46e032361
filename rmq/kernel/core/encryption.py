"""Encrypt bodies with AES-256-GCM from the package `cryptography`, and find the keys.

    1 byte      0x33, which marks an encrypted body
    1 byte      length of the key's id
    id          key id, in ASCII
    12 bytes    random nonce
    the rest    the encrypted body, with a tag of 16 bytes; decrypted, it has the format of
                `Compressed`

All these bytes are authenticated: a changed body, or a body with another key id, is not decrypted.
Message id and topic are not authenticated, because they change when a message is redriven to
another topic.

A function that can raise an error never has a key in a local variable. The reason is that some
programs log a traceback with all local variables.
"""

from __future__ import annotations

import base64
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from rmq.errors import ConfigurationError, DecodeError, InvalidValue
from rmq.kernel.core import packages
from rmq.kernel.core.environment import variable

SEALED = 3  # how a body of codec 3 is stored; continues the numbers of `compression`
FIRST = SEALED << 4 | 3
KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
VARIABLE, FILE_VARIABLE = "RMQ_KEYS", "RMQ_KEYS_FILE"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)

Keys = Mapping[str, bytes] | Callable[[], Mapping[str, bytes]]


class KeySource:
    """Keys for encryption, by id.

    RMQ reads the keys again for each body, so you may change them at any time.

    Args:
        keys: A mapping, or a function that returns a mapping. The last key is the newest.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def __repr__(self) -> str:
        return "<keys>"

    def newest(self) -> tuple[str, Any]:
        """Return the id and the cipher of the newest key.

        Raises:
            InvalidValue: There is no key, or the key is not valid.
        """
        name, cipher, problem = _look(self._keys, None)
        if problem:
            raise InvalidValue(problem)
        return name, cipher

    def find(self, name: str) -> tuple[Any, str]:
        """Return the cipher of a key, and an error text.

        If the key is missing or invalid, the cipher is None, and the text says why. Otherwise the
        text is ''.
        """
        _, cipher, problem = _look(self._keys, name)
        return cipher, problem

    def open(self) -> None:
        """Check all keys, and let this process decrypt bodies with them from now on.

        If a function returns the keys, RMQ checks a key only when it uses the key.

        Raises:
            InvalidValue: A key is not valid.
            ConfigurationError: The package is missing.
        """
        _library()
        if not callable(self._keys):
            for name in [None, *self._keys] if isinstance(self._keys, Mapping) else [None]:
                problem = _look(self._keys, name)[2]
                if problem:
                    raise InvalidValue(problem)
        with _lock:
            _sources.add(self)


def _look(keys: Any, name: str | None) -> tuple[str, Any, str]:
    """Return the id and the cipher of a key, and an error text.

    If the key is missing or invalid, the cipher is None, and the text says why. Otherwise the text
    is ''. If the name is None, use the newest key.
    """
    mapping = keys() if callable(keys) else keys
    if not isinstance(mapping, Mapping):
        return "", None, f"keys: {type(mapping).__name__}; give a mapping from ids to 32 bytes"
    if name is None:
        names = list(mapping)
        if not names:
            return "", None, "keys: there are no keys; give a mapping from ids to 32 bytes"
        name = names[-1]
    if not isinstance(name, str) or not _ID.fullmatch(name):
        return "", None, f"keys: {name!r:.80} is not an id; give 1 to 64 of A-Z a-z 0-9 . _ -"
    if name not in mapping:
        return name, None, ""
    key = mapping[name]
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        found = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        return name, None, f"keys[{name!r}]: {found}; give 32 bytes, such as os.urandom(32)"
    return name, _cipher(key), ""


@lru_cache(maxsize=256)
def _cipher(key: bytes) -> Any:
    return _library().AESGCM(key)


def _library() -> Any:
    return packages.load(
        "cryptography.hazmat.primitives.ciphers.aead", "encrypted", "rmq.Encrypted"
    )


# --- keys of the environment ---------------------------------------------------------------------


def parse(text: str, where: str) -> tuple[dict[str, bytes], str]:
    """Read keys of the form `ID:BASE64`, separated by newlines, spaces or commas.

    Returns:
        The keys, and an error text. If there is no key, or if one key is invalid, the function
        returns no keys, and the text says why. Otherwise the text is ''.
    """
    keys: dict[str, bytes] = {}
    lines = [line.partition("#")[0] for line in text.splitlines()]
    for place, entry in enumerate(" ".join(lines).replace(",", " ").split(), 1):
        name, _, coded = entry.partition(":")
        try:
            key = base64.b64decode(coded, validate=True)
        except ValueError:
            key = b""
        if not _ID.fullmatch(name) or len(key) != KEY_BYTES:
            return {}, f"{where}: its key {place} is not ID:KEY with 32 bytes in base64"
        keys.pop(name, None)  # a repeated key becomes the newest
        keys[name] = key
    return keys, "" if keys else f"{where}: it has no keys"


class _Environment(KeySource):
    """Reads keys from the file in RMQ_KEYS_FILE, or from the variable RMQ_KEYS.

    The file is read again after each change.
    """

    def __init__(self) -> None:
        super().__init__(self._current)
        self._seen: Any = None
        self._found: tuple[dict[str, bytes], str] = ({}, "")

    def _current(self) -> Mapping[str, bytes]:
        return self._found[0]

    def is_set(self) -> bool:
        return bool(variable(FILE_VARIABLE) or variable(VARIABLE))

    def _refresh(self) -> str:
        """Read the keys if they have changed. Return an error text, or ''."""
        path = variable(FILE_VARIABLE)
        try:
            if path:
                stat = os.stat(path)
                seen: Any = (path, stat.st_mtime_ns, stat.st_size, stat.st_ino)
                if seen != self._seen:
                    with open(path, encoding="utf-8") as file:
                        self._found = parse(file.read(), f"{FILE_VARIABLE} ({path})")
            else:
                seen = variable(VARIABLE) or ""
                if seen != self._seen:
                    self._found = parse(seen, VARIABLE)
        except (OSError, ValueError) as error:
            self._seen = None
            return (
                f"{FILE_VARIABLE}: {error.strerror if isinstance(error, OSError) else 'not text'}"
            )
        self._seen = seen
        return self._found[1]

    def newest(self) -> tuple[str, Any]:
        if not self.is_set():
            raise ConfigurationError(
                f"rmq.Encrypted: it has no keys; give it some, or set {FILE_VARIABLE} or {VARIABLE}"
            )
        problem = self._refresh()
        if problem:
            raise ConfigurationError(problem)
        return super().newest()

    def find(self, name: str) -> tuple[Any, str]:
        if not self.is_set():
            return None, ""
        problem = self._refresh()
        return (None, problem) if problem else super().find(name)

    def open(self) -> None:
        """Check that the package `cryptography` is installed.

        This method does not check the keys, because a program may set a variable later.
        """
        _library()


ENVIRONMENT = _Environment()
_sources: weakref.WeakSet[KeySource] = weakref.WeakSet()
_lock = threading.Lock()


def source_of(keys: Keys | None) -> KeySource:
    """Return an object that reads keys, without a check of the keys.

    If `keys` is None, the keys come from the environment variables.
    """
    return ENVIRONMENT if keys is None else KeySource(keys)


# --- bodies --------------------------------------------------------------------------------------


def seal(source: KeySource, data: bytes) -> bytes:
    """Encrypt bytes with the newest key.

    Raises the same errors as `KeySource.newest`.
    """
    name, cipher = source.newest()
    head = bytes((FIRST, len(name))) + name.encode()
    nonce = os.urandom(NONCE_BYTES)
    sealed: bytes = cipher.encrypt(nonce, data, head)
    return head + nonce + sealed


def unseal(data: bytes) -> bytes:
    """Decrypt bytes that `seal` has encrypted, with any key that this process has.

    Raises:
        DecodeError: This process does not have the key, the bytes were changed, or the package is
            missing.
    """
    size = f"body of {len(data)} bytes"
    end = 2 + (data[1] if len(data) > 1 else 0)
    name = data[2:end].decode("ascii", "replace")
    start = end + NONCE_BYTES
    if len(data) < start + TAG_BYTES or not _ID.fullmatch(name):
        raise DecodeError(f"{size}: it is encrypted, and cut short or damaged")
    try:
        _library()
    except ConfigurationError as error:
        raise DecodeError(f"{size}: it is encrypted; {error}") from error
    with _lock:
        sources = [*_sources, ENVIRONMENT]
    why = []
    for source in sources:
        cipher, problem = _try(source, name)
        if cipher is not None:
            opened = _opened(cipher, data, end, start)
            if opened is not None:
                return opened
            problem = "this process has another key with that id, or the body was changed"
        if problem and problem not in why:
            why.append(problem)
    reason = "; ".join(why) or (
        f"this process does not have it; give it to rmq.Encrypted, or in {FILE_VARIABLE}"
    )
    raise DecodeError(f"{size}: it is encrypted with the key {name!r}: {reason}")


def _try(source: KeySource, name: str) -> tuple[Any, str]:
    try:
        return source.find(name)
    except Exception as error:  # a user's function may raise anything
        return None, f"keys: the function that returns them raised {type(error).__name__}"


def _opened(cipher: Any, data: bytes, end: int, start: int) -> bytes | None:
    """Return the decrypted bytes, or None if the bytes were encrypted with another key."""
    try:
        opened: bytes = cipher.decrypt(data[end:start], data[start:], data[:end])
    except Exception as error:
        if type(error).__name__ != "InvalidTag":
            raise
        return None
    return opened
