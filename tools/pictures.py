"""Draw the pictures of the pages: an SVG next to each source in docs/pictures.

python -m tools.pictures            draw those whose source has changed, as `make pictures` does
python -m tools.pictures /bin/d2    with another D2, where the one of pip does not run

D2 draws them (docs/decisions/0063): one SVG has colors for light and dark pages, and a mark of its
source text. tests/unit/test_pictures.py compares the marks with the sources, without D2.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
# Letters that can be read where a picture is as wide as a page. Part of each source.
STYLE = """
(** -> **)[*].style.font-size: 18
(** -> **)[*].style.italic: false
**.style.font-size: 18
"""
LIGHT, DARK = "0", "200"  # numbers of themes: `d2 themes`


def sources(folder: Path = FOLDER) -> list[Path]:
    """Return the sources of all pictures."""
    return sorted(folder.glob("*.d2"))


def mark_of(source: Path) -> str:
    """Return the comment in an SVG that identifies its source."""
    text = f"{STYLE}{LIGHT} {DARK}\n{source.read_text()}"
    return f"<!-- {source.name} {hashlib.sha256(text.encode()).hexdigest()[:16]} -->"


def stale(folder: Path = FOLDER) -> list[str]:
    """Return the sources whose SVG is not theirs, and the SVGs without a source."""
    found = []
    for source in sources(folder):
        svg = source.with_suffix(".svg")
        if not svg.exists() or not svg.read_text().endswith(f"{mark_of(source)}\n"):
            found.append(source.name)
    return found + sorted(
        svg.name for svg in folder.glob("*.svg") if not svg.with_suffix(".d2").exists()
    )


def draw(source: Path, binary: str) -> str:
    """Return the SVG of a source."""
    words = ["--layout", "dagre", "--theme", LIGHT, "--dark-theme", DARK, "--pad", "16"]
    done = subprocess.run(
        [binary, *words, "--scale", "1", "-", "-"],
        input=source.read_text() + STYLE, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{source}: {done.stderr}")
    return f"{done.stdout.rstrip()}\n{mark_of(source)}\n"


def brought() -> str:
    """Return the path of the D2 that pip has brought."""
    from d2_python import D2

    return str(D2().binary_path)


def main() -> None:
    """Draw what is stale."""
    binary = sys.argv[1] if sys.argv[1:] else brought()
    for name in stale():
        source = FOLDER / name
        source.with_suffix(".svg").write_text(draw(source, binary))
        print(source.with_suffix(".svg").relative_to(FOLDER.parents[1]))


if __name__ == "__main__":
    main()
