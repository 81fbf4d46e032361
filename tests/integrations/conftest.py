"""Fixtures: a Django project in this process, and a backend with a prefix of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.databases import fresh
from tests.servers import Server

HAS_TASKS = find_spec("django_tasks") is not None
if find_spec("django") is not None:
    HAS_TASKS |= find_spec("django.tasks") is not None


@pytest.fixture(scope="session")
def django_project() -> None:
    """Set the project up, once in a process. Without Django, skip; in CI, fail."""
    if not HAS_TASKS:
        text = "no django.tasks here: pip install Django 6, or django-tasks"
        pytest.fail(text) if os.environ.get("CI") else pytest.skip(text)
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.integrations.shop.settings"
    django.setup()


@pytest.fixture
def tasks(django_project: None) -> Iterator[Any]:
    """The tasks of the project, which have done nothing yet."""
    from tests.integrations.shop import tasks

    tasks.DONE.clear()
    tasks.GO.clear()
    yield tasks
    tasks.GO.set()


Make = Callable[..., Any]


@pytest.fixture
def make_backend(
    tasks: Any, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """Make the backend "default" with options."""
    from django.test.utils import override_settings

    from rmq.integrations.django import backend as module
    from rmq.integrations.django.tasks_api import task_backends

    shared: dict[str, Any] = {}
    monkeypatch.setattr(module, "_shared", shared)
    overrides = []

    def make(queues: tuple[str, ...] = (), **options: Any) -> Any:
        options = {"url": server.url, "prefix": name, "retry_for": 2} | options
        given = {"BACKEND": "rmq.django.TaskBackend", "QUEUES": queues, "OPTIONS": options}
        override = override_settings(TASKS={"default": given})
        override.enable()
        overrides.append(override)
        return task_backends["default"]

    yield make
    for override in reversed(overrides):
        override.disable()
    for each in shared.values():
        each.client.close()


@pytest.fixture
def backend(make_backend: Make) -> Any:
    return make_backend()


@pytest.fixture
def sync_thread(tasks: Any) -> Iterator[None]:
    """End the thread in which asgiref runs plain functions for async programs."""
    from asgiref.sync import SyncToAsync

    yield
    SyncToAsync.single_thread_executor.shutdown()
    SyncToAsync.single_thread_executor = ThreadPoolExecutor(max_workers=1)


SERVERS = {
    "postgresql": ("postgres", "django.db.backends.postgresql"),
    "mariadb": ("mariadb", "django.db.backends.mysql"),
}


@pytest.fixture(
    params=["sqlite", *(pytest.param(each, marks=pytest.mark.slow) for each in SERVERS)]
)
def shop_db(request: pytest.FixtureRequest, tasks: Any, tmp_path: Path) -> Iterator[str]:
    """A database with the tables of the project and of RMQ; what it is."""
    from django.core.management import call_command
    from django.db import connections

    with ExitStack() as stack:
        if request.param == "sqlite":
            changes: dict[str, Any] = {"NAME": str(tmp_path / "shop.db")}
        else:
            if request.param == "mariadb":
                import pymysql

                pymysql.install_as_MySQLdb()
            fixture, engine = SERVERS[request.param]
            database = stack.enter_context(fresh(request.getfixturevalue(fixture)))
            url = sa.make_url(database.url())
            changes = {
                "ENGINE": engine, "NAME": url.database, "OPTIONS": {},
                "USER": url.username, "PASSWORD": url.password or "", "HOST": url.host,
                "PORT": url.port,
            }  # fmt: skip
        before = connections.settings["default"]
        connections["default"].close()
        connections.settings["default"] = before | changes
        del connections["default"]
        call_command("migrate", run_syncdb=True, verbosity=0)
        yield request.param
        connections["default"].close()
        connections.settings["default"] = before
        del connections["default"]
