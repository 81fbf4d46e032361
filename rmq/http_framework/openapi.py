"""Generate the OpenAPI 3.1 document from the operations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from rmq.http_framework import operation as web_operation
from rmq.http_framework.operation import Operation
from rmq.http_framework.problems import KINDS, MEDIA_TYPE, Problem
from rmq.kernel.core.packages import VERSION

HEADERS = {  # request headers by operation
    "set_topic": ("If-Match", "ETag that the topic must still have; otherwise the answer is 412"),
    "send_message": ("Idempotency-Key", "Dedup key; a repeated send stores no second message"),
    "start_job": ("Idempotency-Key", "Name of this call; a repeated call starts no second job"),
}
PLACES = "#/components/schemas/{name}"
_DESCRIPTION = (
    "The operations of RMQ over HTTP. Long lists have a cursor: repeat the request with the cursor "
    "of the answer until the cursor is null. Durations are seconds, times are RFC 3339 in UTC."
)


def document(operations: Sequence[Operation], base: str, root: str = "") -> dict[str, Any]:
    """Return the OpenAPI document.

    Args:
        operations: All operations of the API.
        base: Path at the beginning of all operations.
        root: Path below which the application is mounted, or an empty string if it is not mounted.
    """
    types = list({id(kind): kind for each in operations for kind in each.types.values()}.values())
    found, schemas = msgspec.json.schema_components([*types, Problem], ref_template=PLACES)
    refs = {id(kind): ref for kind, ref in zip([*types, Problem], found, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        methods = paths.setdefault(base + each.path, {})
        methods[each.method.lower()] = _operation(each, refs, schemas)
    for schema in schemas.values():
        schema["description"] = _first_lines(schema.get("description", ""))
    return {
        "openapi": "3.1.0",
        "info": {"title": "RMQ", "version": VERSION, "description": _DESCRIPTION},
        "servers": [{"url": root or "/"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    operation: Operation, refs: dict[int, dict[str, Any]], schemas: dict[str, Any]
) -> dict[str, Any]:
    summary, _, rest = (inspect.getdoc(operation.handler) or "").partition("\n")
    parameters = [
        parameter
        for place in ("path", "query")
        if place in operation.types
        for parameter in _parameters(place, refs[id(operation.types[place])], schemas)
    ]
    if operation.name in HEADERS:
        name, text = HEADERS[operation.name]
        schema = {"type": "string"}
        parameters.append({"name": name, "in": "header", "schema": schema, "description": text})
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": summary.rstrip("."),
        "description": " ".join(rest.split()),
        "parameters": parameters,
        "responses": _responses(operation, refs),
    }
    if "body" in operation.types:
        content = {"application/json": {"schema": refs[id(operation.types["body"])]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _parameters(place: str, ref: dict[str, Any], schemas: dict[str, Any]) -> list[dict[str, Any]]:
    struct = schemas[ref["$ref"].rpartition("/")[2]]
    required = struct.get("required", ())
    return [
        {"name": name, "in": place, "required": name in required, "schema": _without_null(schema)}
        for name, schema in struct["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from the schema of a parameter. Clients omit a parameter without a value."""
    if "anyOf" not in schema:
        return schema
    kinds = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _responses(operation: Operation, refs: dict[int, dict[str, Any]]) -> dict[str, Any]:
    kind = web_operation.MEDIA_TYPE if operation.has_lines else "application/json"
    content = {kind: {"schema": refs[id(operation.types["return"])]}}
    responses: dict[str, Any] = {str(operation.status): {"description": "Done", "content": content}}
    if operation.has_etag and operation.is_read:
        responses["304"] = {"description": "The ETag in If-None-Match is still current"}
    problem = {MEDIA_TYPE: {"schema": refs[id(Problem)]}}
    seconds = {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}}
    by_status: dict[int, list[str]] = {}
    for kind in operation.all_errors:
        by_status.setdefault(KINDS[kind].status, []).append(kind)
    for status, kinds in sorted(by_status.items()):
        titles = "; ".join(f"{kind}: {KINDS[kind].title}" for kind in kinds)
        responses[str(status)] = {"description": titles, "content": problem}
        if any(KINDS[kind].is_passing for kind in kinds):
            responses[str(status)]["headers"] = {"Retry-After": seconds}
    return responses


def _first_lines(docstring: str) -> str:
    return re.sub(r"\s+", " ", docstring).strip()
