"""Convert messages of kombu to messages of a topic, and back.

The body of the message is a JSON object with the parts of kombu's message. So the command line and
the console can show the name and the arguments of a task. The JSON object stores the body of the
task in one of three keys:

* "body": the JSON itself, if the content type is JSON
* "text": any other text
* "hex": bytes, for example a pickle. RMQ never unpickles them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

PRIORITY_LOWEST = 100  # of a topic's message: kombu's 0. It is the default of topics.
PRIORITIES = 10  # kombu's priorities are 0 to 9
JSON = "application/json"
_NOT_IN_TYPES = re.compile(r"[^A-Za-z0-9._:/-]")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")
_OF_ONE_SEND = ("delivery_tag", "body_encoding")  # properties that each delivery gets again


def topic_name(queue: str, prefix: str = "") -> str:
    """Return the name of the topic for a queue.

    The function replaces characters that a topic's name cannot have by `-` and their number in hex.
    """
    return prefix + _NOT_IN_NAMES.sub(lambda found: f"-{ord(found[0]):x}-", queue)


def pack(message: Mapping[str, Any], readable: bool = True) -> dict[str, Any]:
    """Return the object that RMQ stores for a message of kombu.

    Args:
        message: Message of kombu, from `Channel.prepare_message`.
        readable: Whether to store a JSON body as JSON. If False, store its text.
    """
    properties = {k: v for k, v in message["properties"].items() if k not in _OF_ONE_SEND}
    packed = {**message, "properties": properties}
    body = packed.pop("body")
    if isinstance(body, bytes):
        packed["hex"] = body.hex()
    elif readable and message.get("content-type") == JSON and _is_plain(message):
        try:
            packed["body"] = _read_json(body)
        except ValueError:
            packed["text"] = body
    else:
        packed["text"] = body
    return packed


def _is_plain(message: Mapping[str, Any]) -> bool:
    return isinstance(message["body"], str) and "compression" not in message["headers"]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_read_json = json.JSONDecoder(parse_constant=_no_constant).decode


def unpack(packed: Any, tag: str, redelivered: bool = False) -> dict[str, Any]:
    """Return the message of kombu in a stored object.

    If another program has sent the message to the topic, the result has a JSON body and no headers.

    Args:
        packed: Stored object.
        tag: Delivery tag of this delivery.
        redelivered: Whether the message was delivered before.
    """
    if not isinstance(packed, dict) or "properties" not in packed:
        packed = {"body": packed, "content-type": JSON, "content-encoding": "utf-8"}
    message = {"headers": {}, "properties": {}, **packed}
    info = {**message["properties"].get("delivery_info", {}), "redelivered": redelivered}
    message["properties"] = {**message["properties"], "delivery_tag": tag, "delivery_info": info}
    if "hex" in message:
        message["body"] = bytes.fromhex(message.pop("hex"))
    elif "text" in message:
        message["body"] = message.pop("text")
    else:
        message["body"] = json.dumps(message.get("body"))
    return message


def send_options(message: Mapping[str, Any], reverses_priorities: bool) -> dict[str, Any]:
    """Return the type, priority and times of a message as options of `Topic.send`."""
    task, properties = _task_of(message), message["properties"]
    options: dict[str, Any] = {"priority": _priority(properties, reverses_priorities)}
    if task.get("task"):
        options["type"] = _NOT_IN_TYPES.sub("_", str(task["task"]))[:128]
    now = time.time()
    due = _moment(task.get("eta"))
    if due is not None and due.timestamp() > now:
        options["at"] = due
        now = due.timestamp()
    ends = []
    if (expires := _moment(task.get("expires"))) is not None:
        ends.append(expires.timestamp() - now)
    if properties.get("expiration"):
        ends.append(int(properties["expiration"]) / 1000)
    if ends:
        options["expires"] = max(0.001, min(ends))
    return options


def _task_of(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the headers of a task.

    In the first version of Celery's protocol, the headers are in the body.
    """
    headers: Mapping[str, Any] = message["headers"]
    if "task" not in headers and message.get("content-type") == JSON and _is_plain(message):
        try:
            body = json.loads(message["body"])
        except ValueError:
            return headers
        if isinstance(body, dict) and "task" in body:
            return body
    return headers


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo is not None else None


def _priority(properties: Mapping[str, Any], reverses: bool) -> int:
    try:
        number = int(properties.get("priority") or 0)
    except (TypeError, ValueError):
        number = 0
    number = min(max(number, 0), PRIORITIES - 1)
    return PRIORITY_LOWEST + (PRIORITIES - 1 - number if reverses else number)
