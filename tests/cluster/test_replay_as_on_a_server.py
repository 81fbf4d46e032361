"""Tests of replays and archives on a cluster: the slots of a topic are on several nodes."""

from tests.cluster.adopting import adopt

adopt(
    "test_replay",
    globals(),
    only={
        "test_each_acked_message_is_sent_again_once_as_a_new_message",
        "test_a_replay_to_another_topic_chooses_slots_by_the_groups",
        "test_messages_of_former_slots_go_to_the_current_slots",
        "test_messages_that_the_history_loses_are_reported_and_the_job_continues",
    },
)
adopt("test_archive", globals(), only={"test_slots_before_and_after_a_resize_are_archived"})
