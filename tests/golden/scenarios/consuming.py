"""Receiving and settling, by consumers and queries."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import rmq
from tests.golden.scenarios.registry import fill, scenario
from tests.golden.wire import Scene

RUN = "0123456789abcdef0123456789abcdef"


@scenario
def receive_one(scene: Scene) -> None:
    """Receive single messages until there are none, and settle each."""
    topic = fill(scene, 2)
    with topic.consumer() as consumer:
        while deliveries := consumer.receive():
            deliveries[0].ack()


@scenario
def receive_many(scene: Scene) -> None:
    """Receive up to 100 of one slot, and settle them in one call."""
    topic = fill(scene, 5)
    with topic.consumer(lease=60) as consumer:
        consumer.ack(consumer.receive(100))


@scenario
def receive_of_slots(scene: Scene) -> None:
    """Receive of three slots, less than there is, the rest, and nothing."""
    topic = fill(scene, 6, slots=3)
    with topic.consumer() as consumer:
        for _ in range(3):
            consumer.ack(consumer.receive(4))


@scenario
def receive_in_order(scene: Scene) -> None:
    topic = fill(scene, 4, slots=2)
    with topic.consumer(ordered=True) as consumer:
        for _ in range(2):
            deliveries = consumer.receive(10)
            consumer.ack(deliveries[:1])
            consumer.nack(deliveries[1:], error="not now")


@scenario
def receive_of_groups(scene: Scene) -> None:
    """Send three messages of a group and one without; receive, and settle what came."""
    topic = scene.opened(groups=rmq.Groups(share={"gold": 4}))
    topic.send_many([rmq.Outgoing(n, group="customer 7", share_key="gold") for n in range(3)])
    topic.send("none", type="a.b", group=None)
    with topic.consumer(ordered=True) as consumer:
        for _ in range(2):
            consumer.ack(consumer.receive(10))


@scenario
def receive_at_most_once(scene: Scene) -> None:
    topic = fill(scene, 3)
    with topic.consumer(mode="at_most_once") as consumer:
        consumer.receive(2)
        consumer.receive(2)


@scenario
def receive_what_is_handed_over(scene: Scene) -> None:
    """Wait in an empty topic, and take what a send hands over."""
    topic = scene.opened()
    sender = scene.connect().topic("orders")
    sender.open()
    scene.forget()
    with topic.consumer() as consumer, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.receive, 1, 20.0)
        scene.wait_for_credit()
        sender.send("handed over")
        waiting.result(20)[0].ack()


@scenario
def receive_nothing(scene: Scene) -> None:
    """Look at two slots once a second, and once for pending follow-ups."""
    topic = scene.opened(slots=2)
    with topic.consumer() as consumer, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.receive, 1, 3.0)
        scene.wait_for_sent("prepare", 2)
        scene.advance(1.1)
        scene.wait_for_credit()
        scene.wait_until(lambda: consumer._flows.state.subscription.last_number)
        scene.advance(1.1)
        scene.wait_for_sent("next_ready", 3)
        scene.advance(0.9)  # and no other look is due
        waiting.result(20)


@scenario
def nack(scene: Scene) -> None:
    """Give messages back as failed: by the policy, after a time, and with errors."""
    topic = fill(scene, 5, retry="immediate")
    with topic.consumer() as consumer:
        one, *others = consumer.receive(5)
        one.nack()
        others[0].nack(delay=0, error="refused")
        others[1].nack(delay=30, error=ValueError("no such customer"))
        consumer.nack(others[2:], error="both")
        consumer.receive(1)[0].nack()


@scenario
def nack_until_dead(scene: Scene) -> None:
    topic = fill(scene, 1, retry="immediate", max_retries=1)
    with topic.consumer() as consumer:
        for _ in range(2):
            consumer.receive()[0].nack(error="again")


@scenario
def reject(scene: Scene) -> None:
    topic = fill(scene, 3)
    with topic.consumer() as consumer:
        one, *others = consumer.receive(3)
        one.reject("no such customer")
        consumer.reject(others, ValueError("unreadable"))


@scenario
def release(scene: Scene) -> None:
    """Hand messages back unworked: a plain one, one that was due, and for a time."""
    topic = fill(scene, 2)
    topic.send("due", delay=1)
    scene.advance(2)
    with topic.consumer() as consumer:
        one, *others = consumer.receive(3)
        one.release()
        consumer.release(others, delay=10)


@scenario
def extend(scene: Scene) -> None:
    topic = fill(scene, 3)
    with topic.consumer() as consumer:
        deliveries = consumer.receive(3)
        scene.advance(10)
        deliveries[0].extend()
        consumer.extend(deliveries, 120)
        consumer.ack(deliveries)


@scenario
def ack_receipts(scene: Scene) -> None:
    """Settle by receipts, as another process does; the second time they are lost."""
    topic = fill(scene, 3, slots=2)
    with topic.consumer() as consumer:
        receipts = [str(delivery.receipt) for delivery in consumer.receive(3)]
        with topic.consumer() as other:
            other.ack_receipts(receipts)
            other.ack_receipts(receipts)


@scenario
def ack_after_the_lease(scene: Scene) -> None:
    """Leases expire, and are rolled back by a take and by hand."""
    topic = fill(scene, 2, retry="immediate")
    with topic.consumer(lease=5) as consumer:
        deliveries = consumer.receive(2)
        scene.advance(6)
        again = consumer.receive(2)
        consumer.ack(deliveries)
        scene.advance(6)
        scene.admin.rollback("orders")
        consumer.ack(again)


@scenario
def settle_by_blocks(scene: Scene) -> None:
    """End `with` blocks in each of the ways."""
    topic = fill(scene, 5, retry="immediate")
    errors = [None, ValueError("bad"), rmq.Snooze(30), rmq.Retry(5), rmq.Reject("never")]
    with topic.consumer() as consumer:
        for delivery, error in zip(consumer.receive(5), errors, strict=True):
            with contextlib.suppress(ValueError), delivery:
                if error is not None:
                    raise error


@scenario
def query(scene: Scene) -> None:
    """Take, read, renew, settle, reject and give back by a query, as Spark does."""
    topic = fill(scene, 6, slots=2)
    query = topic.query(RUN, "driver 1")
    query.slots()
    query.waiting()
    upto = query.take({}, 4)
    for slot, newest in upto.items():
        list(query.read(slot, 0, newest))
    query.begun("batch 0", "run 1")
    query.renew({}, upto)
    query.settle(upto, dict.fromkeys(upto, 2))
    more = query.take(upto)
    query.again(more)
    query.reject(more, "given up")
    with contextlib.suppress(rmq.QueryOwned):
        topic.query(RUN, "driver 2").take({})
    scene.admin.queries("orders")
    query.release()
    scene.admin.release_query("orders", RUN, force=True)
    query.close()
