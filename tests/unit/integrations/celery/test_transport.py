"""URLs of brokers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

try:
    import kombu

    import rmq.celery
    from rmq.integrations.celery.transport import redis_url
except ImportError:
    if os.environ.get("CI"):
        raise
    pytest.skip("the extra celery is not installed", allow_module_level=True)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rmq://u:p%40@host:7000/2?protocol=3", "redis://u:p%40@host:7000/2?protocol=3"),
        ("rmqs://host/", "rediss://host/"),
        ("rmq+sentinel://h1,h2:1/service/0", "redis+sentinel://h1,h2:1/service/0"),
        ("rmqs+sentinel://h1,h2:1/service", "rediss+sentinel://h1,h2:1/service"),
        ("rmq+cluster://h1:7000,h2:7001", "redis+cluster://h1:7000,h2:7001"),
        ("rmqs+cluster://h1:7000", "rediss+cluster://h1:7000"),
    ],
)
def test_urls(url, expected):
    assert redis_url(kombu.Connection(url)) == expected


def test_a_program_that_imports_nothing_first_names_the_class():
    text = (
        "import kombu, sys\n"
        "made = kombu.Connection('redis://h:1/2', transport='rmq.celery:Transport')\n"
        "from rmq.integrations.celery.transport import redis_url\n"
        "print(made.transport.driver_name, redis_url(made))\n"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert found.stdout.split() == ["rmq", "redis://h:1/2"]


def test_an_alternate_keeps_its_password_and_tls():
    made = kombu.Connection("rmq://h1:1;rmqs://u:p%2F@h2:2/3")
    made.switch("rmqs://u:p%2F@h2:2/3")

    assert redis_url(made) == "rediss://u:p%2F@h2:2/3"


def test_the_url_is_shown_without_its_password():
    assert kombu.Connection("rmq://u:secret@h:1/2").as_uri() == "rmq://u:***@h:1/2"


def test_the_class_is_public():
    assert rmq.celery.Transport.driver_type == "redis"
