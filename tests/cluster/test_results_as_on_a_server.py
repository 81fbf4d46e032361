"""Tests of `tests/integration/test_results.py` on a cluster: signals reach callers at any node."""

from tests.cluster.adopting import adopt

adopt(
    "test_results",
    globals(),
    only={
        "test_a_worker_keeps_what_handlers_return",
        "test_a_waiting_thread_gets_the_result_at_once",
        "test_as_completed_yields_handles_as_their_messages_end",
        "test_each_end_of_a_message_has_its_outcome",
        "test_progress_is_read_by_the_sender",
    },
)
