"""Remove from answers everything that the user or program may not see.

Viewers without an extra right see no bodies of messages and no tracebacks, because these contain
data of customers. Viewers see error texts, because nobody could operate the system without them. So
programs should not write secrets into error texts. If the setting `redact` names a field or a
header, only admins see it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from rmq.http_framework.message import DECODED_MAX, HIDDEN, Attempt, Body, Failure
from rmq.http_framework.principal import Principal, sees_bodies
from rmq.http_framework.problems import ApiError
from rmq.kernel.core.access import Role
from rmq.kernel.topic import filter
from rmq.kernel.topic.filter_terms import conditions

REDACTED = "***"


class Disclosure:
    """Removes from answers everything that a user or program may not see.

    Args:
        redact: Names of headers and of fields of bodies, in upper or lower case.
    """

    def __init__(self, redact: Collection[str] = ()) -> None:
        self._redact = frozenset(name.lower() for name in redact)

    def shown(self, principal: Principal, answer: Any) -> Any:
        """Remove the hidden parts of an answer, and return the answer. This changes the answer."""
        hides = not sees_bodies(principal)
        redact = self._redacted_for(principal)
        if hides or redact:
            _walk(answer, hides, redact)
        return answer

    def check_filter(self, principal: Principal, text: str) -> None:
        """Check that a filter of dead letters uses only data that the user may see.

        Without this check, a user could find out hidden data with several filters.

        Raises:
            ApiError: The filter uses hidden data.
            InvalidValue: The filter is not valid.
        """
        redact = self._redacted_for(principal)
        for condition in conditions(filter.parse(text).term):
            field = condition.where
            names = {str(step).lower() for step in field.path}
            if field.name == "body" and not sees_bodies(principal):
                raise ApiError("forbidden", "filter: you may not see bodies", "filter")
            if field.name in ("body", "header") and names & redact:
                raise ApiError("forbidden", f"filter: {field} is redacted", "filter")
            is_of_text = condition.operator in filter.SEARCH or (
                condition.operator[0] in "<>" and isinstance(condition.operand.value, str)
            )
            if field.name == "body" and redact and is_of_text:
                # The filter would search hidden values, or could find them step by step.
                detail = f"filter: {field}{condition.operator}: fields of bodies are redacted"
                raise ApiError("forbidden", detail, "filter")

    def _redacted_for(self, principal: Principal) -> frozenset[str]:
        return frozenset() if principal.role.includes(Role.ADMIN) else self._redact


def _walk(answer: Any, hides: bool, redact: frozenset[str]) -> None:
    if isinstance(answer, list | tuple):
        for each in answer:
            _walk(each, hides, redact)
    elif isinstance(answer, Body):
        _hide(answer) if hides else _redact_body(answer, redact)
    elif isinstance(answer, msgspec.Struct):
        if hides and isinstance(answer, Failure | Attempt):
            answer.traceback = HIDDEN if answer.traceback else ""
        for name in answer.__struct_fields__:
            value = getattr(answer, name)
            if name == "headers" and isinstance(value, dict):
                for header in value:
                    if header.lower() in redact:
                        value[header] = REDACTED
            else:
                _walk(value, hides, redact)


def _hide(body: Body) -> None:
    body.kind, body.text, body.is_truncated = "hidden", HIDDEN, False


def _redact_body(body: Body, redact: frozenset[str]) -> None:
    """Replace the values of hidden fields. If the body cannot be parsed, hide the whole body."""
    if not redact or body.kind == "hidden":
        return
    text = base64.b64decode(body.text) if body.kind == "base64" else body.text.encode()
    if body.is_truncated or len(text) > DECODED_MAX:
        _hide(body)  # the cut end may be part of a redacted value
        return
    try:
        value = json.loads(text)
        found = _redacted(value, redact)
    except (ValueError, RecursionError):
        if any(name.encode() in text.replace(b"\0", b"").lower() for name in redact):
            _hide(body)
        return
    if found != value:
        body.kind, body.text = "json", json.dumps(found, ensure_ascii=False)


def _redacted(value: Any, redact: frozenset[str]) -> Any:
    """Replace the values of hidden names, also in objects like {"name": NAME, "value": VALUE}."""
    if isinstance(value, dict):
        is_pair = _names_one(value.values(), redact)
        return {
            name: REDACTED if is_pair or name.lower() in redact else _redacted(each, redact)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [REDACTED] if _names_one(value, redact) else [_redacted(v, redact) for v in value]
    if not isinstance(value, str):
        return value
    try:
        inner = json.loads(value)
    except ValueError:  # a form, a URL, a part of JSON, or plain text
        return REDACTED if any(name in value.lower() for name in redact) else value
    found = _redacted(inner, redact)
    return value if found == inner else json.dumps(found, ensure_ascii=False)


def _names_one(values: Iterable[Any], redact: frozenset[str]) -> bool:
    return any(isinstance(each, str) and each.lower() in redact for each in values)
