import ast
import copy
import functools
import pickle
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import rmq
from rmq.errors import PAGE, RMQError

ROOT = Path(__file__).parents[2]

SIGNALS = ("Snooze", "Reject", "Retry", "WaitFor")  # a handler raises them to settle its delivery


def test_every_public_error_is_an_rmq_error() -> None:
    public = [getattr(rmq, name) for name in rmq.__all__ if name not in SIGNALS]
    errors = [cls for cls in public if isinstance(cls, type) and issubclass(cls, Exception)]

    assert len(errors) > 20
    assert [cls for cls in errors if not issubclass(cls, RMQError)] == []


def test_errors_of_a_value_or_a_type_are_those_of_python_too() -> None:
    assert issubclass(rmq.InvalidValue, ValueError)
    assert issubclass(rmq.InvalidType, TypeError)
    assert issubclass(rmq.PayloadTooLarge, ValueError)


# --- docs/errors.md ------------------------------------------------------------------------------

BASES = {"SendError", "DeliveryError"}  # of others, and never raised themselves
NOT_OURS = {"Endless", "UsageError"}  # of tests and tools: they lose nothing
INSIDE = {"KeepsResults"}  # the client handles it, and no caller sees it


@functools.cache
def public_exceptions() -> frozenset[str]:
    """Return the exceptions of RMQ, and the others that some `__all__` has, in all our packages."""
    bases: dict[str, set[str]] = {}  # of all classes of a name
    named: set[str] = set()
    for package in ("rmq", "spark_connector", "pyspark_rmq"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    names = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                    bases.setdefault(node.name, set()).update(names - {node.name})
                elif (
                    isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
                ):
                    named |= set(ast.literal_eval(node.value))

    def ancestors(name: str) -> Iterator[str]:
        for base in bases.get(name, ()):
            yield base
            yield from ancestors(base)

    errors = {name for name in bases if "RMQError" in ancestors(name)} | {"RMQError"}
    errors -= INSIDE
    raised = {"Exception", "ValueError", "TypeError", "AssertionError"}
    return frozenset(errors | {name for name in named if raised & {*ancestors(name)}})


def undescribed(exceptions: frozenset[str], page: str) -> list[str]:
    """Return the exceptions that a page does not describe in full, and headings of none."""
    found = {
        heading: text
        for heading, _, text in (
            part.partition("\n") for part in re.split(r"^### ", page, flags=re.M)[1:]
        )
    }
    missing = exceptions ^ found.keys()
    for name in exceptions & found.keys() - BASES:
        wanted = ["- **Lost:** "] if name in SIGNALS else ["- **Lost:** ", "- **Do:** "]
        missing |= {name for each in wanted[name in NOT_OURS :] if each not in found[name]}
    return sorted(missing)


def test_each_exception_has_its_heading() -> None:
    page = (ROOT / PAGE).read_text()

    assert undescribed(public_exceptions(), page) == []
    assert undescribed(public_exceptions() | {"MadeUp"}, page) == ["MadeUp"]
    assert undescribed(public_exceptions(), page.replace("### LeaseLost", "### Lost")) == [
        "LeaseLost", "Lost",
    ]  # fmt: skip
    assert undescribed(
        public_exceptions(), page.replace("- **Do:** repeat the call. Repeat", "")
    ) == ["OutcomeUnknown"]
    assert {"RuntimeExceeded", "Snooze", "Endless", "UsageError"} <= public_exceptions()


def test_an_exception_names_its_place_in_the_documentation() -> None:
    error = rmq.QueueFull("the topic is full", [None])

    assert str(error) == "the topic is full"
    assert error.docs == "docs/errors.md#queuefull"
    assert traceback.format_exception(error)[-2:] == [
        "rmq.errors.QueueFull: the topic is full\n", "explained by: rmq explain QueueFull\n",
    ]  # fmt: skip


def test_a_copy_of_an_exception_names_its_place_once() -> None:
    error = rmq.InvalidFilter("filter: no", 3)

    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert other.__notes__ == ["explained by: rmq explain InvalidFilter"]
        assert other.position == 3


def test_a_subclass_of_a_user_is_described_where_its_base_is() -> None:
    class Away(rmq.Unavailable): ...

    assert Away().docs == "docs/errors.md#unavailable"
