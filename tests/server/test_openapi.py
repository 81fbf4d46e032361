"""The API does what its OpenAPI document says, whatever is asked (schemathesis)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Annotated, Any

import hypothesis
import msgspec
import pytest

import rmq
from rmq.http_framework.operation import Operation, RequestContext, Table
from rmq.http_framework.requests import Count, Request
from rmq.kernel.core.access import Role
from rmq.server.api import BASE, TABLES
from tests.server.running import PATIENCE_S, ask, serving
from tests.servers import Server as Redis

# Schemathesis is imported where it is used: it takes a second, and each process collects this file.
FEW, MANY = 2, 20  # examples of each operation, and as many that its schema refuses
LEAST = 1  # for who may do less: rights are what differs, and test_auth.py asks for each
OPERATIONS = [each for table in TABLES for each in table.operations]
# A seed of Hypothesis covers that module too, so that examples are the same in each run.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")


@pytest.fixture(scope="module")
def scene(server: Redis) -> Iterator[tuple[str, dict[str, str]]]:
    """A server, and the parts of paths for a topic with all that the API shows."""
    with (
        rmq.Client(server.url, prefix="openapi") as client,
        serving(server.url, "openapi") as serves,
    ):
        history = rmq.History(keep="1h", max_bytes="64MiB")
        topic = client.topic("orders", slots=2, retry="immediate", history=history)
        topic.every("nightly", every=3600).declare()
        run = "a" * 32
        topic.send(1)
        topic.query(run, "there").take({})
        sent = topic.send_many([rmq.Outgoing(n, headers={"k": "v"}) for n in range(9)])
        with topic.consumer() as consumer:
            for delivery in consumer.receive(4):
                delivery.reject("why")
            consumer.ack(consumer.receive(2))
        job = client.admin.job_start("orders", conditions={"type": "none"}).id
        known = {
            "job": job,
            "topic": "orders",
            "name": "nightly",
            "run": run,
            "id": str(sent[0].id),
        }
        yield serves.url, known


def parts_of(operation: Operation) -> frozenset[str]:
    """Return the parts of its request that have types."""
    return frozenset(operation.types) & {"path", "query", "body"}


# One operation for each set of parts: what a schema refuses is refused by the same code for all.
TYPICAL = {(each.method, parts_of(each)): each.name for each in OPERATIONS}.values()


@functools.cache
def schema_of(url: str, token: str) -> Any:
    """The document of a server, read once: parts of it are worked out when they are first used."""
    import schemathesis
    from schemathesis.config import SchemathesisConfig

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    document = ask(url + BASE + "/openapi.json", headers=headers).body
    schema = schemathesis.openapi.from_dict(document, config=SchemathesisConfig())
    schema.config.update(base_url=url)
    return schema


def check(
    url: str,
    told: Operation,
    known: dict[str, str],
    token: str = "",
    examples: int = MANY,
    refused: bool = True,
) -> None:
    """Ask for an operation in all manners; raises what fails.

    Args:
        url: of the server.
        told: the operation.
        known: parts of paths that exist, for requests that are not wrong.
        token: of who asks; empty: of nobody.
        examples: how many of each kind.
        refused: whether to ask in manners that its schema refuses, too.
    """
    from schemathesis import GenerationMode as Mode

    waits = told.is_long  # its answer comes late or, of a stream, never ends
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    operation = schema_of(url, token)[BASE + told.path][told.method]
    if not told.has_lines or not waits:
        cases = operation.as_strategy(generation_mode=Mode.POSITIVE)
        _ask(cases, known, headers, examples, {"wait": 0} if waits else {})
    if refused and parts_of(told):
        _ask(operation.as_strategy(generation_mode=Mode.NEGATIVE), {}, headers, examples)


def _ask(
    cases: Any, known: dict[str, str], headers: dict[str, str], examples: int, body: Any = None
) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    asked = [
        not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
        checks.response_schema_conformance, checks.negative_data_rejection,
    ]  # fmt: skip

    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(case=cases)
    def each(case: Any) -> None:
        for name in set(case.path_parameters or ()) & set(known):
            case.path_parameters[name] = known[name]
        if body:
            case.body = case.body | body
        case.call_and_validate(checks=asked, timeout=PATIENCE_S, headers=headers)

    each()


@pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_answers_are_as_the_document_says(
    scene: tuple[str, dict[str, str]], operation: Operation, examples: int
) -> None:
    url, known = scene
    refused = examples == MANY or operation.name in TYPICAL
    check(url, operation, known, examples=examples, refused=refused)


@pytest.fixture(scope="module")
def guarded(server: Redis) -> Iterator[tuple[str, dict[str, str]]]:
    """A server that asks for tokens, and one of each role."""
    with (
        rmq.Client(server.url, prefix="roles") as client,
        serving(server.url, "roles", auth="token", rate=100_000) as serves,
    ):
        client.topic("orders").open()
        yield (
            serves.url,
            {
                role: client.admin.token_create(role, role).text
                for role in (Role.VIEWER, Role.OPERATOR)
            },
        )


@pytest.mark.slow
@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_answers_to_who_may_do_less_are_as_the_document_says(
    guarded: tuple[str, dict[str, str]], operation: Operation, role: Role
) -> None:
    url, tokens = guarded
    check(url, operation, {"topic": "orders"}, tokens[role], LEAST)


def test_the_document_names_every_route_once(scene: tuple[str, dict[str, str]]) -> None:
    document = ask(scene[0] + BASE + "/openapi.json").body

    assert document["openapi"] == "3.1.0"
    named = [
        (method.upper(), path, told["operationId"])
        for path, methods in document["paths"].items()
        for method, told in methods.items()
    ]
    assert sorted(named) == sorted(
        (each.method, BASE + each.path, each.name) for each in OPERATIONS
    )
    assert len({name for _, _, name in named}) == len(named)
    for methods in document["paths"].values():
        for told in methods.values():
            assert told["summary"]
            assert {"400", "401", "421", "500", "503"} <= set(told["responses"])


# --- the negative control ----------------------------------------------------------------------

BROKEN = Table("broken")


class Wanted(Request):
    """A number."""

    n: Annotated[int, msgspec.Meta(ge=0, le=100)]


@BROKEN.post("/fails", role=Role.ADMIN)
async def fails(context: RequestContext, body: Wanted) -> Count:
    """Fail for some numbers."""
    return Count(count=100 // (body.n % 2))


@BROKEN.post("/lies", role=Role.ADMIN)
async def lies(context: RequestContext, body: Wanted) -> Count:
    """Answer something else than it says."""
    return Count(count=str(body.n))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "failure"), list(zip(BROKEN.operations, ["Server error", "schema"], strict=True))
)
def test_an_operation_that_fails_or_answers_something_else_is_found(
    server: Redis, monkeypatch: pytest.MonkeyPatch, operation: Operation, failure: str
) -> None:
    from rmq.server import api

    monkeypatch.setattr(api, "TABLES", (BROKEN,))
    with (
        serving(server.url, "broken") as running,
        pytest.raises(BaseException) as caught,  # noqa: PT011  # a group of its own kind
    ):
        check(running.url, operation, {})
    assert failure in str(caught.value) + repr(getattr(caught.value, "exceptions", ""))
