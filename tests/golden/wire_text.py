"""The bytes that leave a client, as lines of text that a person can compare.

A request's first command has a dash before it, commands that leave together with it a plus. A plain
command is written as it is. A script is named by its verb, in lower case, so that an edit of Lua
changes nothing here; its keys and its arguments follow, each on lines of their own.

What differs from run to run has a name instead: `<random 1>`, numbered by its first appearance,
`<member 0>` and `<id 0 of slot 3>` by the order in which this client made them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rmq.kernel.transport.lua import script_loader

NOW_US = 1_790_000_000_000_000  # as in `Clock` of tests/conftest.py
PROCESS = b"RMQid"  # the random bytes in the ids of the client
WIDTH = 100
LONG = 200  # bytes; what is longer is shown by its beginning, its size and its digest
MANY = 60  # words; where more come in a row, those in the middle are shown by a digest
INDENT = " " * 6

_PLAIN = re.compile(rb'[^"<>\\\x00-\x20\x7f-\xff]+')
_KEY = re.compile(r"(\w+:\{[^}]+\}:)(.+)")
_SESSION = re.compile(r"(@<random \d+>-)\d+ \d+")
# Where RMQ asks Redis for the time, no test can tell it another one.
_TIME = re.compile(rb"\d{10,19}")
_TIMES = {"ms": (0, 1000), "s": (0, 1), "9e15 + s": (9_000_000_000_000_000, 1)}
_HOUR_S = 3600
# A stamp of the hours around NOW_US, perhaps with the mark of kept ids.
_HOURS = (NOW_US // 1000).to_bytes(6, "big")[:3]
_KEPT = bytes((_HOURS[0] | 0x40,))
_STAMP = b"((?:%b|%b)%b...)(..)" % (*map(re.escape, (_HOURS[:1], _KEPT, _HOURS[1:])),)
_MEMBER = re.compile(b"%b%b" % (_STAMP, PROCESS), re.DOTALL)
_ID = re.compile(b"%b(...)%b" % (_STAMP, PROCESS), re.DOTALL)
_TEXT_ID = re.compile(rb"[0-9a-v]{26}")


class Request(NamedTuple):
    """Commands that leave in one piece.

    Attributes:
        commands: each a list of words.
        thread: the name of the thread that sent it.
    """

    commands: list[list[bytes]]
    thread: str

    def count(self, *words: bytes) -> int:
        """Return how many of the commands begin with these words."""
        return sum(command[: len(words)] == list(words) for command in self.commands)


def read_commands(packed: bytes) -> Iterator[list[bytes]]:
    """Read packed commands: arrays of bulk strings."""
    at = 0

    def number(mark: bytes) -> int:
        nonlocal at
        end = packed.index(b"\r\n", at)
        line, at = packed[at:end], end + 2
        assert line[:1] == mark, line
        return int(line[1:])

    while at < len(packed):
        words = []
        for _ in range(number(b"*")):
            size = number(b"$")
            words.append(packed[at : at + size])
            at += size + 2
        yield words


def lines_by_thread(requests: Iterable[Request], text: Text) -> Iterator[str]:
    """Return the lines of each thread in turn: how their requests interleave is chance.

    The numbers of sessions are left out, because threads borrow sessions from each other.
    """
    threads: dict[str, list[Request]] = {}
    for request in requests:
        threads.setdefault(request.thread, []).append(request)
    for thread, sent in sorted(threads.items()):
        yield f"{thread}:"
        yield from (_SESSION.sub(r"\1* *", line) for line in text.lines(sent))


class Text:
    """Writes requests as lines.

    Args:
        drawn: what was drawn at random until they were sent.
        recorded_at: the real time at which they were sent, epoch s.
    """

    def __init__(self, drawn: Sequence[bytes], recorded_at: float) -> None:
        loaded = [script_loader.load(name) for name in script_loader.names()]
        self._verbs = {script.sha.encode(): script.name for script in loaded}
        self._verbs[b"0" * 40] = "a script that there is not"
        self._sources = {script.text.encode(): script.name for script in loaded}
        self._numbers: dict[bytes, int] = {}
        self._values = {form: value for value in drawn for form in _forms(value)}
        longest_first = sorted(self._values, key=len, reverse=True)
        self._drawn = re.compile(b"|".join(map(re.escape, longest_first)) or b"(?!)")
        self._recorded_at = recorded_at

    def lines(self, requests: Iterable[Request]) -> Iterator[str]:
        """Return the lines of requests, in their order."""
        for request in _in_order(requests):
            for number, command in enumerate(request.commands):
                yield from self._command("+" if number else "-", command)

    def _command(self, mark: str, words: list[bytes]) -> Iterator[str]:
        if words[0] == b"SCAN" and words[1] != b"0":
            return  # how many follow depends on the other keys of the server
        if words[0] == b"EVALSHA":
            keys = 3 + int(words[2])
            yield f"{mark} {self._verbs[words[1]]}"
            yield from _wrapped(INDENT, _joined(self._words(words[3:keys])))
            yield from _wrapped(INDENT, self._words(words[keys:]))
            return
        if words[:2] == [b"SCRIPT", b"LOAD"]:
            words = [*words[:2], self._sources[words[2]].encode()]
        yield from _wrapped(f"{mark} ", self._words(words))

    def _words(self, words: list[bytes]) -> list[str]:
        shown = [self._word(word) for word in words]
        if len(shown) <= MANY:
            return shown
        left, digest = shown[MANY // 2 : -5], hashlib.blake2b(digest_size=8)
        for word in left:
            digest.update(word.encode() + b"\n")
        return [
            *shown[: MANY // 2],
            f"...<{len(left)} words, {digest.hexdigest()}>...",
            *shown[-5:],
        ]

    def _word(self, word: bytes) -> str:
        """Return a word as it is, or in quotation marks where it has more than plain characters."""
        shown, is_plain, at = "", True, 0
        for start, end, name in sorted(self._found(word)):
            if start >= at:
                before = word[at:start]
                shown, is_plain, at = shown + _escaped(before) + name, is_plain and not before, end
        rest = word[at:]
        shown, is_plain = shown + _escaped(rest), is_plain and not rest
        if len(word) > LONG:
            digest = hashlib.blake2b(shown.encode(), digest_size=8).hexdigest()
            return f'"{shown[: LONG // 4]}"...<{len(word)} bytes, {digest}>'
        return shown if (is_plain and shown) or _PLAIN.fullmatch(word) else f'"{shown}"'

    def _found(self, word: bytes) -> Iterator[tuple[int, int, str]]:
        """Return what has a name of its own in a word: from where, to where, and the name."""
        for found in self._drawn.finditer(word):
            value = self._values[found.group()]
            number = self._numbers.setdefault(value, len(self._numbers) + 1)
            yield *found.span(), f"<random {number}>"
        for pattern, kind in ((_MEMBER, "member"), (_ID, "id")):
            for found in pattern.finditer(word):
                yield *found.span(), _name_of(found, kind)
        for found in _TEXT_ID.finditer(word):
            with contextlib.suppress(ValueError):
                raw = base64.b32hexdecode(found.group().upper() + b"======")
                if match := _ID.fullmatch(raw):
                    yield *found.span(), _name_of(match, "text id")
        for found in _TIME.finditer(word):
            for name, (base, unit) in _TIMES.items():
                if abs((int(found.group()) - base) / unit - self._recorded_at) < _HOUR_S:
                    yield *found.span(), f"<time of Redis, {name}>"


def _forms(drawn: bytes) -> set[bytes]:
    """Return what is sent of a random number: its bytes, its digits, base64, a UUID of it."""
    forms = {drawn, drawn.hex().encode()}
    if len(drawn) == 9:
        forms.add(base64.urlsafe_b64encode(drawn))  # names of sessions
    if len(drawn) == 16:
        forms.add(uuid.UUID(bytes=drawn, version=4).hex.encode())
    return forms


def _in_order(requests: Iterable[Request]) -> Iterator[Request]:
    """Sort scripts that are loaded one after the other: their order is that of a set."""
    loads: list[Request] = []
    for request in requests:
        if request.count(b"SCRIPT", b"LOAD"):
            loads.append(request)
            continue
        yield from sorted(loads)
        loads.clear()
        yield request
    yield from sorted(loads)


def _name_of(found: re.Match[bytes], kind: str) -> str:
    """Return the name of an id: when it was made, and its place among those of that moment."""
    kept = "kept " if found[1][:1] == _KEPT else ""
    later_ms = int.from_bytes(_HOURS[:1] + found[1][1:], "big") - NOW_US // 1000
    later = f" +{later_ms} ms" if later_ms else ""
    slot = f" of slot {int.from_bytes(found[3], 'big') >> 14}" if found.re is _ID else ""
    return f"<{kept}{kind} {int.from_bytes(found[2], 'big')}{later}{slot}>"


def _escaped(part: bytes) -> str:
    return repr(part)[2:-1].replace('"', '\\"').replace("\\'", "'")


def _joined(keys: list[str]) -> list[str]:
    """Return keys of the same slot behind the slot's common beginning."""
    shown: list[str] = []
    before = ""
    for key in keys:
        match = _KEY.fullmatch(key)
        stem, name = (match[1], match[2]) if match else ("", key)
        shown += [name] if stem == before else [stem, name] if stem else [name]
        before = stem
    return shown


def _wrapped(start: str, words: Iterable[str]) -> Iterator[str]:
    """Return words in lines, each no longer than WIDTH unless one word is."""
    line = start
    for word in words:
        if len(line) + len(word) > WIDTH and line.strip("-+ "):
            yield line.rstrip()
            line = INDENT
        line += f"{word} "
    if line.strip():
        yield line.rstrip()
