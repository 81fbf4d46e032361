"""Provide `as_completed`, which yields the handles of messages in the order in which they end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

from rmq.errors import InvalidType
from rmq.kernel.core.validation import Duration
from rmq.kernel.results.handle import AsyncCompletion, AsyncResultHandle
from rmq.kernel.results.handle_blocking import Completion, ResultHandle


@overload
def as_completed(
    handles: Iterable[ResultHandle], timeout: Duration | None = None
) -> Completion: ...
@overload
def as_completed(
    handles: Iterable[AsyncResultHandle], timeout: Duration | None = None
) -> AsyncCompletion: ...
def as_completed(handles: Iterable[Any], timeout: Duration | None = None) -> Any:
    """Yield each handle when its message has ended.

    Use `for` with handles of a blocking client, and `async for` with handles of an async client.
    Call `handle.wait()` for the result. The call then returns immediately, or raises ResultNotFound
    if the message has no result.

    Args:
        handles: Handles of one client, as `topic.result` returns them.
        timeout: Longest wait for all messages together, seconds or timedelta. None waits without
            limit.

    Raises:
        NotFinished: At least one message has not ended in time.
    """
    given = list(handles)
    for kind, completion in ((ResultHandle, Completion), (AsyncResultHandle, AsyncCompletion)):
        if all(isinstance(handle, kind) for handle in given):
            return completion(given, timeout)
    raise InvalidType("handles: give handles of topic.result, all of one client")
