"""Make a release: `make release VERSION=0.2.0`.

It writes the version and the date into their files, and builds wheel and sdist into dist/. It
installs the wheel into a new environment, checks the version there, then commits and tags. It does
not push or publish: the last lines that it prints say how. If a step fails, all files are restored.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNRELEASED = "## Unreleased"
# File, and the text before and after the version in it.
PLACES = (
    ("pyproject.toml", '\nversion = "', '"'),
    ("rmq/kernel/core/packages.py", '\nVERSION = "', '"'),
)
CHANGED = (*(name for name, *_ in PLACES), "CHANGELOG.md")
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


class Refused(Exception):
    """There is nothing to release, or it would be a second time."""


def _parts(version: str) -> tuple[int, ...]:
    match = VERSION.fullmatch(version)
    if match is None:
        raise Refused(f"VERSION: {version!r}; give three numbers, as 0.2.0")
    return tuple(map(int, match.groups()))


def current(root: Path) -> str:
    """Return the version of the files."""
    name, before, behind = PLACES[0]
    return (root / name).read_text().partition(before)[2].partition(behind)[0]


def notes(changelog: str) -> str:
    """Return what has changed since the last release, as the changelog has it."""
    section = changelog.partition(UNRELEASED + "\n")[2]
    return re.split(r"^## ", section, maxsplit=1, flags=re.MULTILINE)[0].strip()


def prepare(root: Path, version: str, day: str) -> None:
    """Write a version and the day of its release into the files.

    Raises:
        Refused: The version is malformed or older than the last release, or nothing has changed.
    """
    if _parts(version) < _parts(current(root)):
        raise Refused(f"VERSION: {version} is older than {current(root)}, which the files have")
    changelog = (root / "CHANGELOG.md").read_text()
    if not notes(changelog):
        raise Refused(f"CHANGELOG.md: nothing stands below {UNRELEASED!r}")
    texts = {}
    for name, before, behind in PLACES:
        text = (root / name).read_text()
        head, found, rest = text.partition(before)
        if not found:
            raise Refused(f"{name}: no line begins with {before.strip()!r}")
        texts[name] = head + before + version + behind + rest.partition(behind)[2]
    heading = f"{UNRELEASED}\n\n## {version} ({day})\n"
    texts["CHANGELOG.md"] = changelog.replace(f"{UNRELEASED}\n", heading, 1)
    for name, text in texts.items():
        (root / name).write_text(text)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def build(version: str) -> list[Path]:
    """Build wheel and sdist; return them."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return sorted((ROOT / "dist").glob(f"rmq-{version}[-.]*"))


def check(files: list[Path], version: str) -> None:
    """Install the wheel as a user would, and ask it for its version."""
    kinds = sorted(file.suffix for file in files)
    if kinds != [".gz", ".whl"]:
        raise Refused(f"dist: {[file.name for file in files]}; expected a wheel and an sdist")
    wheel = next(file for file in files if file.suffix == ".whl")
    with tempfile.TemporaryDirectory() as home:
        venv.create(home, with_pip=True)
        pip = [f"{home}/bin/python", "-m", "pip", "install", "--quiet", "-c", "constraints.txt"]
        subprocess.run([*pip, str(wheel)], cwd=ROOT, check=True)
        asked = [f"{home}/bin/rmq", "--version"]
        said = subprocess.run(asked, cwd=home, stdout=subprocess.PIPE, text=True, check=True).stdout
    if version not in said:
        raise Refused(f"the installed wheel says {said.strip()!r}")


def release(version: str) -> None:
    """Make a release of the files as they are committed.

    Raises:
        Refused: it was released before, or the files are not committed.
    """
    if _git("status", "--porcelain"):
        raise Refused("git status: there are changes that are not committed")
    if _git("tag", "--list", f"v{version}"):
        raise Refused(f"VERSION: {version} was released: there is a tag v{version}")
    prepare(ROOT, version, datetime.now(UTC).strftime("%Y-%m-%d"))
    try:
        files = build(version)
        check(files, version)
    except BaseException:
        _git("checkout", "--", *CHANGED)
        raise
    _git("commit", "-q", "-m", f"Release {version}", "--", *CHANGED)
    _git("tag", "-a", f"v{version}", "-m", f"RMQ {version}")
    names = " ".join(f"dist/{file.name}" for file in files)
    print(f"committed and tagged v{version}; to publish it:")
    print(f"  git push origin HEAD v{version}\n  python -m twine upload {names}")


def main() -> int:
    """Make the release that the command line names; return the exit code."""
    if len(sys.argv) != 2 or not sys.argv[1]:
        print("usage: make release VERSION=0.2.0", file=sys.stderr)
        return 2
    try:
        release(sys.argv[1])
    except (Refused, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
