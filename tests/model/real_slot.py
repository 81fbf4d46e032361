"""A real slot that does the steps of the model, and says what it has in the model's terms."""

from __future__ import annotations

from typing import Any

import redis

from rmq.features.dead_letters.scripts import drop_expired, redrive
from rmq.kernel.consumer import scripts
from rmq.kernel.consumer.scripts import Offer
from rmq.kernel.core import record
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.retry import Immediate
from rmq.kernel.topic.scripts import cancel, purge
from tests.lua.box import Box, Lease
from tests.lua.crediting import Sleeper
from tests.lua.following import ack_then_command
from tests.model.protocol import (
    ENDED,
    EXPIRED,
    KEEPS_RESULTS,
    LATE,
    MESSAGES,
    OWN,
    OWNER,
    RETRIES,
    REVOKED,
    SECOND,
    WORKER,
    Call,
    Receipt,
    Server,
)
from tests.model.world import Bounds, State, Step

SHARED_S = 3_000_000_000
CANCEL_REPLIES = {
    "1": "done", "r": "done", "a": "already requested", "o": "old delivery", "d": "dead",
    "0": "gone",
}  # fmt: skip
LEASE_STEP_MS = 60_000  # each lease is longer than the one before, so that they end one by one
EXPIRES_MS, KEEP_S = 200_000, 97  # of a message from its send, and of its result from its end
TOGETHER_MS = 1000  # times that are less apart than this come together


