"""RMQ without one of its rules: the search must find what each rule is for."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.world import Bounds


class Mutant(NamedTuple):
    """A rule that is left out, how far to search, and the promise that must be seen to break."""

    rule: str
    breaks: str
    bounds: Bounds


ONE, TWO = Bounds(messages=1), Bounds()
TWICE = Bounds(hand_overs=2, releases=0, kinds=frozenset({"reply", "death"}))
PLAIN_RUN = Bounds(faults=0)
DEATH = Bounds(messages=1, releases=0, sleeps=0, kinds=frozenset({"death"}))
FOUND_AGAIN = "a delivery whose reply was lost is found again by its consumer"
ONE_QUEUE = "a message is in exactly one queue, or settled"
CANCELS = Bounds(faults=0, cancels=2)
NOT_GIVEN_BACK = "a delivery whose cancellation was requested is not given back"
KEPT = Bounds(faults=0, sleeps=0, keeps=1)  # the first of two messages keeps its result
KEPT_ONE = Bounds(messages=1, faults=0, sleeps=0, keeps=1, expire=1, removals=2, cancels=1)
HAS_RESULT = "a message that asked for its result has it from its end to the end of keeping"
LIVES = "a message that waits or is in flight has no result"
RETRY = "only a failed delivery costs a retry, and it costs one"

MUTANTS = {
    "an ack, nack or release does not compare the receipt": Mutant(
        "fence", "an old receipt changes nothing", PLAIN_RUN
    ),
    "a repeated send is stored again": Mutant("replay_send", ONE_QUEUE, ONE),
    "a repeated take takes anew": Mutant("replay_take", FOUND_AGAIN, ONE),
    "a repeated ack is carried out again": Mutant(
        "replay_ack", "a repeated ack is answered as the first one", ONE
    ),
    "a late copy is carried out": Mutant("refuse_late", ONE_QUEUE, TWO),
    "a repeated take that found nothing is not remembered": Mutant("keep_empty", FOUND_AGAIN, ONE),
    "what was published to nobody is moved": Mutant(
        "count_publish", "nothing is handed over to a consumer whose connection has ended", ONE
    ),
    "it is published although only a replica's listener hears": Mutant(
        "ask_numsub", "what a consumer has under a valid lease is in the PrepareQueue", ONE
    ),
    "what is handed over is not kept as the answer to a take": Mutant(
        "answer_is_kept", FOUND_AGAIN, ONE
    ),
    "a repeated take leaves the credit that it had offered": Mutant(
        "repeat_withdraws", FOUND_AGAIN, TWO
    ),
    "a credit is not withdrawn before its owner goes on": Mutant("withdraw", FOUND_AGAIN, ONE),
    "a hand-over is not taken from those that its credit is good for": Mutant(
        "spend_call", FOUND_AGAIN, TWICE
    ),
    "the hand-overs of a credit are answers to one call": Mutant("own_calls", FOUND_AGAIN, TWICE),
    "of a credit that may have stood only the first call is repeated": Mutant(
        "recover_all", FOUND_AGAIN, TWICE
    ),
    "what is handed over stays in the StoreQueue": Mutant("move_once", ONE_QUEUE, PLAIN_RUN),
    "an ack that finds nothing is counted": Mutant(
        "count_once", "each settled message is counted once", PLAIN_RUN
    ),
    "a lease that ended costs no retry": Mutant("rollback_costs", RETRY, PLAIN_RUN),
    "a release costs a retry": Mutant("release_is_free", RETRY, PLAIN_RUN),
    "a shared lease that ended is not rolled back": Mutant(
        "shared_rollback", "no message may be stuck: nothing settles it from here", DEATH
    ),
    "a repeated cancel is carried out again": Mutant(
        "replay_cancel",
        "a repeated cancel is answered as the first one",
        Bounds(messages=1, sleeps=0, cancels=1),
    ),
    "a cancel does not compare the receipt": Mutant(
        "cancel_names_delivery", "a cancel of an old delivery changes nothing", CANCELS
    ),
    "a request survives the delivery that it was for": Mutant(
        "request_for_one", "a request to cancel is for the current delivery", CANCELS
    ),
    "an ack loses against a request": Mutant(
        "ack_wins", "an ack wins over a request to cancel", CANCELS
    ),
    "a nack retries in spite of a request": Mutant("nack_cancels", NOT_GIVEN_BACK, CANCELS),
    "a release returns the message in spite of a request": Mutant(
        "release_cancels", NOT_GIVEN_BACK, CANCELS
    ),
    "a rollback returns the message in spite of a request": Mutant(
        "rollback_cancels", NOT_GIVEN_BACK, CANCELS
    ),
    "a cancel ends what is in flight": Mutant(
        "cancel_waits", "a message in flight ends as cancelled only after a request", CANCELS
    ),
    "a result is written before the receipt is checked": Mutant(
        "result_needs_receipt", LIVES, KEPT_ONE
    ),
    "a late ack writes the result again": Mutant(
        "result_once", "a result is written once", KEPT_ONE
    ),
    "a message that expires gets no result": Mutant("result_of_expired", HAS_RESULT, KEPT_ONE),
    "a message that dies by the end of a lease gets no result": Mutant(
        "result_of_rolled_back", HAS_RESULT, KEPT_ONE
    ),
    "a message that is cancelled gets no result": Mutant(
        "result_of_cancelled", HAS_RESULT, KEPT_ONE
    ),
    "a message that is purged gets no result": Mutant("result_of_purged", HAS_RESULT, KEPT_ONE),
    "a dead letter that is deleted becomes purged": Mutant(
        "result_of_dead_stays", "a result says how the message has ended", KEPT_ONE
    ),
    "a failure that is retried writes a result": Mutant("result_at_end", LIVES, KEPT_ONE),
    "a message gets a result for which nobody asked": Mutant(
        "result_by_mark", "a message that did not ask for its result has none", KEPT
    ),
    "a redrive leaves the result": Mutant("redrive_drops_result", LIVES, KEPT_ONE),
    "a send does not note that the slot keeps results": Mutant(
        "send_notes_mark", HAS_RESULT, KEPT_ONE
    ),
    "a plain ack settles a message that keeps its result": Mutant(
        "ack_is_refused", HAS_RESULT, KEPT_ONE
    ),
    "a result is removed before the end of its keeping": Mutant(
        "result_until_end", HAS_RESULT, Bounds(faults=0, sleeps=0, keeps=2)
    ),
    "a durable send does not wait for the replica": Mutant(
        "wait_for_replica", "a confirmed message is not lost", ONE
    ),
}
