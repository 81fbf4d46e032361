"""`/api/v1`: groups of a topic, listed, stopped, let go on and purged."""

from __future__ import annotations

import rmq
from tests.server.conftest import Ask


def test_groups_are_listed_and_steered(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("orders", groups=rmq.Groups())
    ids = [str(topic.send(n, group="a/b").id) for n in range(3)]
    topic.send("alone")

    listed = api("/topics/orders/groups?sort=held").body
    assert [group["group"] for group in listed["groups"]] == ["a/b", ""]
    assert (listed["looked_at"], listed["complete"]) == (2, True)
    assert listed["groups"][0]["message"] == ids[0]
    assert [g["group"] for g in api("/topics/orders/groups?limit=1&skip=1").body["groups"]] == [""]
    one = api(f"/topics/orders/group?group=a/b&id={ids[2]}").body
    assert (one["held"], one["ahead"]) == (2, 1)

    for verb, done in (("pause", True), ("pause", False), ("resume", True), ("release", False)):
        answer = api(f"/topics/orders/groups/{verb}", "POST", {"group": "a/b"})
        assert answer.body == {"done": done}

    purge = {"group": "a/b", "confirm": "orders"}
    assert api("/topics/orders/groups/purge", "POST", purge | {"dry_run": True}).body == {
        "count": 3
    }
    assert api("/topics/orders/groups/purge", "POST", purge).body == {"count": 3}
    assert api("/topics/orders/group?group=a/b").status == 404
    acts = [line.what for line in client.admin.audit_trail()]
    assert acts == ["purge_group"] * 2 + ["release_group", "resume_group"] + ["pause_group"] * 2


def test_wrong_requests_say_what_is_wrong(api: Ask, client: rmq.Client) -> None:
    client.topic("orders", groups=rmq.Groups()).open()
    client.topic("plain").open()

    assert api("/topics/plain/groups").status == 400
    assert api("/topics/orders/groups?sort=size").body["field"] == "sort"
    assert api("/topics/orders/groups/pause", "POST", {"group": "\n"}).body["field"] == "group"
    refused = api("/topics/orders/groups/purge", "POST", {"group": "g", "confirm": "x"})
    assert refused.body["field"] == "confirm"
    assert api("/topics/none/groups").status == 404
