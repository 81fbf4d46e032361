"""The console pages "Problems" and "Runbook".

The page "Problems" shows how to fix each problem, with commands and buttons.
"""

from __future__ import annotations

import functools
import re
import shlex
from typing import NamedTuple

from rmq.features.doctor.look import PROBLEMS_MAX, Finding, problems
from rmq.http_framework.figures import examined
from rmq.http_framework.page import PageRequest, Pages, View
from rmq.kernel.core import packages

PAGES = Pages()


class Button(NamedTuple):
    """A button that fixes a problem: it submits a form or opens a page.

    Attributes:
        label: Text of the button.
        url: Address of the form or page.
        acts: Whether the button submits a form.
    """

    label: str
    url: str
    acts: bool = False


@PAGES.get("/problems")
async def list_problems(request: PageRequest) -> View:
    """List the ten worst problems of Redis, topics, groups, schedules, jobs and workers."""
    reading = examined(request)
    found: list[Finding] = list(reading.found or ())
    worst = problems(found)
    rows = [(each, _buttons(request, each)) for each in worst]
    return View(
        "problems.html",
        {
            "reading": reading, "rows": rows[:PROBLEMS_MAX], "further": rows[PROBLEMS_MAX:],
            "fine": [each for each in found if each not in worst],
        },
        "Problems",
    )  # fmt: skip


@PAGES.get("/runbook")
async def show_runbook(request: PageRequest) -> View:
    """Show what each problem means and how to fix it. The text is the installed docs/runbook.md."""
    return View("runbook.html", {"sections": _sections()}, "Runbook")


@functools.cache
def _sections() -> list[tuple[str, list[str]]]:
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", packages.page("docs/runbook.md"))
    found = re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return [(heading, section.strip().split("\n\n")) for heading, section in found]


def _buttons(request: PageRequest, finding: Finding) -> list[Button]:
    topic, subject = finding.topics[0] if finding.topics else "", finding.subject
    verbs = tuple(shlex.split(finding.fix)[1:3])
    acts = {
        ("topic", "resume"): ("Resume", ("topics", topic, "resume"), {}),
        ("groups", "release"): (
            "Release the group", ("topics", topic, "groups", "release"), {"group": subject},
        ),
        ("job", "resume"): ("Resume the job", ("jobs", subject, "resume"), {}),
        ("batch", "close"): ("Close the batch", ("batches", subject, "close"), {}),
    }  # fmt: skip
    places = {
        "cluster": ("Health", ("health",)),
        "dead-letters": ("Causes", ("topics", topic, "dead-letters", "groups")),
        "failures": ("Causes", ("topics", topic, "dead-letters", "groups")),
        "groups": ("Groups", ("topics", topic, "groups")),
        "group-skew": ("Groups", ("topics", topic, "groups")),
        "schedules": ("Schedules", ("topics", topic, "schedules")),
        "long-runs": ("Workers", ("workers",)),
        "workers": ("Workers", ("workers",)),
        "jobs": ("Job", ("jobs", subject)),
        "batches": ("Batch", ("batches", subject)),
        "late": ("Messages", ("topics", topic, "messages")),
        "slot-skew": ("Slots", ("topics", topic, "slots")),
        "big-keys": ("Slots", ("topics", topic, "slots")),
        "resizes": ("Resize", ("topics", topic, "resize")),
    }
    buttons = []
    if verbs in acts and request.may("operator"):
        label, parts, query = acts[verbs]
        buttons.append(Button(label, request.url(*parts, **query), True))
    if finding.check in places and not (finding.check == "resizes" and not request.may("admin")):
        label, parts = places[finding.check]
        contains = subject if label == "Workers" else None
        buttons.append(Button(label, request.url(*parts, contains=contains)))
        if verbs == ("groups", "release"):
            chosen = {"filter": f'group="{subject}"'} if '"' not in subject else {}
            url = request.url("topics", topic, "dead-letters", **chosen)
            buttons.append(Button("Dead letters", url))
    elif topic:
        buttons.append(Button("Topic", request.url("topics", topic)))
    return buttons
