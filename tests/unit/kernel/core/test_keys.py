from rmq.kernel.core import keys


def test_every_key_of_a_slot_has_its_tag_and_its_type() -> None:
    slot = keys.SlotKeys("rmq", "orders", 3)
    for name in keys.SlotKeys.__slots__:
        if name not in ("created", "index", "middle", "topic") and not name.endswith("_stem"):
            key = getattr(slot, name)
            assert key == f"rmq:{{orders_3}}:{name}".encode()
            assert keys.type_of(key) == keys.TYPES[name]
    assert slot.claim_stem == b"rmq:{orders_3}:claim:"
    assert keys.type_of(slot.claim_stem + b"mail:{a}:b}:\xff") == "string"
    assert slot.stage_stem == b"rmq:{orders_3}:stage:"
    assert keys.type_of(slot.stage_stem + b"a:7:b") == "list"
    assert keys.sink_key("rmq", "orders", "a") == b"rmq:{orders}:sink:a"
    assert keys.type_of(keys.sink_key("rmq", "orders", "a")) == "hash"
    assert keys.type_of(keys.topic_key("rmq", "orders")) == "hash"
    assert keys.type_of(keys.topics_key("rmq")) == "set"
    assert keys.type_of(keys.scheduled_key("rmq")) == "set"
    assert keys.type_of(keys.workers_key("rmq")) == "zset"
    assert keys.type_of(keys.worker_key("rmq", "0a1b2c3d")) == "string"
    assert keys.type_of(b"somebody:else") is None


def test_a_topic_that_ends_like_a_slot_shares_no_key() -> None:
    assert keys.SlotKeys("rmq", "a_1", 2).store != keys.SlotKeys("rmq", "a", 12).store
    assert keys.topic_key("rmq", "a_1") != keys.SlotKeys("rmq", "a", 1).slot
