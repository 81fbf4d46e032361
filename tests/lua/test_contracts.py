"""Every script's header says what its builder does, and every script keeps the house rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis

from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core import keys
from rmq.kernel.transport.lua import script_loader
from tests.lua.box import Box, case
from tests.lua.builders import builder_of
from tests.lua.calls import CALLS, place_of
from tests.lua.furnished import furnish
from tests.lua.lua_names import read_chunk

NAMES = script_loader.names()
LUA = Path(str(script_loader.directory()))
LIBRARY = sorted(str(path.relative_to(LUA).with_suffix("")) for path in LUA.glob("lib/**/*.lua"))
ALONE = sorted(str(path.relative_to(LUA).with_suffix("")) for path in LUA.glob("alone/*.lua"))
OF_NO_TOPIC = ("leader_renew", "leader_release")
SECTIONS = ("ARGV", "Returns", "Cost", "Atomic")
QUEUES = ("store", "prepare", "dead")  # one of them is the key `queue` of a script
ORDER = [*keys.TYPES, script_loader.ALL_KEYS]  # of the keys in a line @needs
BYTES_MOST = 1_066_000  # of all scripts together: Redis keeps them, and a new server loads them
SCANS = ("KEYS", "SCAN", "HSCAN", "SSCAN", "ZSCAN", "RANDOMKEY", "FLUSHALL", "FLUSHDB", "SELECT")
# By library, how many calls may be refused.
PCALLS = {
    "cancel": 1,
    "lib/wake/wake": 1,
    "lib/wake/credits": 5,
    "lib/wake/hand_over_alone": 1,
    "lib/take/key_limits": 1,
    "lib/settle/attempts": 1,
    "lib/results/results": 1,
    "lib/history/add_entry": 1,
    "lib/history/tidy_history": 1,
}


def header(name: str) -> str:
    found = re.match(r"\A--\[\[\n(.*?)\n\]\]\n", script_loader.source(name), re.DOTALL)
    assert found, f"{name}.lua does not open with its contract"
    return found.group(1)


def code(text: str) -> str:
    """Lua without comments and without what stands in quotes."""
    text = re.sub(r"--\[\[.*?\]\]", "", text, flags=re.DOTALL)
    text = re.sub(r"(?m)(^|\s)--.*", "", text)  # first: an apostrophe in a comment opens no string
    return re.sub(r"'(?:\\.|[^'\\\n])*'", "''", text)


def test_header_opens_with_the_verb_and_has_every_section_in_order():
    for verb in NAMES:
        with case(verb):
            text = header(verb)

            assert text.startswith(f"{verb}: ")
            places = [re.search(rf"^{section}\b", text, re.MULTILINE) for section in SECTIONS]
            assert all(places), f"{verb}: a section is missing"
            assert [p.start() for p in places] == sorted(p.start() for p in places)


def test_declared_keys_are_those_that_the_builder_passes(box):
    furnished = furnish(box)
    for verb in NAMES:
        with case(verb):
            names, repeat = script_loader.keys_of(verb)
            passed = [place_of(key) for key in CALLS[verb](furnished).keys]

            assert re.search(
                r"\A--\[\[\n.*?\n\]\]\n--- @keys ", script_loader.source(verb), re.DOTALL
            )
            assert script_loader.source(verb).count("--- @keys ") == 1
            assert set(names) <= {*keys.TYPES, "queue"}
            times = len(passed) // len(names) if repeat else 1
            for name, place in zip(names * times, passed, strict=True):
                assert place in QUEUES if name == "queue" else place == name


def test_keys_of_many_slots_repeat_the_declared_ones(make_box):
    box = make_box(slots=3)
    every = box.handle.slots

    ready = consumer_scripts.next_ready(box.handle.slots, False)
    withdrawn = consumer_scripts.withdraw(every, b"rmq:{x}:wake:1", 1)

    for command, names in ((ready, ["slot", "store", "prepare"]), (withdrawn, ["slot"])):
        assert script_loader.keys_of(command.script.name) == (names, True)
        assert [place_of(key) for key in command.keys] == names * 3


def test_a_library_says_which_keys_it_reads():
    for part in LIBRARY:
        with case(part):
            text = script_loader.source(part)
            read = read_chunk(text).reads & {*keys.TYPES, "queue", script_loader.ALL_KEYS}
            lines = re.findall(r"^--- @needs (.+)$", text, re.MULTILINE)

            assert len(lines) == (1 if read else 0)
            assert " ".join(lines).split() == sorted(read, key=ORDER.index)


def test_nothing_has_the_name_of_a_key_but_the_key():
    """A function of a library means the same key wherever a script calls it."""
    for verb in NAMES:
        with case(verb):
            names, _ = script_loader.keys_of(verb)

            assert not re.search(
                r"\bKEYS\b", code(script_loader.expanded(script_loader.source(verb)))
            )
            declared = read_chunk(script_loader.composed(verb)).inside
            assert declared.isdisjoint([*names, script_loader.ALL_KEYS])


def test_no_argument_beyond_the_documented_is_read():
    for verb in NAMES:
        with case(verb):
            text = script_loader.source(verb)
            body = code(text)
            if f"alone/{verb}" in ALONE:
                body += code(script_loader.source(f"alone/{verb}"))
            documented = {
                int(n) for n in re.findall(r"^ARGV\[(\d+)(?:\.\.)?\]", header(verb), re.M)
            }
            assert documented == set(range(1, max(documented) + 1))
            if not re.search(r"^ARGV\[\d+\.\.\]", header(verb), re.M):
                assert {int(n) for n in re.findall(r"\bARGV\[(\d+)\]", body)} <= documented


def test_every_script_has_a_builder_of_its_name_and_a_call_here():
    for verb in NAMES:
        with case(verb):
            assert callable(builder_of(verb))
            assert verb in CALLS


def test_every_script_has_a_test_file():
    for verb in NAMES:
        with case(verb):
            assert (Path(__file__).parent / f"test_{verb}.py").is_file()


def test_script_keeps_the_rules_of_the_house():
    for verb in [*NAMES, *ALONE, *LIBRARY]:
        with case(verb):
            text = script_loader.source(verb)

            assert not text.startswith("#!")
            assert "cjson" not in text
            called = {word.upper() for word in re.findall(r"redis\.p?call\(\s*['\"](\w+)", text)}
            scanning = {"audit_scan", "groups", "resize_scan"}
            if verb in scanning | {
                "lib/groups/leave_groups",
                "lib/groups/lost_members",
                "lib/replay",
            }:
                # Over a key that is passed, and bounded: lua/README.md says why.
                called -= {"HSCAN"}
            assert called.isdisjoint(SCANS)
            assert not re.search(r"redis\.p?call\(\s*[^'\"\s]", text), (
                "a command's verb is spelled out"
            )
            # A refusal is an error, except of the signal that comes after everything is written,
            # of the count of those who would hear a hand-over, of its receipt in a key of a wrong
            # type, and of a credit or the history at maxmemory, which are then written again; and
            # headers that cannot be read name no key.
            assert code(text).count("pcall") == PCALLS.get(verb, 0)
            assert "loadstring" not in text
            assert "while true" not in text
            assert text.endswith("\n")
            assert "\t" not in text


def test_lines_have_at_most_100_columns():
    """A list of keys is one line, however long."""
    texts = [script_loader.source(name) for name in [*NAMES, *ALONE, *LIBRARY]]
    lines = [line for text in texts for line in text.splitlines()]

    assert [ln for ln in lines if len(ln) > 100 and not ln.startswith("--- @keys ")] == []


def test_every_include_is_there_and_none_is_left_unexpanded():
    for verb in NAMES:
        with case(verb):
            whole = script_loader.source(verb)
            if f"alone/{verb}" in ALONE:
                whole += script_loader.source(f"alone/{verb}")
            for part in re.findall(r"@include \"([^\"]+)\"", whole):
                assert (script_loader.directory() / f"{part}.lua").is_file()

            assert "@include" not in script_loader.load(verb).text
            assert "--[[" not in script_loader.load(verb).text


def test_every_library_piece_is_used():
    texts = [script_loader.source(verb) for verb in NAMES]
    texts += [script_loader.source(part) for part in [*ALONE, *LIBRARY]]
    used = {part for text in texts for part in re.findall(r'@include "(lib/[\w/]+)"', text)}

    assert used == set(LIBRARY)


def test_sent_texts_of_all_scripts_have_a_limit():
    texts = [script_loader.load(verb).text for verb in NAMES]

    assert sum(map(len, texts)) <= BYTES_MOST
    assert not any(line.startswith(" ") for text in texts for line in text.splitlines())


def test_script_loads_and_is_known_by_its_sha(raw):
    for verb in NAMES:
        with case(verb):
            script = script_loader.load(verb)

            assert raw.script_load(script.text) == script.sha
            assert raw.script_exists(script.sha) == [True]


@pytest.mark.parametrize("verb", sorted(CALLS))
def test_script_touches_no_key_but_those_it_is_passed(each_server, box, verb):
    command = CALLS[verb](furnish(box))
    user = f"only-{verb}"
    box.redis.acl_setuser(
        user, enabled=True, nopass=True, reset=True, commands=["+@all"],
        keys=[key.decode() for key in command.keys], reset_channels=False,
    )  # fmt: skip
    box.redis.execute_command("ACL", "SETUSER", user, "allchannels")

    client = each_server.raw(username=user, password="any", protocol=2)
    narrow = Box.__new__(Box)
    narrow.redis = client
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.get("another key")
    assert narrow.run(command) is not None

    client.close()
    box.redis.acl_deluser(user)


def test_keys_of_a_call_share_one_hash_tag_or_there_is_one_key(box):
    furnished = furnish(box)
    for verb in NAMES:
        with case(verb):
            passed = CALLS[verb](furnished).keys
            tags = [re.search(rb"\{(.*?)\}", key) for key in passed]

            assert len(passed) == 1 or len({tag and tag.group(1) for tag in tags}) == 1
            assert all(tags) == (verb not in OF_NO_TOPIC)


def test_readme_lists_every_error_of_the_scripts():
    readme = script_loader.directory() / "README.md"
    texts = [script_loader.source(part) for part in [*NAMES, *ALONE, *LIBRARY]]
    raised = set(re.findall(r"'([A-Z]{3,})'", " ".join(re.findall(r"fail\(.*", "\n".join(texts)))))

    listed = re.findall(r"^\| `([A-Z]+)` \|", readme.read_text("utf-8"), re.MULTILINE)

    assert sorted(raised) == sorted(listed)


def test_readme_names_every_script_where_there_is_one():
    readme = script_loader.directory() / "README.md"

    assert not readme.is_file() or all(f"{n}" in readme.read_text("utf-8") for n in NAMES)
