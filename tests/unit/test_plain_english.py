"""The words of each folder: the index of `tools/plain_english.py` goes down and never up."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tools import plain_english as plain

MOST = 7  # hits for each thousand words
FEW_WORDS = 300  # the index of a folder with fewer says nothing


def test_no_folder_has_more_phrases_that_make_a_reader_go_back():
    words, hits = plain.count([])
    found = Counter(plain.folder_of(hit.file) for hit in hits)
    rates = {folder: 1000 * found[folder] / n for folder, n in words.items() if n > FEW_WORDS}

    assert len(rates) > 20
    too_high = {folder: round(rate, 1) for folder, rate in rates.items() if rate > MOST}
    assert too_high == {}, "python -m tools.plain_english FOLDER --show 40"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Remove the old one.", "pronoun one"),
        ("What a script has stays.", "what or who as a noun"),
        ("Where nothing waits, it sleeps.", "where, for if or when"),
        ("It reckons anew.", "words nobody says"),
        ("A key beside it.", "beside"),
        ("The answer stands in the hash.", "stands, goes on, comes"),
        ("As many as so many.", "so many, so long, such"),
        ("It is moved, too.", "trailing too, mostly, perhaps"),
        ("The name is that of the slot.", "that of, those of, those that"),
        ("Nobody reads it.", "nobody, nothing as subject"),
        ("size: of the page", "argument that begins in the middle"),
        ("The worker is told.", "let, told, asked, know of a thing"),
        ("word " * 33, "more than 32 words"),
    ],
)
def test_each_rule_finds_its_phrase_in_python_lua_and_markdown(text, rule):
    for file, around in (("a.py", '"""{}"""\n'), ("b.lua", "-- {}\n"), ("c.md", "{}\n")):
        _, hits = plain.read(file, around.format(text))

        assert rule in {hit.rule for hit in hits}, file


def test_code_is_not_read():
    sources = {
        "a.py": "stood = 'What is the old one beside it, too.'\n",
        "b.lua": "local stood = beside\n",
        "c.md": "```\nbeside the old one\n```\n`beside` [X](beside-the-old-one.md)\n",
    }

    assert [plain.read(file, text)[1] for file, text in sources.items()] == [[], [], []]


def test_a_file_that_only_speaks_of_generated_classes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "a.py": '"""The blocking class is generated from this module."""\n',
        "b.py": "# Generated from a.py: change that.\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    monkeypatch.setattr(plain, "ROOT", tmp_path)

    assert [file for file, _ in plain.texts([])] == ["a.py"]
