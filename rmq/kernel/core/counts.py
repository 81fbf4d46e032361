"""The counts of a topic: their names, and their descriptions for people."""

from __future__ import annotations

GAUGES = {
    "priority": "waiting by priority",
    "due": "waiting, timed and due",
    "retries": "waiting to be retried at once",
    "later": "not due yet",
    "in_flight": "in flight",
    "dead": "dead letters",
    "merge_windows": "open merge windows",
    "records": "message records",
    "remembered": "settled ids remembered",
    "late_ms": "oldest due message waits for",
    "held": "held back by a pause, limit or group",
    "groups_paused": "groups that are paused",
    "groups_held": "groups held by a dead letter",
    "paused_ms": "paused since",
    "sends_paused_ms": "sends paused since",
}
COUNTERS = {
    "accepted": "accepted",
    "merged": "merged into another",
    "delivered": "delivered",
    "settled": "settled",
    "returned": "failed and went back at once",
    "rolled_back": "leases expired",
    "dead_lettered": "became dead letters",
    "redriven": "redriven",
    "cancelled": "cancelled",
    "expired": "expired",
    "dropped": "dropped as overflow",
    "purged": "purged",
    "dead_dropped": "dead letters past retention",
}
