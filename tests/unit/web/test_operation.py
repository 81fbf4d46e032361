"""The role that each operation needs: a new one has its line here, after a thought."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from rmq import AsyncClient
from rmq.features.dead_letters import http
from rmq.features.dead_letters.jobs import http as jobs_http
from rmq.http_framework import requests
from rmq.http_framework.operation import RequestContext, Table
from rmq.http_framework.principal import Principal
from rmq.http_framework.problems import ApiError
from rmq.http_framework.service import ServerState
from rmq.kernel.core.access import Role
from rmq.server.api import TABLES

OPERATIONS = [each for table in TABLES for each in table.operations]
WRITES = {
    # Of topics that the token names.
    Role.PRODUCER: {"send_message"},
    Role.CONSUMER: {
        "ack_messages", "extend_leases", "nack_messages", "receive_messages", "reject_messages",
        "release_messages", "stream_messages",
    },
    # They keep messages moving, and what they do can be done again or otherwise.
    Role.OPERATOR: {
        "cancel_message", "close_batch", "count_job_matches", "import_dead_letters", "pause_group",
        "pause_job", "pause_schedule", "pause_topic", "redrive", "release_group",
        "release_query", "resume_group",
        "reschedule_message", "restore", "resume_job", "resume_schedule", "resume_topic",
        "roll_back", "run_schedule", "set_message_priority", "start_job",
        "send_pending", "signal_event", "stop_job",
    },
    # They make, change or delete what programs rely on.
    Role.ADMIN: {
        "cancel_batch", "create_topic", "delete_claim", "delete_schedule", "delete_topic",
        "drop_pending",
        "forget_missing", "forget_sink", "purge", "purge_group", "resize_topic", "set_topic",
    },
}  # fmt: skip
READS_OF_ADMINS = {"export_dead_letters"}  # whole bodies, and those of others


def test_each_operation_that_changes_something_has_the_role_that_is_written_here() -> None:
    found = {
        role: {each.name for each in OPERATIONS if not each.is_read and each.role is role}
        for role in Role
    }

    assert found == {Role.VIEWER: set(), **WRITES}


def test_viewers_read_all_but_what_is_of_admins() -> None:
    found = {each.name for each in OPERATIONS if each.is_read and each.role is not Role.VIEWER}

    assert found == READS_OF_ADMINS


@pytest.mark.parametrize("method", ["post", "patch", "delete"])
def test_an_operation_that_changes_something_cannot_leave_its_role_open(method: str) -> None:
    role = inspect.signature(getattr(Table, method)).parameters["role"]

    assert role.default is inspect.Parameter.empty


@pytest.mark.parametrize(
    ("role", "rights"),
    [
        (Role.PRODUCER, {Role.PRODUCER}),
        (Role.CONSUMER, {Role.CONSUMER}),
        (Role.VIEWER, {Role.VIEWER}),
        (Role.OPERATOR, {Role.PRODUCER, Role.VIEWER, Role.OPERATOR}),
        (Role.ADMIN, set(Role)),
    ],
)
def test_a_role_has_its_rights_and_no_others(role: Role, rights: set[Role]) -> None:
    assert {other for other in Role if role.includes(other)} == rights


@pytest.mark.parametrize(("role", "kind"), [(Role.OPERATOR, "forbidden"), (Role.ADMIN, "invalid")])
def test_a_job_that_purges_needs_the_role_of_purge(role: Role, kind: str) -> None:
    principal = Principal("somebody", role, True, "token")
    at = RequestContext(AsyncClient(), ServerState(), principal, "")
    unconfirmed = http.NewJob(verb="purge")

    with pytest.raises(ApiError) as caught:
        asyncio.run(jobs_http.start_job(at, requests.TopicPath(topic="orders"), unconfirmed))

    assert caught.value.kind == kind  # an admin gets as far as the name to confirm
