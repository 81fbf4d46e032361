"""Input of `rmq send`: from JSON, raw bytes or an envelope to a message."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import rmq
from rmq.cli.param_types import moment
from rmq.core.validation import parse_duration

DURATIONS = ("delay", "time_range", "max_wait", "expires")
FIELDS = tuple(field.name for field in fields(rmq.Outgoing))


class BadMessage(ValueError):
    """The input is not a message."""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise BadMessage(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise BadMessage(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON: {error}") from None


def _read_envelope(data: bytes, options: dict[str, Any], raw: bool) -> rmq.Outgoing:
    """Read a message from an object with the fields of rmq.Outgoing, which override the options."""
    envelope = _parse_json(data)
    if not isinstance(envelope, dict):
        raise BadMessage('an envelope is an object, as {"body": ..., "priority": 20}')
    if raw and "body_text" in envelope:
        envelope["body"] = envelope.pop("body_text")
    if raw and "body_hex" in envelope:
        try:
            envelope["body"] = bytes.fromhex(envelope.pop("body_hex"))
        except (ValueError, TypeError):
            raise BadMessage("body_hex: not hexadecimal digits") from None
    unknown = sorted(set(envelope) - set(FIELDS))
    if unknown:
        raise BadMessage(
            f"{unknown[0]!r} is not a field of a message; the fields are {', '.join(FIELDS)}"
        )
    if "body" not in envelope:
        raise BadMessage("the envelope has no body")
    body = envelope.pop("body")
    if raw and isinstance(body, str):
        body = body.encode(errors="surrogatepass")
    if raw and not isinstance(body, bytes):
        raise BadMessage(f"body: with --raw a string is needed, not {type(body).__name__}")
    try:
        for name in DURATIONS:
            if isinstance(envelope.get(name), str):
                envelope[name] = parse_duration(envelope[name])
        if isinstance(envelope.get("at"), str):
            envelope["at"] = moment(envelope["at"])
    except ValueError as error:
        raise BadMessage(str(error)) from None
    envelope_options = {name: value for name, value in envelope.items() if value is not None}
    if "at" in envelope_options or "delay" in envelope_options:  # replaces the options' time
        options = {key: value for key, value in options.items() if key not in ("at", "delay")}
    return rmq.Outgoing(body, **(options | envelope_options))


def body_reader(
    options: dict[str, Any], raw: bool, envelope: bool
) -> Callable[[bytes], rmq.Outgoing]:
    """Return the function that reads a message, for these options."""
    if envelope:
        return lambda data: _read_envelope(data, options, raw)
    if raw:
        return lambda data: rmq.Outgoing(data, **options)
    return lambda data: rmq.Outgoing(_parse_json(data), **options)
