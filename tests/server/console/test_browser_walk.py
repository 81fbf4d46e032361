"""A person at the console: a cause among dead letters is found, read and sent back.

Everything is done in a real Chromium, against `rmq server` and a real Redis.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rmq
from rmq.features.dead_letters.jobs.service import Jobs
from rmq.server import Server
from tests.server.console.browsing import Window
from tests.server.running import serving, until
from tests.servers import Server as Redis

RATE = 1_000
CAUSES = (  # of twenty messages
    *["ConnectionRefusedError: port 443"] * 13,
    *["ValueError: amount is negative"] * 6,
    "TimeoutError: no answer of the shop after 30 s",
)


def bury(topic: rmq.Topic, count: int) -> None:
    """Send messages, and let each die of its cause."""
    for start in range(0, count, 1000):
        topic.send_many([rmq.Outgoing({"order": n}) for n in range(start, start + 1000)])
        with topic.consumer() as consumer:
            left = 1000
            while left:
                batch = consumer.receive(1000, wait=5)
                left -= len(batch)
                for error in dict.fromkeys(CAUSES):
                    of_cause = [d for d in batch if CAUSES[d.body["order"] % 20] == error]
                    consumer.reject(of_cause, error)


@pytest.fixture
def jobs_begin(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event before which servers of this process begin no job."""
    begin, run_once = threading.Event(), Jobs.run_once
    monkeypatch.setattr(Jobs, "every_s", 0.1)
    monkeypatch.setattr(Jobs, "run_once", lambda self: run_once(self) if begin.is_set() else 0)
    return begin


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_cause_among_many_dead_letters_is_found_read_and_sent_back(
    browser: Any,
    server: Redis,
    prefix: str,
    client: rmq.Client,
    jobs_begin: threading.Event,
    count: int,
) -> None:
    topic, redriven = client.topic("orders", slots=4), count // len(CAUSES)
    bury(topic, count)
    token = client.admin.token_create("ann", "admin").text
    with (
        serving(server.url, prefix, auth="token") as running,
        Window(browser, running.url) as window,
    ):
        page = window.page
        window.open("/topics/orders/dead-letters/groups")  # leads to the page to sign in
        page.fill("#token", token)
        page.keyboard.press("Enter")

        row = page.locator("#group-table tbody tr", has_text="TimeoutError")
        row.wait_for()
        assert _number(row.locator("td").first.inner_text()) == redriven
        row.locator("td a").first.click()
        page.locator("#letters tbody tr").first.wait_for()
        assert "TimeoutError" in page.locator("#letters tbody tr").first.inner_text()

        page.locator("#letters tbody tr th a").first.click()
        page.wait_for_selector("#error")
        assert page.inner_text("#error").startswith("TimeoutError")
        assert '"order"' in page.inner_text("#body")
        page.go_back()
        assert "fingerprint=" in page.input_value("#filter")

        page.click("#redrive-all")
        until(lambda: "at least" not in page.inner_text("h2"), "the count")
        assert _number(page.inner_text("h2")) == redriven
        page.fill("#rate", str(RATE))
        page.click("button:text-is('Redrive')")
        page.wait_for_selector("#job-state")
        before = page.inner_text("#job-done")
        jobs_begin.set()
        until(lambda: page.inner_text("#job-state") == "done", "the job on its page")

        assert page.inner_text("#job-done") != before, "the page moved without a reload"
        job = client.admin.jobs("orders")[0]
        assert (job.done, job.rate, job.by) == (redriven, RATE, "ann")
        assert client.admin.stats("orders")["dead"] == count - redriven
        assert window.complaints == []


def _number(text: str) -> int:
    found = re.search(r"[0-9][0-9\u202f]*", text)
    assert found is not None, text
    return int(found[0].replace("\u202f", ""))


@pytest.fixture
def running(server: Redis, prefix: str) -> Iterator[Server]:
    with serving(server.url, prefix) as running:
        yield running


@pytest.mark.slow
def test_a_topic_is_paused_and_numbers_move_without_reload(
    browser: Any, running: Server, client: rmq.Client
) -> None:
    topic = client.topic("orders")
    topic.open()
    with Window(browser, running.url) as window:
        page = window.page
        window.open("/topics/orders")
        page.fill("#why", "deploy")
        topic.send(1)
        until(lambda: page.locator("#figures dd").first.inner_text() == "1", "the number")
        assert page.input_value("#why") == "deploy", "what is typed stays while numbers move"

        page.click("button:text-is('Pause')")

        page.wait_for_selector("#pauses p:has-text('deploy')")
        paused = client.admin.settings("orders").paused
        assert paused is not None
        page.click("button:text-is('Resume')")
        page.wait_for_selector(".notice:has-text('Resumed')")
        assert client.admin.settings("orders").paused is None

        page.click("#live")
        assert page.get_attribute("#live", "aria-pressed") == "false"
        topic.send(2)
        window.open("")
        page.wait_for_selector("#live[aria-pressed=false]")  # it is remembered
        assert window.complaints == []


