"""Receive the tasks of a topic, renew their leases, and settle them.

The receiver of taskiq only acks tasks. So the inbox observes the asyncio task that runs a task of
taskiq. If the asyncio task ends without an ack, the task of taskiq has failed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from taskiq import TaskiqMessage
from taskiq.abc.broker import AsyncBroker
from taskiq.exceptions import TaskRejectedError

import rmq
from rmq.errors import LeaseLost, RMQError, StorageError, TopicVanished

log = logging.getLogger("rmq.taskiq")

RENEW_PARTS = 3  # a lease is renewed when a third of it has passed
RETRY_S = 1.0  # pause while Redis cannot be reached
QUICK_S = 0.1  # if the receiver uses up a batch in this time, the next batch is larger
STALE_S = 0.5  # time after which other workers get the messages that the receiver has not asked for
ACK_WAIT_S = 0.002  # longest wait of an ack for the acks of other running tasks
ACKS_MAX = 100  # acks in one command
FIELDS = {"task_id": "", "labels": {}, "args": [], "kwargs": {}}  # that a task's message may lack
UNKNOWN = "this worker has no task {!r}: import its module, or correct its name"


class RunningTask:
    """A task that taskiq has received and not settled yet.

    Attributes:
        delivery: Delivery of the task's message.
        data: Bytes for the formatter of the broker.
        task_id: Task id of taskiq.
        error: Exception of the task.
        is_acked: Whether taskiq has acked the task. Redis may not have confirmed the ack yet.
        is_settling: Whether a call to Redis is settling the task.
    """

    def __init__(
        self, inbox: Inbox, delivery: rmq.AsyncDelivery, data: bytes, task_id: str
    ) -> None:
        self._inbox = inbox
        self.delivery, self.data, self.task_id = delivery, data, task_id
        self.error: BaseException | None = None
        self.is_acked = self.is_settling = False

    async def ack(self) -> None:
        """Ack the message for taskiq. If Redis cannot be reached, the inbox repeats the ack later.

        Raises:
            LeaseLost: The lease was lost, so another worker may run the task.
        """
        self.is_acked = True
        await self._inbox.settle(self)

    def begin(self) -> None:
        """Record that the current asyncio task runs this task.

        Raises:
            LeaseLost: The lease was lost, so the task must not begin.
        """
        current = asyncio.current_task()
        assert current is not None
        current.add_done_callback(lambda ended: self._inbox.note_end(self, ended))
        if self.delivery.lost:
            raise LeaseLost(f"the lease of {self.delivery.id} ended before the task has begun")


class Inbox:
    """The tasks of one call of `Broker.listen`.

    Args:
        broker: Broker. It knows the tasks and their format.
        open_topic: Function that opens the topic.
        prefetch: Maximum number of messages that wait in the inbox for the receiver.
        keep_failed: Whether a task that raised an exception becomes a dead letter. A rejected task
            always becomes a dead letter.
    """

    def __init__(
        self,
        broker: AsyncBroker,
        open_topic: Callable[[], Awaitable[rmq.AsyncTopic]],
        prefetch: int,
        keep_failed: bool,
    ) -> None:
        self._broker, self._open_topic = broker, open_topic
        self._prefetch, self._keep_failed = prefetch, keep_failed
        self._buffer: deque[rmq.AsyncDelivery] = deque()
        self._running: set[RunningTask] = set()
        self._consumer: rmq.AsyncConsumer | None = None
        self._renew_s = 0.0
        self._batch, self._filled_at = 1, 0.0
        self._acks: dict[rmq.AsyncDelivery, asyncio.Future[bool]] = {}
        self._renewal: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        # A renewal changes the receipts, so no delivery is settled while its lease is renewed.
        self._is_renewed = asyncio.Event()
        self._is_renewed.set()

    # --- receive --------------------------------------------------------------------------------

    async def next(self) -> RunningTask:
        """Wait for the next task that this worker can run."""
        while True:
            while not self._buffer:
                await self._fill()
            delivery = self._buffer.popleft()
            if delivery.lost:
                continue
            try:
                data, message = self._read(delivery)
            except Exception as error:  # whatever the formatter raises
                log.warning("%s is no task of taskiq: %s", delivery.id, error)
                await self._end(delivery.reject(error))
                continue
            if self._broker.find_task(message.task_name) is None:
                log.warning(UNKNOWN.format(message.task_name))
                await self._end(delivery.nack(error=UNKNOWN.format(message.task_name)))
                continue
            task = RunningTask(self, delivery, data, message.task_id)
            self._running.add(task)
            return task

    def _read(self, delivery: rmq.AsyncDelivery) -> tuple[bytes, TaskiqMessage]:
        """Return the bytes for the receiver, and the taskiq message in these bytes."""
        data = self._data_of(delivery)
        message = self._broker.formatter.loads(data)
        message.parse_labels()
        return data, message

    def _data_of(self, delivery: rmq.AsyncDelivery) -> bytes:
        body = delivery.body
        if isinstance(body, bytes):
            return body
        if isinstance(body, dict) and "task_name" in body and not FIELDS.keys() <= body.keys():
            # From a schedule or a program without taskiq.
            given = {**FIELDS, "task_id": str(delivery.id), **body}
            return self._broker.formatter.dumps(TaskiqMessage(**given)).message
        return json.dumps(body).encode()

    async def _fill(self) -> None:
        """Receive messages.

        If the receiver has quickly used the last batch, receive twice as many messages.
        """
        clock = asyncio.get_running_loop().time
        is_quick = clock() - self._filled_at < QUICK_S
        self._batch = min(2 * self._batch, self._prefetch) if is_quick else -(-self._batch // 2)
        try:
            if self._consumer is None:
                await self._open()
            assert self._consumer is not None
            self._buffer.extend(await self._consumer.receive(self._batch, wait=None))
        except StorageError as error:
            log.warning("cannot receive tasks, and try again: %s", error)
            await asyncio.sleep(RETRY_S)
        except TopicVanished:
            self._consumer = None  # deleted, or Redis was flushed
        self._filled_at = clock()
        asyncio.get_running_loop().call_later(STALE_S, self._check_buffer, self._filled_at)

    async def _open(self) -> None:
        topic = await self._open_topic()
        self._consumer = topic.consumer()
        if not self._renew_s:
            self._renew_s = topic.settings.lease_ms / 1000 / RENEW_PARTS
            self._renewal = asyncio.create_task(self._renew())

    def _check_buffer(self, filled_at: float) -> None:
        """If the receiver is busy, release messages, because another worker may be free."""
        if self._buffer and self._filled_at == filled_at:
            self._start(self.give_back())

    async def give_back(self) -> None:
        """Release the messages for which the receiver has not asked yet."""
        await self._is_renewed.wait()
        deliveries = [each for each in self._buffer if not each.is_settled]
        self._buffer.clear()
        if deliveries and self._consumer is not None:
            await self._end(self._consumer.release(deliveries))

    # --- run ------------------------------------------------------------------------------------

    async def settle(self, task: RunningTask) -> None:
        """Settle a task that taskiq has acked."""
        task.is_settling = True
        try:
            await self._is_renewed.wait()
            is_kept = self._keep_failed or isinstance(task.error, TaskRejectedError)
            if task.error is not None and is_kept:
                await task.delivery.reject(task.error)
            elif await self._ack(task.delivery):
                raise LeaseLost(f"ack: the lease of {task.delivery.id} ended, so it may run again")
        except StorageError as error:
            log.warning("the ack of %s is repeated later: %s", task.delivery.id, error)
            return
        except RMQError:
            self._running.discard(task)
            raise
        finally:
            task.is_settling = False
        self._running.discard(task)

    def _ack(self, delivery: rmq.AsyncDelivery) -> asyncio.Future[bool]:
        """Ack a delivery together with other deliveries. Return whether it has lost its lease."""
        loop = asyncio.get_running_loop()
        self._acks[delivery] = is_lost = loop.create_future()
        if len(self._acks) >= min(len(self._running), ACKS_MAX):
            self._send_acks()  # no other task is running, so none will be acked soon
        elif len(self._acks) == 1:
            loop.call_later(ACK_WAIT_S, self._send_acks)
        return is_lost

    def _send_acks(self) -> None:
        if self._acks:
            acks, self._acks = self._acks, {}
            self._start(self._ack_all(acks))

    async def _ack_all(self, acks: dict[rmq.AsyncDelivery, asyncio.Future[bool]]) -> None:
        unsettled = [each for each in acks if not each.is_settled]
        lost, error = set(acks), None
        try:
            if self._consumer is not None:  # None after the topic was deleted
                lost = acks.keys() - set(unsettled) | set(await self._consumer.ack(unsettled))
        except RMQError as failure:
            error = failure
        for delivery, is_lost in acks.items():
            if is_lost.done():
                continue  # the asyncio task of its caller was cancelled
            if error is not None:
                is_lost.set_exception(error)
            else:
                is_lost.set_result(delivery in lost)

    def note_end(self, task: RunningTask, ended: asyncio.Task[Any]) -> None:
        """Record that a task has ended. It may have ended without an ack."""
        error = None if ended.cancelled() else ended.exception()
        if error is not None:
            trace = None if isinstance(error, RMQError) else error
            log.error("task %s: %s", task.task_id, error, exc_info=trace)
        if task.is_acked or ended.cancelled():
            return
        # An ack is possible until the lease expires, for tasks that are acked by hand.
        self._running.discard(task)
        failure = task.error or error
        if failure is not None and not task.delivery.is_settled:
            self._start(self._nack(task.delivery, failure))

    async def _nack(self, delivery: rmq.AsyncDelivery, failure: BaseException) -> None:
        await self._is_renewed.wait()
        await self._end(delivery.nack(error=failure))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._renew_s)
            for task in [t for t in self._running if t.is_acked and not t.is_settling]:
                await self._end(self.settle(task))
            running = [task.delivery for task in self._running if not task.is_settling]
            deliveries = [each for each in (*self._buffer, *running) if not each.is_settled]
            if deliveries and self._consumer is not None:
                self._is_renewed.clear()
                try:
                    found = await self._end(self._consumer.extend(deliveries))
                finally:
                    self._is_renewed.set()
                for lost in found or ():
                    log.warning("the lease of %s has ended, so it may run again", lost.id)

    async def _end(self, call: Awaitable[Any]) -> Any:
        """Await a call, and log its error.

        After an error, the lease expires, and RMQ delivers the message again.
        """
        try:
            return await call
        except RMQError as error:
            log.warning("%s", error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        made = asyncio.get_running_loop().create_task(work)
        self._background.add(made)
        made.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Release all tasks that are not settled."""
        if self._renewal is not None:
            self._renewal.cancel()
        self._send_acks()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._consumer is not None:
            await self._end(self._consumer.close())
