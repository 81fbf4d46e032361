"""Django's tasks on RMQ, with a backend for `django.tasks` and commands of `manage.py`.

    INSTALLED_APPS = [..., "rmq.django"]
    TASKS = {"default": {"BACKEND": "rmq.django.TaskBackend"}}

`python manage.py rmq_worker` runs the tasks. docs/django.md describes every option.
"""

from rmq.integrations.django.backend import TaskBackend
from rmq.integrations.django.task import Task, TaskContext

__all__ = ["Task", "TaskBackend", "TaskContext"]
