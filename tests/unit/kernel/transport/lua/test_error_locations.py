"""Each line of a composed script has a source line, which the text of an error then names."""

from __future__ import annotations

import functools
import re
from collections import ChainMap
from pathlib import Path

import pytest

from rmq.kernel.transport.lua import error_locations, inlining, script_loader
from tests.lua.box import case
from tests.lua.lua_names import tokens
from tests.sources import full_text, inline_names, with_line

SCRIPT = script_loader.load("extend")
PLACES = error_locations._source_of("extend", SCRIPT.text).locations
LINE, PLACE = next((n, place) for n, place in enumerate(PLACES, 1) if place)
FORMS = {
    "redis-6.2, lua": f"Error running script (call to f_{SCRIPT.sha}): @user_script:{{}}: "
    "user_script:{}: attempt to index",
    "redis-6.2, redis": f"Error running script (call to f_{SCRIPT.sha}): @user_script:{{}}: "
    "@user_script: {}: Wrong number of args",
    "redis-7.0": f"user_script:{{}}: attempt to index script: {SCRIPT.sha}, on @user_script:{{}}.",
    "valkey-9.1": "user_script:{}: attempt to index script: on @user_script:{}.",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_each_line_of_an_error_is_named_by_its_place(form: str) -> None:
    named = error_locations.with_locations(form.format(LINE, LINE), "extend")

    assert re.fullmatch(r"lua/[\w/]+\.lua:\d+", PLACE)
    assert named.count(PLACE) == form.count("{}")
    assert "user_script" not in named


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"user_script:{LINE}: x script: {'1f' * 20}, on @user_script:{LINE}.", "extend"),
        (f"user_script:{LINE}: x", "no_script"),
        ("user_script:1: x, user_script:99999: x, user_script:0: x", "extend"),
        ("WRONGTYPE Operation against a key", "extend"),
    ],
    ids=["another text", "no script", "no source line", "no line"],
)
def test_text_stays_if_it_names_no_line_of_the_sources(text: str, name: str) -> None:
    assert error_locations.with_locations(text, name) == text


@pytest.mark.parametrize("is_missing", [False, True], ids=["other", "missing"])
def test_text_stays_if_the_sources_of_a_wheel_are_not_those_it_was_made_of(
    tmp_path: Path, is_missing: bool
) -> None:
    text = f"user_script:{LINE}: x"
    line = f"  name = nil -- {is_missing=}"  # scripts are composed once for each line
    with with_line(tmp_path, "lib/check", "  fail('ARG', name)", line):
        composed = tmp_path / "lua" / script_loader.COMPOSED
        composed.mkdir()
        (composed / "extend.lua").write_text(SCRIPT.text)
        if is_missing:
            (tmp_path / "lua/lib/check.lua").unlink()

        assert script_loader.load("extend").sha == SCRIPT.sha
        assert error_locations.with_locations(text, "extend") == text
    assert error_locations.with_locations(text, "extend") == f"{PLACE}: x"


tokens_of = functools.cache(tokens)


def words(line: str, constants: dict[str, str]) -> list[str]:
    """The tokens of a line; renamed locals and constants as the source has them."""
    shown = [constants.get(text, text) for kind, text in tokens_of(line) if kind != "end"]
    return [
        word.rstrip("_") or "_" if word[0].isalpha() or word[0] == "_" else word
        for value in shown
        for word in re.findall(r"'(?:\\.|[^'\\])*'|[\w.]+|[^\w\s]", value)
        if word not in "()"  # a negative constant is put into brackets
    ]


def constants(part: str) -> dict[str, str]:
    """The constants of a file, which are values in a composed text."""
    found: dict[str, str] = {}
    for match in inlining._CONSTANTS.finditer(
        inlining.without_comments(script_loader.source(part))
    ):
        values = inlining._VALUE.findall(match[2])
        found.update(zip(match[1].split(", "), values, strict=True))
    return found


def parts() -> list[str]:
    root = Path(str(script_loader.directory()))
    return [str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.lua")]


def is_put_in_place(line: str, source: str, values: dict[str, str], calls: set[str]) -> bool:
    """Whether the loader made a line for a call, or for a return, of an inline function."""
    code = inlining.without_comments(source + "\n").strip()
    made, read = words(line, values), words(code, values)
    if read[0] == "return" and read[1:] == made[made.index("=") + 1 if "=" in made else 1 :]:
        return True  # as (targets = results), or (return results)
    if read[0] == "return" and (made == ["break"] or made[-2:] == ["=", "nil"]):
        return True  # an early return, or one without a value
    declared = made[made[0] == "local" : made.index("=") if "=" in made else None]
    is_of_call = " ".join(made) in ("do", "end", "repeat", "until true") or all(
        re.match(r"\w+$|,", w) for w in declared
    )
    return is_of_call and (read[-1] == "=" or not calls.isdisjoint(read))


@pytest.mark.slow  # the other tests look at the lines of a few scripts
def test_every_line_of_every_script_has_the_tokens_of_its_source_line() -> None:
    constants_of = {part: constants(part) for part in parts()}
    sources = {part: script_loader.source(part).splitlines() for part in parts()}
    calls = {call for part in parts() for call in inline_names(script_loader.source(part))}
    seen = set[tuple[str, str]]()
    exact = put_in_place = 0
    for name in script_loader.names():
        with case(name):
            text = full_text(name).splitlines()
            found = error_locations._source_of(name, script_loader.load(name).text).locations
            assert len(found) == len(text)
            values = dict(
                ChainMap(
                    *(
                        constants_of[script_loader.path_of(part)]
                        for part in script_loader._sources(name)
                    )
                )
            )
            for line, place in list(zip(text, found, strict=True))[2:]:  # after name and keys
                assert bool(place) == bool(line.strip()), line
                if not place or (line, place) in seen:
                    continue
                seen.add((line, place))
                part, number = place.removeprefix("lua/").split(".lua:")
                source = sources[part][int(number) - 1]
                if words(line, values) == words(source, values):
                    exact += 1
                else:
                    put_in_place += 1
                    assert is_put_in_place(line, source, values, calls), (line, place, source)

    assert exact > 4 * put_in_place > 0
