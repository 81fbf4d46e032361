"""The result backend: what is stored, for how long, and what cannot be stored."""

from __future__ import annotations

from datetime import timedelta

import pytest
from taskiq import TaskiqResult
from taskiq.depends.progress_tracker import TaskProgress, TaskState
from taskiq.exceptions import ResultGetError
from taskiq.serializers import PickleSerializer

from rmq.errors import InvalidValue
from rmq.taskiq import ResultBackend, ResultIsMissingError


@pytest.fixture
async def results(server):
    backend = ResultBackend(server.url, expires=timedelta(minutes=1), retry_for=2)
    yield backend
    await backend.shutdown()


def result(value=None, **named):
    return TaskiqResult(is_err=False, return_value=value, execution_time=0.5, **named)


async def test_a_result_is_read_with_or_without_its_log(results, name, raw):
    with pytest.raises(ResultIsMissingError, match=f"there is no result of task {name}") as info:
        await results.get_result(name)
    assert isinstance(info.value, ResultGetError)
    assert not await results.is_result_ready(name)

    await results.set_result(name, result(1))
    await results.set_result(name, result({"id": 7}, log="sold", labels={"n": 1}))

    assert await results.is_result_ready(name)
    found = await results.get_result(name, with_logs=True)
    assert (found.return_value, found.log, found.labels) == ({"id": 7}, "sold", {"n": 1})
    assert (await results.get_result(name)).log is None
    assert 50_000 < raw.pttl(f"rmq:shared:taskiq:value:result:{name}") <= 60_000
    assert raw.get(f"rmq:shared:taskiq:value:result:{name}").startswith(b'{"is_err"')


async def test_progress_is_read_and_expires(results, name, raw):
    assert await results.get_progress(name) is None

    await results.set_progress(name, TaskProgress(state=TaskState.STARTED, meta={"done": 1}))

    assert (await results.get_progress(name)).meta == {"done": 1}
    assert not await results.is_result_ready(name)
    assert 50_000 < raw.pttl(f"rmq:shared:taskiq:value:progress:{name}") <= 60_000


async def test_a_value_that_cannot_be_written_is_an_error_of_the_result(results, name):
    await results.set_result(name, result(object()))

    found = await results.get_result(name)
    assert found.is_err
    with pytest.raises(TypeError, match=r"the result of the task cannot be written: .*object"):
        found.raise_for_error()


async def test_no_result_is_unpickled_unless_the_program_asks_for_it(results, server, name):
    theirs = ResultBackend(server.url, serializer=PickleSerializer(), expires=None)
    await theirs.set_result(name, result(7))

    assert (await theirs.get_result(name)).return_value == 7
    with pytest.raises(UnicodeDecodeError):
        await results.get_result(name)
    await theirs.shutdown()


@pytest.mark.parametrize("expires", [0, -1, timedelta(0), float("nan")])
def test_an_expiry_must_be_some_time(expires):
    with pytest.raises(InvalidValue, match=r"expires: .*; give seconds, a timedelta, or None"):
        ResultBackend(expires=expires)
