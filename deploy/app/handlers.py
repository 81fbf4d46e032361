"""The handlers that compose.yml runs: put your own here."""

import logging

import rmq

client = rmq.Client()  # RMQ_URL
hello = client.topic("hello")


@hello.handler()
def greet(name: str) -> None:
    """Log a greeting."""
    logging.getLogger("app").info("hello, %s", name)
