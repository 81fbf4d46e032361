"""The list of problems: each planted problem is in it, and nothing else; console and CLI agree.

`three_in_the_morning.py` describes the scene. Here it has a small part of its size, and a problem
of each kind. `python -m tests.server.three_in_the_morning` makes it in full for a reader.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import rmq
from rmq.cli import cli
from rmq.features.doctor import service as doctor_service
from rmq.features.doctor.admin import AsyncDoctorAdmin
from rmq.features.doctor.flows import CHECKS, NAMES
from rmq.features.doctor.look import problems
from rmq.features.doctor.service import Problems
from rmq.features.topic_admin import pages
from rmq.http_framework.readings import LongReading
from rmq.http_framework.render import iso
from rmq.http_framework.survey import Survey
from rmq.kernel.core.keys import problems_key
from rmq.server import Server
from tests.server.console.asked import Watch, forgetting
from tests.server.console.fetching import csrf_of, fetch
from tests.server.running import serving, until
from tests.server.three_in_the_morning import KINDS, OPTIONS, PREFIX, Plant, Scene
from tests.servers import Server as Redis, engines

SCALE = 0.004
COMMANDS = 1100  # of all checks, with 24 topics; those of the rights alone are 700


class Night(NamedTuple):
    """The scene, its problems, and a server."""

    redis: Redis
    client: rmq.Client
    scene: Scene
    planted: list[Plant]
    server: Server
    forget: Any

    def problems(self) -> list[rmq.Finding]:
        return problems(self.client.admin.doctor())

    def page(self, path: str) -> str:
        """A page of the console, when the doctor has looked."""
        url = f"{self.server.url}/console{path}"
        until(lambda: "the doctor examines" not in fetch(url).text, "the doctor")
        return fetch(url).text


@pytest.fixture(scope="module")
def night() -> Iterator[Night]:
    redis = Redis(list(engines().values())[-1], *OPTIONS, aof=True)
    try:
        with forgetting() as forget, rmq.Client(redis.url, prefix=PREFIX) as client:
            scene = Scene(redis, client, 7, SCALE)
            planted = scene.fill([kind for kind in KINDS if kind != "memory"])
            with scene.reporting(), serving(redis.url, PREFIX) as server:
                yield Night(redis, client, scene, planted, server, forget)
    finally:
        redis.stop()


def test_every_planted_problem_is_found_and_nothing_else(night: Night) -> None:
    found = night.problems()

    assert {(each.check, each.topics[0] if each.topics else "") for each in found} == {
        (each.check, each.topic) for each in night.planted
    }
    order = [each.severity for each in found]
    assert order == sorted(order)  # error, warning
    since = {each.check: each.since for each in found}
    hours = {"no-consumer": 40 / 60, "long-runs": 25 / 60, "groups": 35 / 60, "paused": 3}
    hours |= {"batches": 5, "late": 25 / 60, "failures": 8 / 60, "jobs": 2}
    for check, ago in hours.items():
        at = since[check]
        assert at is not None, check
        assert abs((time.time() - at.timestamp()) / 3600 - ago) < 0.1, check


def rmq_of(night: Night, *words: str) -> str:
    """What a command prints."""
    options = ["--url", night.redis.url, "--prefix", PREFIX]
    return CliRunner().invoke(cli, [*options, *words]).stdout


def test_the_console_and_the_command_line_show_the_list_of_the_function(night: Night) -> None:
    found = night.problems()

    page = night.page("/problems")
    shown = json.loads(rmq_of(night, "doctor", "--json"))
    text = rmq_of(night, "doctor")

    checks = [each.check for each in found]
    keys = re.findall(r'<tr data-key="([^" ]+)', page)
    assert keys == checks
    assert [each["check"] for each in shown["findings"]][: len(checks)] == checks
    assert re.findall(r"^(\S+) +(?:error|warning)  ", text, re.M) == checks
    for each in found:
        assert each.fix in unescape(page)
        assert each.runbook in page
        assert f"docs/runbook.md#{each.runbook.lower()}" in text
    assert f"{len(found)}</a>" in night.page("")
    runbook = night.page("/runbook")
    linked = re.findall(r'"/console/runbook#([^"]+)"', page)
    assert linked == [each.runbook.lower() for each in found]
    anchors = set(re.findall(r'<section class="card" id="([^"]+)"', runbook))
    assert {check.runbook.lower() for check in CHECKS} <= anchors
    assert "<b>Fix.</b> To end the pause, run <code>rmq topic resume TOPIC</code>." in runbook
    assert not re.search(r"\*\*|`|\]\(", runbook)


def test_the_overview_lists_the_topics_with_problems_first(night: Night) -> None:
    night.page("/problems")
    rows = re.findall(r'<tr data-key="([^"]+)">(.*?)</tr>', night.page(""), re.S)
    wanted = [each.topic for each in night.planted if each.topic]

    assert {name for name, _ in rows[: len(wanted)]} == set(wanted)
    marks = {name: re.findall(r'class="badge [^"]*" href[^>]*>([^<]+)', row) for name, row in rows}
    by_check = {each.check: each.topic for each in night.planted}
    assert marks[by_check["no-consumer"]] == ["no consumer"]
    assert marks[by_check["groups"]] == ["groups stopped"]
    assert marks[by_check["long-runs"]] == ["handler hangs"]
    assert marks[by_check["failures"]] == ["deliveries fail"]


def test_the_overview_says_that_no_topic_was_examined_yet(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    night.page("/problems")
    assert "not examined yet" not in night.page("")
    monkeypatch.setattr(pages, "examined", lambda request: LongReading())

    assert "not examined yet" in night.page("")


def test_the_server_stores_when_it_first_saw_a_problem_until_it_is_solved(night: Night) -> None:
    transport = night.client._transport
    survey = Survey(transport, PREFIX)
    service = Problems(transport, PREFIX, survey)
    with night.redis.raw() as raw:
        raw.delete(problems_key(PREFIX))
    assert service.run_once() == 0, "without a survey"
    survey.run_once()
    began = time.time()

    count = service.run_once()
    first = {each.check: each for each in night.problems()}
    service.run_once()
    second = {each.check: each for each in night.problems()}

    assert count == len(night.planted)
    seen = first["maxmemory-policy"].since
    assert {each.check for each in first.values() if each.since_from == "server"} == {
        "maxmemory-policy"
    }
    assert seen is not None
    assert seen.timestamp() > began - 1
    assert second["maxmemory-policy"].since == seen
    with night.redis.raw() as raw:
        raw.hset(problems_key(PREFIX), "paused solved-long-ago ", "1")
        service.run_once()
        assert raw.hlen(problems_key(PREFIX)) == count


def test_the_console_shows_the_last_findings_of_the_service(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = night.server.doctor
    until(lambda: night.server.survey.passes, "the survey")
    monkeypatch.setattr(doctor_service, "WHOLE_S", 0.0)
    night.page("/problems")  # somebody looks
    service.run_once()
    monkeypatch.setattr(AsyncDoctorAdmin, "doctor", None)

    page = night.page("/problems")

    latest = service.latest()
    assert latest is not None
    assert {each.check for each in latest[1]} == set(NAMES)
    assert f'<time datetime="{iso(latest[0])}"' in page
    assert f"{len(night.planted)}</a>" in night.page("")
    monkeypatch.setattr(doctor_service, "YOUNG", timedelta(0))
    assert service.latest() is None


def test_the_service_makes_expensive_checks_only_while_somebody_looks(night: Night) -> None:
    transport = night.client._transport
    survey = Survey(transport, PREFIX)
    survey.run_once()
    service = Problems(transport, PREFIX, survey)

    service.run_once()
    assert service.latest() is None  # and now somebody has looked
    service.run_once()

    assert service.latest() is not None


def test_all_checks_cost_a_bounded_number_of_commands(night: Night) -> None:
    with Watch(night.redis) as watch, watch.commands() as commands:
        night.client.admin.doctor()

    print(f"FIG {len(commands)} commands of all checks, {night.scene.topics} topics")
    assert len(commands) < COMMANDS


def test_a_button_repairs_its_problem(night: Night) -> None:
    topic = next(each.topic for each in night.planted if each.check == "paused")
    action = f"/console/topics/{topic}/resume"
    page = night.page("/problems")
    assert f'action="{action}"' in page

    done = fetch(
        night.server.url + action, {"csrf": csrf_of(page)}, Origin=night.server.url,
        Cookie="", Referer=night.server.url,
    )  # fmt: skip

    assert done.status == 303, done.text
    assert "paused" not in {each.check for each in night.problems()}
