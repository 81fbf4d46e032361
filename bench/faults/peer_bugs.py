"""Bugs of other queues on Redis or a database, and for each the test that RMQ passes.

The docstring of each test has the same words.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PeerBug:
    """A bug that other queues had.

    Attributes:
        what: Description of the bug.
        test: File and function, as pytest names them.
    """

    what: str
    test: str


PEER_BUGS = (
    PeerBug(
        "a crash in the midst of a job loses it",
        "tests/faults/test_kill.py::test_messages_of_a_killed_consumer_come_back_after_their_lease",
    ),
    PeerBug(
        "jobs of a dead worker come back only when some process starts",
        "tests/faults/test_worker_kill.py::test_messages_of_a_killed_worker_come_back_after_their_lease",
    ),
    PeerBug(
        "a job is rescued while its worker still runs it",
        "tests/lua/test_rollback_expired_leases.py::test_lease_is_never_taken_back_early",
    ),
    PeerBug(
        "a few jobs are restored in a sweep, and a large backlog is stuck",
        "tests/lua/test_rollback_expired_leases.py::test_twenty_thousand_lapsed_leases_drain",
    ),
    PeerBug(
        "jobs are lost or doubled at shutdown",
        "tests/faults/test_worker_stop.py::test_sigterm_finishes_what_runs_and_hands_back_the_rest_unburnt",
    ),
    PeerBug(
        "a worker stops consuming after an outage, and its health check is green",
        "tests/faults/test_worker_redis.py::test_a_worker_waits_for_a_redis_that_is_away_longer_than_its_watchdog",
    ),
    PeerBug(
        "too many results to unpack: the queue stops once its backlog is large",
        "tests/lua/test_prepare_order.py::test_twenty_thousand_due_messages_drain",
    ),
    PeerBug(
        "a worker that has lost its lock still writes",
        "tests/faults/test_leases.py::test_every_verb_of_a_lost_lease_says_so",
    ),
    PeerBug(
        "Redis evicts keys of a queue, and nobody is told",
        "tests/lua/test_refusals.py::test_message_without_a_record_is_taken_in_any_family_and_stops_nothing",
    ),
    PeerBug(
        "a job is removed and added by two commands, and lost between them",
        "tests/faults/test_torn_aof.py::test_a_move_in_two_commands_is_seen_half_moved",
    ),
    PeerBug(
        "two processes have the same name, and the jobs of a dead one are not rescued",
        "tests/unit/kernel/core/test_ids.py::test_a_forked_child_makes_ids_of_its_own",
    ),
    PeerBug(
        "a lease is shorter than its job, and the job runs again and again",
        "tests/integration/test_worker_leases.py::test_a_handler_that_runs_for_longer_than_its_lease_has_one_delivery",
    ),
    PeerBug(
        "a job that is discarded calls no hook",
        "tests/integration/test_worker_hooks.py::test_a_rejection_is_reported_with_what_was_raised_and_a_snooze_is_no_error",
    ),
    PeerBug(
        "a job that is due later than its lock lasts runs many times",
        "tests/faults/test_peer_bugs.py::test_a_delay_longer_than_the_lease_is_one_delivery",
    ),
    PeerBug(
        "the sweep runs at a pace of its own, whatever the setting",
        "tests/faults/test_peer_bugs.py::test_ended_leases_are_noticed_as_soon_as_the_lease_says",
    ),
)
