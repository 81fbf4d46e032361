"""`make release`, and the files that a forge reads."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmq.kernel.core.packages import VERSION
from tools import release

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
LOG = "# Changelog\n\n## Unreleased\n\n- Messages fly.\n\n## 0.1.0 (2026-01-01)\n\n- All.\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "CHANGELOG.md").write_text(LOG)
    for name, *_ in release.PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


def test_the_version_stands_once_in_each_of_its_files() -> None:
    assert release.current(ROOT) == VERSION
    for name, before, behind in release.PLACES:
        assert (ROOT / name).read_text().count(before + VERSION + behind) == 1


def test_a_release_has_its_version_and_its_day(tree: Path) -> None:
    release.prepare(tree, "7.8.9", "2027-02-03")

    assert release.current(tree) == "7.8.9"
    assert '\nVERSION = "7.8.9"' in (tree / "rmq/kernel/core/packages.py").read_text()
    changelog = (tree / "CHANGELOG.md").read_text()
    assert "## Unreleased\n\n## 7.8.9 (2027-02-03)\n\n- Messages fly.\n" in changelog
    assert release.notes(changelog) == ""


@pytest.mark.parametrize(
    ("version", "log", "said"),
    [
        ("7.8", LOG, "three numbers"),
        ("7.8.9rc1", LOG, "three numbers"),
        ("0.0.1", LOG, "is older than"),
        ("7.8.9", LOG.replace("- Messages fly.\n", ""), "nothing stands below"),
        ("7.8.9", "# Changelog\n", "nothing stands below"),
    ],
)
def test_what_is_no_release_changes_no_file(tree: Path, version: str, log: str, said: str) -> None:
    (tree / "CHANGELOG.md").write_text(log)
    before = {name: (tree / name).read_text() for name in release.CHANGED}

    with pytest.raises(release.Refused, match=said):
        release.prepare(tree, version, "2027-02-03")

    assert {name: (tree / name).read_text() for name in release.CHANGED} == before


def runs_of(path: Path) -> list[str]:
    """Return the make targets that a workflow or a hook runs, with those of its matrix."""
    text = path.read_text()
    found: Any = yaml.safe_load(text)
    targets: list[str] = []
    for job in found.get("jobs", {}).values():
        targets += job.get("strategy", {}).get("matrix", {}).get("target", [])
    for line in re.findall(r"(?:run|entry): make (.+)$", text, re.MULTILINE):
        targets += [word for word in line.split() if re.fullmatch(r"[a-z-]+", word)]
    return targets


@pytest.mark.parametrize("name", [".github/workflows/ci.yml", ".pre-commit-config.yaml"])
def test_a_forge_runs_targets_of_make(name: str) -> None:
    targets = runs_of(ROOT / name)

    assert targets
    assert set(targets) <= TARGETS


def test_a_forge_runs_all_that_make_check_does() -> None:
    wanted = re.search(r"^check: ([a-z -]+)##", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert wanted
    assert set(wanted[1].split()) <= set(runs_of(ROOT / ".github/workflows/ci.yml"))


def test_the_files_of_make_oldest_and_newest_are_there() -> None:
    command = ["make", "--silent", "--eval", "listed: ; @echo $(SMOKE)", "listed"]
    names = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout

    assert len(names.split()) > 5
    assert [name for name in names.split() if not (ROOT / name).exists()] == []


def test_the_forms_of_issues_can_be_read() -> None:
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))

    assert [form.name for form in forms] == ["bug.yml", "config.yml", "feature.yml"]
    for form in forms:
        fields = yaml.safe_load(form.read_text()).get("body", [])
        assert all(field["attributes"] for field in fields)