@pytest.mark.slow
def test_a_purge_is_undone_with_rows_that_were_ticked(
    browser: Any, running: Server, client: rmq.Client
) -> None:
    topic = client.topic("orders", max_retries=0)
    bury(topic, 1000)
    with Window(browser, running.url) as window:
        page = window.page
        window.open("/topics/orders/dead-letters")
        boxes = page.locator("#letters tbody input[type=checkbox]")
        boxes.nth(0).click()
        boxes.nth(4).click(modifiers=["Shift"])
        assert page.inner_text(".ticked") == "5 ticked"
        page.click("[data-counts] button:has-text('Purge')")
        page.locator("button[data-confirmed]:disabled").wait_for()  # a script of the page does it
        page.fill("#confirm", "orders")
        page.click("button[data-confirmed]")
        page.wait_for_selector("#job-state:text-is('done')")
        assert client.admin.stats("orders")["trash"] == 5

        window.open("/topics/orders/trash")
        page.click("#restore-all")
        page.click("button:text-is('Restore')")

        page.wait_for_selector(".notice:has-text('Restored 5')")
        assert client.admin.stats("orders")["dead"] == 1000
        assert window.complaints == []


@pytest.mark.slow
def test_the_keyboard_is_enough(browser: Any, running: Server, client: rmq.Client) -> None:
    topic = client.topic("orders", max_retries=0)
    bury(topic, 1000)
    with Window(browser, running.url) as window:
        page = window.page
        window.open("")
        page.wait_for_selector("#topics")
        for key in ("j", "Enter"):
            page.keyboard.press(key)
        page.wait_for_url("**/topics/orders")
        page.keyboard.press("d")
        page.wait_for_url("**/dead-letters")
        for key in ("j", "Enter"):
            page.keyboard.press(key)
        page.wait_for_url("**/topics/orders/dead-letters/groups")
        window.open("/topics/orders/dead-letters")
        page.keyboard.press("/")
        page.keyboard.type("err")
        page.keyboard.press("Tab")  # takes the suggestion
        page.keyboard.type(" contains Timeout")
        assert page.input_value("#filter") == "error contains Timeout"
        page.keyboard.press("Enter")
        page.wait_for_url("**filter=error**")
        page.keyboard.press("j")
        page.keyboard.press("x")
        assert page.inner_text(".ticked") == "1 ticked"
        page.keyboard.press("?")
        assert page.is_visible("#keys")
        page.keyboard.press("Escape")
        assert not page.is_visible("#keys")
        for _ in range(60):  # to the button, by Tab alone
            if page.evaluate("document.activeElement.textContent.trim()") == "Redrive …":
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector("#rate")
        assert "1 letter" in page.inner_text("h2")
        assert window.complaints == []


@pytest.mark.slow
def test_a_console_that_is_killed_comes_back_with_its_history_and_jobs(
    browser: Any, server: Redis, prefix: str, client: rmq.Client, spawn: Callable[..., Any]
) -> None:
    topic = client.topic("orders", max_retries=0)
    bury(topic, 4000)  # at the rate below a job of 100 s, which no step here outlives
    words = ("server", "--url", server.url, "--prefix", prefix, "--listen")
    first = spawn(*words, "127.0.0.1:0")
    first.wait_for("serving ")
    url = re.search(r"http://127\.0\.0\.1:(\d+)", first.text())
    assert url is not None
    job = client.admin.job_start("orders", rate=40, expected=4000)
    with Window(browser, url[0]) as window:
        page = window.page
        window.open(f"/jobs/{job.id}")
        until(lambda: client.admin.job(job.id).done > 40, "the job runs")
        until(lambda: len(client.admin.samples("orders")) > 1, "some history")

        first.send_signal(signal.SIGKILL)
        first.wait()
        page.wait_for_selector("#state:has-text('lost'), #state:has-text('does not answer')")
        second = spawn(*words, f"127.0.0.1:{url[1]}")
        second.wait_for("serving ")

        before = client.admin.job(job.id).done
        until(lambda: client.admin.job(job.id).done > before + 40, "the job goes on")
        shown = page.inner_text("#job-done")
        until(lambda: page.inner_text("#job-done") != shown, "the page moves by itself")
        window.open("/topics/orders")
        page.wait_for_selector("#chart-depth path.line")
        client.admin.job_stop(job.id)


@pytest.mark.slow  # a script of the page; without a browser nothing of it can be shown
def test_a_page_that_is_no_longer_live_says_so_in_red_and_how_old_it_is(
    browser: Any, own_server: Redis, prefix: str
) -> None:
    with rmq.Client(own_server.url, prefix=prefix) as client:
        client.topic("orders").send("first")
    with (
        serving(own_server.url, prefix) as running,
        Window(browser, running.url) as window,
    ):
        page = window.page
        window.open("/topics/orders/messages")
        page.wait_for_function("document.querySelector('#live .live-text').textContent === 'Live'")
        assert page.locator("#stale").is_hidden()

        own_server.kill()

        page.locator("#stale").wait_for(state="visible")
        assert "Redis does not answer" in page.inner_text("#stale")
        assert re.search(r"What is shown is \d+ (s|min) old", page.inner_text("#stale"))
        assert page.inner_text("#live") == "Not live"
        if shown := os.environ.get("RMQ_TEST_PICTURE"):
            page.screenshot(path=shown)
        own_server.start()
        page.locator("#stale").wait_for(state="hidden")
        assert page.inner_text("#live") == "Live"

        running.stop()
        page.locator("#stale").wait_for(state="visible")
        assert "connection is lost" in page.inner_text("#stale") or "does not answer" in (
            page.inner_text("#stale")
        )
