"""A shop whose tasks run on RMQ. README.md says how to start it."""

from __future__ import annotations

import asyncio
import time

from taskiq import Context, SmartRetryMiddleware, TaskiqDepends
from taskiq.depends.progress_tracker import ProgressTracker

from rmq.taskiq import Broker, ResultBackend

# Both read the address of Redis from RMQ_URL; the default is redis://localhost:6379/0.
broker = Broker(queue_name="shop", keep_failed=True).with_result_backend(ResultBackend())
broker.add_middlewares(SmartRetryMiddleware(default_retry_count=3, default_delay=0.5))


@broker.task(priority=900)
async def charge(order: int, cents: int, context: Context = TaskiqDepends()) -> int:
    """Charge an order, and remind the customer later."""
    if order == 13:
        context.reject()
    await remind.kicker().with_labels(delay=2).kiq(order, time.time() + 2)
    return cents


@broker.task
def remind(order: int, due: float) -> None:
    """Remind the customer of an order."""
    print(f"reminder for order {order}, {1000 * (time.time() - due):.0f} ms late", flush=True)


@broker.task(retry_on_error=True)
async def report(orders: int, tracker: ProgressTracker[int] = TaskiqDepends()) -> str:
    """Write a report. Its printer is out of paper."""
    await tracker.set_progress("printing", orders)
    raise OSError("out of paper")


async def main() -> None:
    """Send 20 orders and a report, and wait for the results."""
    await broker.startup()
    charges = [await charge.kiq(number, cents=100 * number) for number in range(20)]
    printed = await report.kiq(20)
    results = [await each.wait_result(timeout=60) for each in charges]
    print(f"charged {sum(each.return_value or 0 for each in results)} cents")
    print(f"the report: {(await printed.wait_result(timeout=60)).error}")
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
