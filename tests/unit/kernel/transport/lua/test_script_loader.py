"""The composed texts of scripts are kept between processes, and follow each edit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq.kernel.transport.lua import script_loader

ROOT = Path(__file__).parents[5]
CACHES = (script_loader.directory, script_loader.load, script_loader._body, script_loader._paths)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout of our own, from which the loader reads."""
    shutil.copytree(ROOT / "lua", tmp_path / "lua")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for each in CACHES:
        each.cache_clear()
    monkeypatch.setattr(script_loader, "directory", lambda: tmp_path / "lua")
    yield tmp_path
    monkeypatch.undo()
    for each in CACHES:
        each.cache_clear()


def in_next_process(name: str) -> script_loader.Script:
    script_loader.load.cache_clear()
    script_loader._body.cache_clear()
    return script_loader.load(name)


def test_the_next_process_composes_nothing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = script_loader.load("send")
    monkeypatch.setattr(script_loader, "final_text", lambda name: pytest.fail("composed again"))

    again = in_next_process("send")

    assert (again.text, again.sha) == (first.text, first.sha)


@pytest.mark.parametrize("edited", ["send", "lib/clock"])
def test_an_edit_of_a_source_is_seen_at_once(checkout: Path, edited: str) -> None:
    before = script_loader.load("send")
    path = checkout / "lua" / f"{edited}.lua"
    path.write_text(path.read_text() + "local function added() return 1 end\n")

    edited_hash = script_loader._hash_of(script_loader._sources("send"))

    kept = (checkout / ".rmq/scripts/send.lua").read_text().partition("\n")[0]
    assert kept != edited_hash
    in_next_process("send")
    assert (checkout / ".rmq/scripts/send.lua").read_text().startswith(edited_hash)
    assert before.name == "send"


def edit(checkout: Path, part: str, before: str, after: str) -> None:
    path = checkout / "lua" / f"{script_loader.path_of(part)}.lua"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    script_loader._body.cache_clear()


def test_a_script_is_found_by_its_name_in_any_folder(checkout: Path) -> None:
    assert script_loader.path_of("ack") == "ack"
    assert script_loader.path_of("query_take") == "queries/query_take"
    assert script_loader.source("query_take").startswith("--[[\nquery_take: ")
    assert not {"check", "wake"} & set(script_loader.names())


def test_two_scripts_of_one_name_are_refused(checkout: Path) -> None:
    shutil.copy(checkout / "lua/ack.lua", checkout / "lua/groups/ack.lua")

    with pytest.raises(ValueError, match="two scripts of one name"):
        script_loader.names()


def test_keys_have_their_declared_names_in_a_script_and_in_its_libraries(checkout: Path) -> None:
    text = script_loader.full_text("group_pause")

    assert text.startswith("-- rmq group_pause\nlocal slot, store = unpack(KEYS)\n")
    assert "redis.call('ZADD', store, 'XX'" in text
    assert text.count("KEYS") == 1


def test_a_key_that_no_line_of_the_text_uses_has_no_local(checkout: Path) -> None:
    edit(checkout, "group_pause", "--- @keys slot store\n", "--- @keys slot store dead\n")

    assert "dead = " not in script_loader.full_text("group_pause").partition("\n")[2].split("\n")[0]


def test_keys_of_many_slots_are_in_a_list(checkout: Path) -> None:
    binding = script_loader.full_text("withdraw").split("\n")[1]

    assert binding == "local slot, all_keys = KEYS[1], KEYS"


def test_a_script_without_a_key_that_a_library_reads_is_refused(checkout: Path) -> None:
    edit(checkout, "group_pause", "--- @keys slot store\n", "--- @keys slot\n")

    with pytest.raises(ValueError, match=r"group_pause includes lib/.*, which needs the key store"):
        script_loader.full_text("group_pause")


def test_a_script_needs_no_key_of_functions_that_it_does_not_call(checkout: Path) -> None:
    keys, _ = script_loader.keys_of("withdraw")

    assert "lib/wake/credits" in script_loader._sources("withdraw")
    assert "store" in script_loader._keys_read_by("lib/wake/credits")
    assert "store" not in keys
    assert script_loader.full_text("withdraw")


def test_a_library_that_would_be_twice_in_a_script_is_refused(checkout: Path) -> None:
    path = checkout / "lua/extend.lua"
    lines = path.read_text().splitlines()
    block = ["if ARGV[1] then", '  --- @include "lib/scores/score"', "  ordered_score(1, 1)", "end"]
    path.write_text("\n".join([*lines, *block, *block, ""]))

    with pytest.raises(ValueError, match="twice") as refused:
        script_loader.full_text("extend")

    assert str(refused.value) == (
        f"extend has lib/scores/score twice (ordered_score): lua/extend.lua:{len(lines) + 2} and "
        f"lua/extend.lua:{len(lines) + 6}; put one include into their nearest common block"
    )


def test_a_library_in_an_inline_function_that_is_called_twice_is_refused(checkout: Path) -> None:
    path = checkout / "lua/extend.lua"
    text = path.read_text()
    inline = [
        "--- @inline", "local function score_all()", '  --- @include "lib/scores/score"',
        "  ordered_score(1, 1)", "end", "score_all()", "score_all()", "",
    ]  # fmt: skip
    path.write_text(text + "\n".join(inline))

    place = rf"lua/extend\.lua:{text.count(chr(10)) + 3} and again, in an inline function"
    with pytest.raises(ValueError, match=place):
        script_loader.full_text("extend")


def test_a_short_form_may_have_a_function_of_the_long_form(checkout: Path) -> None:
    include = '  --- @include "lib/send/run_members"\n'
    call = f"if known then\n{include}  run_members('', 1)\nend\n"
    edit(checkout, "alone/ack", "repeat\n", f"{call}repeat\n")
    edit(checkout, "ack", "local earlier_answer = ", f"{call}local earlier_answer = ")

    assert script_loader.full_text("ack").count("local function run_members(") == 2

    edit(checkout, "ack", "local earlier_answer = ", f"{call}local earlier_answer = ")
    with pytest.raises(ValueError, match="ack has lib/send/run_members twice"):
        script_loader.full_text("ack")


def test_constants_and_inline_functions_of_a_library_may_be_included_twice(checkout: Path) -> None:
    sites: script_loader.Sites = {}

    script_loader.composed("prepare", sites=sites)

    assert any(len(places) > 1 for places in sites.values())
    assert script_loader.full_text("prepare")


def test_a_damaged_file_is_composed_again(checkout: Path) -> None:
    text = script_loader.load("ack").text
    kept = checkout / ".rmq/scripts/ack.lua"

    for content in (b"", b"\xff", b"no hash\nack\nreturn 1", b"only one line"):
        kept.write_bytes(content)
        assert in_next_process("ack").text == text


def test_without_a_place_to_write_each_process_composes(checkout: Path) -> None:
    (checkout / ".rmq").write_text("a file where the directory would be")

    assert script_loader.load("ack").text == script_loader.final_text("ack")


def test_a_wheel_uses_the_texts_that_it_carries(checkout: Path) -> None:
    composed = checkout / "lua" / script_loader.COMPOSED
    composed.mkdir()
    (composed / "ack.lua").write_text("return 'carried'")

    assert script_loader.load("ack").text == "return 'carried'"
