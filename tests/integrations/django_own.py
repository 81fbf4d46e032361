"""Run Django's own tests of `django.tasks` against RMQ's backend.

    python -m tests.integrations.django_own DIRECTORY [redis://localhost:6379/0]

DIRECTORY is a copy of the folder `tests` of Django's source distribution, of the version that is
installed: `pip download --no-deps --no-binary :all: django==VERSION`, then `tar xzf`. This script
fetches nothing, and changes the copy: the tests of Django's two backends use RMQ's backend. Those
of the immediate backend get a worker, which runs each task before `enqueue` returns.

`test_custom_backend` has backends of its own, so it is not run.

The tests in `OTHERWISE` fail because they expect what is particular to Django's backends. The exit
code is 1 if another test fails, or if one of these passes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

OTHERWISE = {
    "test_immediate_backend": {
        "test_cannot_get_result": "RMQ has results",
        "test_cannot_refresh_result": "RMQ has results",
        "test_cannot_pass_run_after": "RMQ has run_after",
        "test_throws_keyboard_interrupt": "the worker is in another thread than enqueue",
        "test_using_correct_backend": "compares the class",
    },
    "test_dummy_backend": {
        "test_clear": "there is no clear()",
        "test_refresh_result": "changes the stored object",
        "test_refresh_result_async": "changes the stored object",
        "test_using_correct_backend": "compares the class",
    },
    "test_tasks": {
        "test_get_backend": "compares the class",
        "test_using_correct_backend": "compares the class",
    },
}
THEIRS = {
    "django.tasks.backends.immediate.ImmediateBackend": f"{__name__}.Immediate",
    "django.tasks.backends.dummy.DummyBackend": f"{__name__}.Recording",
}

if "RMQ_OWN_TESTS" in os.environ:  # in the process of Django's tests
    import rmq
    from rmq.django import TaskBackend
    from tests.patience import wait_for

    class Recording(TaskBackend):
        """Has the list `results`, as Django's DummyBackend."""

        def __init__(self, alias: str, params: dict[str, Any]) -> None:
            own = {"url": os.environ["RMQ_OWN_TESTS"], "prefix": f"own-{uuid.uuid4().hex[:8]}"}
            super().__init__(alias, {**params, "OPTIONS": own})
            self.ids: list[str] = []

        @property
        def results(self) -> list[Any]:
            return [self.get_result(id) for id in self.ids]

        def clear(self) -> None:
            self.ids.clear()

        def enqueue(self, *args: Any, **kwargs: Any) -> Any:
            result = super().enqueue(*args, **kwargs)
            self.ids.append(result.id)
            return result

    class Immediate(Recording):
        """Runs each task before `enqueue` returns."""

        registered: set[str] = set()  # noqa: RUF012 - of the object, after the first task

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            if task.queue_name not in self.registered:
                self.registered = self.registered | {task.queue_name}
                self.register([task.queue_name])

            def ended() -> bool:
                result.refresh()
                return bool(result.is_finished)

            with rmq.Worker(self.client, heartbeat="thread"):
                wait_for(ended)
            return result


def main(directory: str, url: str = "redis://localhost:6379/0") -> int:
    """Run the tests, and return the exit code."""
    env = os.environ | {"RMQ_OWN_TESTS": url, "PYTHONPATH": str(Path(__file__).parents[2])}
    is_good = True
    for module, otherwise in OTHERWISE.items():
        path = Path(directory, "tasks", f"{module}.py")
        text = path.read_text()
        for theirs, ours in THEIRS.items():
            text = text.replace(f'"{theirs}"', f'"{ours.replace("__main__", __spec__.name)}"')
        path.write_text(text)
        words = [sys.executable, "runtests.py", "--parallel", "1", f"tasks.{module}"]
        done = subprocess.run(words, cwd=directory, env=env, capture_output=True, text=True)
        failed = {*re.findall(r"^(?:FAIL|ERROR): (\w+)", done.stderr, re.MULTILINE)}
        count = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
        print(module, count[0] if count else done.stderr[-2000:], f"{len(failed)} failed:")
        for name in sorted(failed | otherwise.keys()):
            state = "fails" if name in failed else "passes"
            print(f"    {name} {state}: {otherwise.get(name, 'NOT EXPECTED')}")
        is_good &= bool(count) and failed == otherwise.keys()
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
