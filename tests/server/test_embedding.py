"""docs/embedding.md: its applications, each run as it stands, with a user that it knows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

import rmq
from tests.server.console.fetching import csrf_of, fetch
from tests.server.running import PATIENCE_S, until
from tests.servers import Server as Redis, die_with_parent, free_port

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"
BLOCKS = dict(re.findall(r"^```python (\w+\.py)\n(.*?)^```", PAGE.read_text(), re.M | re.S))
CONSOLE = "/admin/rmq/console"
USER = {"name": "ann", "role": "operator"}

SETTINGS = """
SECRET_KEY = "x" * 50
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
ROOT_URLCONF = "settings"
LOGIN_URL = "/accounts/login/"
USE_TZ = True
urlpatterns = []
"""

# Programs that print the cookie of somebody who has signed in at the host.
COOKIES = {
    "fastapi_app.py": f"""
import base64, json, os, itsdangerous
text = base64.b64encode(json.dumps({{"user": {USER}}}).encode())
print("session=" + itsdangerous.TimestampSigner(os.environ["SECRET_KEY"]).sign(text).decode())
""",
    "flask_app.py": f"""
from flask_app import app
serializer = app.session_interface.get_signing_serializer(app)
print("session=" + serializer.dumps({{"user": {USER}}}))
""",
    "asgi.py": """
import django; django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
for name, is_staff in (("carl", False), ("ann", True)):
    user = User.objects.create_user(name, is_staff=is_staff)
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    print("sessionid=" + session.session_key)
""",
}
SERVERS = {
    "fastapi_app.py": ["uvicorn", "fastapi_app:app"],
    "flask_app.py": ["flask", "--app", "flask_app", "run"],
    "asgi.py": ["uvicorn", "asgi:application"],
}
NEEDS = {"fastapi_app.py": "fastapi", "flask_app.py": "a2wsgi", "asgi.py": "django"}
OTHERS = [name for name in SERVERS if name != "fastapi_app.py"]
SIGN_IN = {"asgi.py": "/accounts/login/"}


@contextmanager
def running(
    words: list[str], directory: Path, env: dict[str, str]
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server in a process of its own; its address and the process."""
    port = free_port()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *words, "--port", str(port)],
            cwd=directory, env=env, stdout=log, stderr=log, preexec_fn=die_with_parent,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, (directory / "log").read_text()
        try:
            fetch(url + "/")
        except OSError:
            return False
        return True

    try:
        until(answers, f"{words} in\n{(directory / 'log').read_text()}")
        yield url, process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "name", ["fastapi_app.py", *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_an_application_of_the_page_lets_its_users_in(
    server: Redis, prefix: str, client: rmq.Client, tmp_path: Path, name: str
) -> None:
    pytest.importorskip(NEEDS[name])
    client.topic("orders").open()
    assert "redis://localhost:6379/0" in BLOCKS[name]
    (tmp_path / name).write_text(BLOCKS[name].replace("redis://localhost:6379/0", server.url))
    (tmp_path / "settings.py").write_text(SETTINGS)
    env = os.environ | {
        "SECRET_KEY": "x" * 32, "RMQ_PREFIX": prefix, "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(rmq.__file__).parents[1]}",
    }  # fmt: skip
    made = subprocess.run(
        [sys.executable, "-c", COOKIES[name]],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    *others, cookie = made.stdout.split()
    kind, _, value = cookie.partition("=")

    with running(SERVERS[name], tmp_path, env) as (url, process):
        for stranger in ("none=1", f"{kind}={value[::-1]}", *others):
            asked = fetch(url + CONSOLE, Cookie=stranger)
            expected = SIGN_IN.get(name, "/login") + "?next=" + quote(CONSOLE, safe="")
            assert (asked.status, asked.headers["Location"]) == (303, expected), stranger
        page = fetch(url + CONSOLE + "/topics/orders", Cookie=cookie)
        assert page.status == 200, page.text
        assert "role operator" in page.text
        script = re.search(r'src="([^"]+console\.js)"', page.text)
        assert script is not None
        assert fetch(url + script[1], Cookie=cookie).status == 200
        form = {"csrf": csrf_of(page.text), "verb": "receive"}

        done = fetch(url + CONSOLE + "/topics/orders/pause", form, Cookie=cookie, Origin=url)

        assert (done.status, done.headers["Location"]) == (303, CONSOLE + "/topics/orders")
        assert client.admin.settings("orders").paused is not None
        (line,) = [each for each in client.admin.audit_trail() if "pause" in each.what]
        assert line.by.startswith("ann (host, ")
        stream = {"Accept": "text/event-stream", "Cookie": cookie}
        if name == "flask_app.py":
            assert fetch(url + CONSOLE, Accept="text/event-stream", Cookie=cookie).status == 406
        else:
            with urllib.request.urlopen(
                urllib.request.Request(url + CONSOLE, headers=stream), timeout=PATIENCE_S
            ) as events:
                assert events.readline() == b"event: page\r\n"
                process.terminate()  # with a page that is live
                assert process.wait(PATIENCE_S) in (0, -15)
