"""The Django app `rmq.django`."""

from django.apps import AppConfig


class RMQ(AppConfig):
    """The app with the commands `rmq_worker` and `rmq_relay`, and the migration of the outbox."""

    name = "rmq.integrations.django"
    label = "rmq"
    verbose_name = "RMQ"
