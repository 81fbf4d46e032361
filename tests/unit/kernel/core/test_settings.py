from datetime import timedelta
from typing import Any

import pytest

import rmq
from rmq.kernel.core import settings


def test_settings_read_from_redis_equal_those_written() -> None:
    asked = settings.check(
        {
            "slots": 8, "lease": timedelta(minutes=2), "retry": rmq.Levels((1, 2)),
            "max_length": 100, "overflow": "block", "durability": rmq.Replicated(2, 0.5),
            "expires": 60, "dedup_window": None,
        }
    )  # fmt: skip
    made = settings.Settings(**asked)
    assert settings.from_redis("t", made.to_redis()) == made
    settings.check_matches("t", asked, made)
    with pytest.raises(rmq.SettingsMismatch, match="8 for slots in Redis and 9"):
        settings.check_matches("t", {"slots": 9}, made)


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        ({"slots": 3}, "there, change the number of slots (rmq topic resize t 3), or use another"),
        (
            {"slots": 3, "lease": 5},
            "there, change it (rmq topic set t --lease 5s), change the number of slots",
        ),
        ({"groups": "order"}, "there, or use another topic name"),
        (
            {"max_retries": 2, "retry": "immediate"},
            "there, change it (rmq topic set t --max-retries 2 --retry immediate), or use another",
        ),
        ({"lease": 5}, "there, change it (rmq topic set t --lease 5s), or use another topic name"),
    ],
)
def test_a_mismatch_advises_no_command_that_would_refuse(
    asked: dict[str, Any], advice: str
) -> None:
    one = settings.Settings()
    with pytest.raises(rmq.SettingsMismatch) as caught:
        settings.check_matches("t", settings.check(asked), one)
    assert advice in str(caught.value)
    with pytest.raises(rmq.SettingsMismatch, match=r"there, or use another topic name"):
        settings.check_matches("t", {"slots": 12}, settings.Settings(slots=8))


@pytest.mark.parametrize("text", ["", "-1", "two", "0", str(settings.FORMAT - 1), "99"])
def test_another_format_is_refused(text: str) -> None:
    kept = settings.Settings().to_redis()
    assert settings.from_redis("t", kept) == settings.Settings()

    with pytest.raises(rmq.FormatMismatch, match=f"format {text or 'none'}, and this RMQ reads"):
        settings.from_redis("t", kept | {"format": text})


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("memory", None),
        ("replicated:2:500ms", rmq.Replicated(2, 0.5)),
        ("fsync:0:1", rmq.Fsync(0, 1)),
        ("fsync", rmq.Fsync()),
        ("replicated", rmq.Replicated()),
    ],
)
def test_a_durability_is_read_from_its_text(text: str, level: settings.Durability) -> None:
    durability = settings.parse_durability(text)

    assert durability == level
    assert settings.parse_durability(settings.describe_durability(durability)) == durability
    stored = settings.Settings(durability=durability)
    assert settings.from_redis("t", stored.to_redis()) == stored


def test_a_mismatch_names_settings_as_a_person_writes_them() -> None:
    asked = settings.check({"lease": 60, "retry": "immediate", "dead_retention": 5})
    with pytest.raises(rmq.SettingsMismatch) as caught:
        settings.check_matches("t", asked, settings.Settings())
    assert "30s for lease in Redis and 1m in settings" in str(caught.value)
    assert "exponential:1s:10m:1 for retry in Redis and immediate in" in str(caught.value)
    assert "off for dead_retention in Redis and 5s in settings" in str(caught.value)
    assert "rmq topic set t" in str(caught.value)


@pytest.mark.parametrize("name", settings.FIXED)
def test_a_refused_change_of_a_fixed_setting_gives_the_reason(name: str) -> None:
    with pytest.raises(rmq.InvalidValue, match=f"^{name}: it cannot be changed here, because "):
        settings.check_changes({"lease": 5, name: 4})


@pytest.mark.parametrize("level", [rmq.Replicated, rmq.Fsync])
def test_a_send_waits_for_a_minute_at_most(level: type[rmq.Replicated | rmq.Fsync]) -> None:
    assert level(1, 60).timeout == 60

    with pytest.raises(rmq.InvalidValue, match="at most 60 seconds"):
        level(1, 60.001)
