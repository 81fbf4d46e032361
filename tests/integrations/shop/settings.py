"""Settings of the project. A test sets the name of the database, and TASKS."""

import os
from importlib.util import find_spec

SECRET_KEY = "of the tests"
USE_TZ = True
INSTALLED_APPS = ["rmq.django", "tests.integrations.shop"]
if find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DB", ":memory:"),
        "OPTIONS": {"timeout": 30},
    }
}
TASKS = {
    "default": {
        "BACKEND": "rmq.django.TaskBackend",
        "QUEUES": [],
        "OPTIONS": {
            "url": os.environ.get("SHOP_REDIS", "redis://localhost:1/0"),
            "prefix": os.environ.get("SHOP_PREFIX", "rmq"),
        },
    }
}