class RealSlot:
    """A slot on a server, and the subscription of the sleeper."""

    def __init__(self, client: redis.Redis, name: str, clock: Any, bounds: Bounds) -> None:
        self.bounds = bounds
        self.box = Box(
            client, name, clock, max_retries=RETRIES, retry=Immediate(), on_expire="drop"
        )
        self.ids = self.box.ids(len(MESSAGES))
        self.sessions = [self.box.session() for _ in OWNER]
        self.lease_ms = 0
        self.offers = 0
        self.subscriptions = 0
        self.known: dict[int, Lease] = {}  # by delivery number
        self.shared: dict[int, int] = {0: 0}  # numbers of shared leases, by those of the model
        self.subscribe()

    def subscribe(self) -> None:
        self.subscriptions += 1
        self.sleeper = Sleeper(self.box, f"s{self.subscriptions}")

    # --- steps -------------------------------------------------------------------------------

    def do(self, step: Step) -> Any:
        """Do what the step says; return the reply of its script in the model's terms."""
        if step.runs:
            assert step.call is not None
            self.box.clock.advance(0.01)
            return self._run(step.call)
        if step.what == "the server notices the dead connection":
            self.sleeper.close()
        elif step.what == "the sleeper subscribes anew":
            self.sleeper.close()
            self.subscribe()
        return None

    def move_to(self, until_ms: int) -> None:
        """Move the clock behind this time."""
        self.box.clock.advance((until_ms - self.box.clock.now_ms + 1) / 1000)

    def ends(self) -> dict[str, int]:
        """The times that have not come: of leases, expiries and results, epoch ms, by their step.

        They are the first time, and those that come together with it.
        """
        found, now = self._times(), self.box.clock.now_ms
        found = {what: end for what, end in found.items() if end > now}
        first = min(found.values(), default=0)
        return {what: end for what, end in found.items() if end < first + TOGETHER_MS}

    def _times(self) -> dict[str, int]:
        found: dict[str, int] = {}
        raw: Any = self.box.redis
        for m, id in enumerate(self.ids[: self.bounds.keeps]):
            end = raw.zscore(self.box.keys.keeping, member_of(id))
            if end is not None:
                found[f"the keeping of message {m} ends"] = int(end)
        for m, id in enumerate(self.ids[: self.bounds.expire]):
            data = raw.hget(self.box.keys.records, member_of(id))
            if data and record.read(data).expires_ms:
                found[f"the expiry of message {m} passes"] = record.read(data).expires_ms
        for _, score in raw.zrange(self.box.keys.prepare, 0, -1, withscores=True):
            deadline = int(score // 1000)
            if deadline < SHARED_S:
                delivery = round(score % 1 * 2048)
                found[f"the lease of delivery {delivery} ends"] = deadline * 1000
        for _, end in raw.zrange(self.box.keys.leases, 0, -1, withscores=True):
            found["the shared lease ends"] = int(end)
        return found

    def _run(self, call: Call) -> Any:
        box = self.box
        try:
            if call.verb == "take":
                return self._take(call)
            if call.verb == "withdraw":
                self.offers += 1
                command = scripts.withdraw([box.keys], self.sleeper.channel, self.offers)
                return box.run(command)[1]
            if call.verb == "rollback":
                box.rollback()
                return None
            if call.verb == "lease_rollback":
                box.run(scripts.lease_rollback(box.keys, 10))
                return None
            if call.verb == "drop_expired":
                box.run(drop_expired(box.handle, box.keys, 0, 100))
                return None
            return self._numbered(call)
        except redis.ResponseError as error:
            if "LATE" in str(error):
                return LATE
            if "RESULTS" in str(error):
                return KEEPS_RESULTS
            raise

    def _numbered(self, call: Call) -> str:
        session, box = self.sessions[call.who], self.box
        session.count_to(call.number)
        if call.verb == "send":
            m, keeps = call.message, call.message < self.bounds.keeps
            expires = EXPIRES_MS if m < self.bounds.expire else None
            keep = KEEP_S if keeps else None
            box.run(box.send_command([self.ids[m]], session, keep=keep, expires=expires))
            return "stored"
        ids = [self.ids[call.message]]
        if call.verb in ("purge", "purge_dead"):
            queue = "store" if call.verb == "purge" else "dead"
            done = box.run(purge(box.handle, box.keys, session, queue, ids=ids))
            return "done" if done else "gone"
        if call.verb == "redrive":
            done = box.run(redrive(box.handle, box.keys, session, ids))
            return "done" if done == "1" else "gone"
        if call.verb == "cancel":
            receipt = self.known[call.delivery].receipt if call.delivery else None
            command = cancel(box.handle, box.keys, session, ids, running=True, receipt=receipt)
            return CANCEL_REPLIES[box.run(command)]
        lease = self.known[call.delivery]
        if call.verb == "ack_then":
            reply = box.run(ack_then_command(box, [lease], session=session))
            return "done" if reply.codes == "1" else "lost"
        build = getattr(self.box, f"{call.verb}_command")
        letter = self.box.run(build([lease], session))
        return "lost" if letter == "0" else "done"

    def _take(self, call: Call) -> tuple[tuple[int, int], ...]:
        box, session = self.box, self.sessions[call.who]
        session.count_to(call.number)
        self.lease_ms += LEASE_STEP_MS
        waits: Any = False
        self.offers += 1
        if call.channel >= 0:
            further = [self.sessions[SECOND]] if call.second else []
            second = self.sessions[SECOND]
            second.count_to(call.second or second.number)
            waits = Offer(self.offers, self.sleeper.channel, sessions=further)
            self.offers += len(further)
        is_worker = call.who == WORKER
        shared = self.shared[call.lease] if is_worker else None
        command = scripts.prepare(
            box.keys, session, 2 if is_worker else 1, self.lease_ms, waits, shared=shared
        )
        batch = box.run(command.as_repeat() if call.again else command)
        return tuple(
            (self.ids.index(id), batch.first_delivery + place)
            for place, id in enumerate(batch.ids)
            if id in self.ids
        )

    # --- looking -----------------------------------------------------------------------------

    def note(self, server: Server) -> None:
        """Remember the deliveries and the shared lease that the model has now, by its numbers."""
        for message in MESSAGES:
            receipt, id = server.prepare[message], self.ids[message]
            if receipt is not None and receipt.delivery not in self.known:
                score, state = self.box.score(id, "prepare"), self.box.state()
                assert score is not None
                record = state["records"][id]
                self.known[receipt.delivery] = Lease(
                    id, score, record, receipt.left, receipt.delivery
                )
        leases: Any = self.box.redis.zrange(self.box.keys.leases, 0, -1)
        if server.lease is not None and leases:
            self.shared[server.lease[0]] = int(leases[0])

    def seen(self, state: State) -> tuple[Any, ...]:
        """The queues as the model has them, in the form of `looks`."""
        server = state.server
        prepare = tuple(r and r._replace(lease=min(r.lease, 1)) for r in server.prepare)
        return (
            server.store, prepare, server.dead, server.counted, server.delivered,
            len(server.credit[1]) if server.credit else 0, server.lease is not None,
            server.counted_cancelled, server.requests, server.results,
            tuple(r != "" for r in server.results), server.gone.count(EXPIRED),
        )  # fmt: skip

    def looks(self) -> tuple[Any, ...]:
        """The slot's retries of what waits, receipts, dead letters, counters, results and more."""
        found, now_s = self.box.state(), self.box.clock.now_ms // 1000
        store, prepare = [], []
        for id in self.ids:
            score = found.get("store", {}).get(id)
            left = -1
            if score is not None:
                entry = found.get("failures", {}).get(id)
                left = int(score) - 1 if score < 17 else entry[0] - 1 if entry else RETRIES
            store.append(left)
            score = found.get("prepare", {}).get(id)
            receipt = None
            if score is not None:
                deadline = int(score // 1000)
                lease = 1 if deadline > SHARED_S else OWN
                if deadline <= now_s:
                    lease = REVOKED if deadline == 1 else ENDED
                receipt = Receipt(round(score % 1 * 2048), int(score % 1000), lease)
            prepare.append(receipt)
        slot = found["slot"]
        return (
            tuple(store), tuple(prepare), tuple(id in found.get("dead", {}) for id in self.ids),
            int(slot.get("settled", 0)), int(slot.get("delivered", 0)),
            hand_overs_left(slot.get("credits")), bool(found.get("leases")),
            int(slot.get("cancelled", 0)), tuple(requested(slot, id) for id in self.ids),
            tuple(chr(found.get("results", {}).get(id, b"\0")[0]).strip("\0") for id in self.ids),
            tuple(id in found.get("keeping", {}) for id in self.ids), int(slot.get("expired", 0)),
        )  # fmt: skip


def requested(slot: Any, id: bytes) -> int:
    """Return the number of the delivery whose cancellation was requested, or 0."""
    return round(float(slot.get("~" + member_of(id).hex(), 0)) % 1 * 2048)


def hand_overs_left(credits: Any) -> int:
    """Return for how many hand-overs the only credit of a slot is still good."""
    # channel, number, until, limit, lease; then two words for each call
    return (len(credits.split()) - 5) // 2 if credits else 0
