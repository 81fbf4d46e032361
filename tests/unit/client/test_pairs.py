"""Each async class has the methods of its sync class: the same names, order and arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import rmq
from rmq.features.messages.cli.send import send

PAIRS = [
    (rmq.Client, rmq.AsyncClient),
    (rmq.Topic, rmq.AsyncTopic),
    (rmq.Consumer, rmq.AsyncConsumer),
    (rmq.Delivery, rmq.AsyncDelivery),
    (rmq.Admin, rmq.AsyncAdmin),
    (rmq.Query, rmq.AsyncQuery),
    (rmq.Stage, rmq.AsyncStage),
    (rmq.Batch, rmq.AsyncBatch),
    (rmq.Schedule, rmq.AsyncSchedule),
    (rmq.ResultHandle, rmq.AsyncResultHandle),
    (rmq.TopicHistory, rmq.AsyncTopicHistory),
]


def public_methods(cls: type) -> dict[str, Callable[..., Any]]:
    """The public methods in the order of the source, those of its parents first."""
    return {
        name: member
        for parent in reversed(cls.__mro__)
        for name, member in vars(parent).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


def test_every_async_class_that_rmq_exports_has_its_pair_here() -> None:
    exported = {getattr(rmq, name) for name in rmq.__all__ if name.startswith("Async")}

    assert exported == {theirs for _, theirs in PAIRS}


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS)
def test_a_pair_has_the_same_methods_in_the_same_order(sync: type, asynchronous: type) -> None:
    assert list(public_methods(sync)) == list(public_methods(asynchronous))


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS)
def test_the_methods_of_a_pair_take_the_same_arguments(sync: type, asynchronous: type) -> None:
    theirs = public_methods(asynchronous)
    for name, method in public_methods(sync).items():
        ours, other = inspect.signature(method), inspect.signature(theirs[name])
        assert [(one.name, one.kind, one.default) for one in ours.parameters.values()] == [
            (one.name, one.kind, one.default) for one in other.parameters.values()
        ], name


def test_send_takes_the_fields_of_outgoing_in_their_order() -> None:
    names = [field.name for field in fields(rmq.Outgoing) if field.name != "marks"]

    for topic in (rmq.Topic, rmq.AsyncTopic):
        arguments = list(inspect.signature(topic.send).parameters)
        assert arguments == ["self", *names, "durability", "timeout", "unknown"]
    options = {param.name for param in send.params}
    assert options >= set(names) - {"retry", "max_runtime"}, "those two need a handler, and code"
