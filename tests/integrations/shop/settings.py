"""Settings of the project. A test sets the name of the database, and TASKS."""

import os
from importlib.util import find_spec

SECRET_KEY = "of the tests"
USE_TZ = True
USERS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
INSTALLED_APPS = ["rmq.django", "tests.integrations.shop", *USERS]
MIGRATION_MODULES = dict.fromkeys(("auth", "contenttypes", "sessions"))  # tables at once
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1", "shop.example"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
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
