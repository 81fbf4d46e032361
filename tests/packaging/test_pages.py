"""Every page of the documentation does what it shows, on the wheel that we ship (`pages.py`)."""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import sys
import venv
from pathlib import Path

import pytest

from tests.packaging.pages import blocks, run
from tests.packaging.test_install import built, dependencies, ran
from tests.servers import Server, free_port

__all__ = ["built"]

ROOT = Path(__file__).parents[2]
CHECKOUT = ("rmq", "lua", "spark_connector", "pyspark_rmq", "pyproject.toml", "README.md", "cli.py")
CHECKOUT += ("tools",)  # the build composes the scripts
CHECKOUT += ("constraints.txt",)  # the lock may be missing

README = "README.md"
VENV = "python3 -m venv .venv"
FOLDERS = ("", "docs", "docs/coming-from", "docs/decisions", "examples", "bench", "lua")
MARKDOWN = [each for folder in (*FOLDERS, "tests") for each in (ROOT / folder).glob("*.md")]
# How many blocks of a page are not run; each says why, beside the block.
PAGES = {
    "README.md": 1,
    "docs/coming-from/arq-and-taskiq.md": 3,
    "docs/coming-from/bullmq.md": 2,
    "docs/coming-from/celery.md": 2,
    "docs/coming-from/dramatiq.md": 2,
    "docs/coming-from/kafka.md": 1,
    "docs/coming-from/pydocket-streaq-and-saq.md": 3,
    "docs/coming-from/rabbitmq.md": 1,
    "docs/coming-from/river-dbos-and-hatchet.md": 1,
    "docs/coming-from/rq.md": 2,
    "docs/coming-from/sidekiq.md": 2,
    "docs/coming-from/sqs.md": 1,
    "docs/index.md": 1,
    "docs/django.md": 0,
    "docs/frameworks.md": 0,
    "docs/tutorial.md": 0,
    "docs/cli.md": 16,
    "docs/audit.md": 0,
    "docs/codecs.md": 0,
    "docs/errors.md": 0,
    "docs/settings.md": 0,
    "docs/sending.md": 0,
    "docs/consuming.md": 0,
    "docs/groups.md": 0,
    "docs/faq.md": 0,
    "docs/managed-redis.md": 1,
    "docs/outbox.md": 0,
    "docs/history.md": 0,
    "docs/outcomes.md": 0,
    "docs/workers.md": 0,
    "docs/observability.md": 0,
    "docs/schedules.md": 0,
    "docs/taskiq.md": 0,
    "docs/patterns.md": 0,
    "docs/how-it-works.md": 0,
    "docs/kubernetes.md": 1,
}
PAGES_OF_FIGURES = [
    str(page.relative_to(ROOT))
    for page in MARKDOWN
    if "python -m bench" in page.read_text() and page.name != "CONTRIBUTING.md"
]
ELSEWHERE = {  # pages whose blocks another test runs
    "docs/dead-letters.md": "tests/integration/test_dead_letter_pages.py",
    "docs/embedding.md": "tests/server/test_embedding.py",
    "docs/guarantees.md": "tests/packaging/test_guarantees.py",
    "docs/server.md": "tests/server/test_page.py",
    "docs/http.md": "tests/server/test_http_page.py",
    "docs/shop.md": "tests/examples/test_shop.py",
    "docs/api.md": "tests/unit/test_api_page.py",  # names, no code
    "docs/celery.md": "tests/celery/test_page.py",
    "docs/testing.md": "tests/testing/test_docs.py",
    "docs/spark.md": "tests/spark",
    "docs/typing.md": "tests/unit/test_typing_page.py",
}


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with RMQ's dependencies and without RMQ."""
    found = tmp_path_factory.mktemp("packages")
    for one in Path(dependencies()).iterdir():
        if not one.name.startswith(("rmq", "_rmq", "_editable_impl_rmq")):
            (found / one.name).symlink_to(one)
    return found


@pytest.fixture(scope="module")
def installed(built: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with our wheel."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False)
    (wheel,) = built.glob("*.whl")
    words = ["-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet"]
    words += ["--disable-pip-version-check", "--no-deps", str(wheel)]
    ran(sys.executable, *words, cwd=home, PYTHONPATH=str(packages))
    return home / "bin"


@pytest.fixture
def env(packages: Path, tmp_path: Path) -> dict[str, str]:
    """A fresh HOME without a network. What RMQ depends on is there already, and RMQ is not."""
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("RMQ_", "PIP_", "PYTHON", "COLUMNS", "VIRTUAL_ENV"))
    }
    return clean | {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(packages),
        "PYTHONUTF8": "1",
        "COLUMNS": "160",
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it the wrong way round: none
        "PIP_NO_COMPILE": "1",  # Python compiles what a page imports
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "NO_COLOR": "1",
    }


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of this checkout, as far as it takes to install it."""
    made = tmp_path / "rmq"
    made.mkdir()
    for name in CHECKOUT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, made / name)
    return made


@pytest.mark.slow
@pytest.mark.timeout(900)  # two dozen processes one after another
def test_the_readme_installs_the_checkout_and_does_what_it_shows(
    env: dict[str, str], checkout: Path, tmp_path: Path, own_server: Server
) -> None:
    instead = {
        "redis://localhost:6379/0": own_server.url,
        "embedded:///tmp/rmq-readme": f"embedded://{tmp_path}/data",
        "embedded:///tmp/rmq-schedules": f"embedded://{tmp_path}/schedules",
        VENV: f"{VENV} --without-pip",  # a copy of its own takes seconds; PYTHONPATH has one
    }
    pip = checkout / ".venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.write_text('#!/bin/sh\nexec "${0%/*}/python" -m pip "$@"\n')
    pip.chmod(0o755)

    skipped = run(ROOT / README, checkout, env, instead)

    assert skipped == PAGES[README], "blocks of this page that are not run"
    assert (pip.parent / "rmq").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)  # many processes one after another
@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("page", [page for page in PAGES if page != README])
def test_the_page_does_what_it_shows(
    page: str, env: dict[str, str], installed: Path, tmp_path: Path, own_server: Server
) -> None:
    home = tmp_path / "empty"
    home.mkdir()
    env |= {"RMQ_URL": own_server.url, "PATH": f"{installed}{os.pathsep}{env['PATH']}"}

    instead = {
        "redis://localhost:6379/0": own_server.url,
        "embedded:///tmp/": f"embedded://{tmp_path}/",  # what an earlier run left is not used
        "8765": str(free_port()),
    }

    skipped = run(ROOT / page, home, env, instead)

    assert skipped == PAGES[page], "blocks of this page that are not run"


def test_every_page_with_a_program_or_a_command_is_run() -> None:
    listed = [str(one.relative_to(ROOT)) for two in FOLDERS for one in (ROOT / two).glob("*.md")]
    found = {
        page
        for page in listed
        if any(not one.startswith("text") for one in _fences((ROOT / page).read_text()))
    }

    assert found == PAGES.keys() | ELSEWHERE.keys()
    assert [one for one in ELSEWHERE.values() if not (ROOT / one).exists()] == []


def test_code_of_other_queues_can_be_parsed() -> None:
    pages = (ROOT / "docs" / "coming-from").glob("*.md")
    theirs = [
        b for page in pages for b in blocks(page.read_text()) if b.skip and b.kind == "python"
    ]

    assert theirs
    for block in theirs:
        ast.parse("\n".join(block.lines))


def test_the_second_line_of_a_paragraph_may_be_indented() -> None:
    assert list(blocks("- a\n  - b\n    c\n")) == []


def _fences(text: str) -> list[str]:
    return re.findall(r"^```(.*)$", text, re.MULTILINE)[::2]


@pytest.mark.parametrize(
    "text",
    [
        "    ls", "a\n\n    ls", "# a\n    ls", "```text\n```\n    ls", "~~~\nls\n~~~",
        "```console\n$ ls", "<!-- test: skip -->\n```sh\nls\n```",
        "<!-- test: skpi because of a slip -->\n```sh\nls\n```",
    ],
)  # fmt: skip
def test_a_block_that_would_not_be_run_is_found(text: str) -> None:
    with pytest.raises(AssertionError):
        list(blocks(text))


@pytest.mark.parametrize(
    "text",
    [
        "```\nls\n```", "```bash\nls\n```", "```console\n$ false\n```", "```sh\nfalse\n```",
        "```console\n$ echo a\nb\n```", "```console\n$ echo a; echo b\na\n```",
        "```python\n1 / 0\n```", "<!-- test: exit 3 -->\n```sh\ntrue\n```",
        "<!-- test: python\n1 / 0\n-->",
    ],
)  # fmt: skip
def test_a_page_that_is_wrong_is_found(text: str, env: dict[str, str], tmp_path: Path) -> None:
    page, home = tmp_path / "page.md", tmp_path / "empty"
    home.mkdir()
    page.write_text("# A page\n\n" + text + "\n")

    with pytest.raises(AssertionError, match=r"^page\.md:\d"):
        run(page, home, env, {})


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found, is_code = set(), False
    for line in page.read_text().splitlines():
        is_code ^= line.startswith("```")
        if not is_code and (heading := re.match(r"#+ (.*)", line)):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    gone = []
    for link in re.findall(r"\]\(([^)\s:]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            gone.append(link)

    assert gone == []


def broken_rows(text: str) -> list[str]:
    """Return the lines of tables that have another number of cells than the head of the table."""
    found, cells, is_code = [], 0, False
    for line in (*text.splitlines(), ""):
        is_code ^= line.lstrip().startswith("```")
        row = line.strip()
        if is_code or not row or row.startswith("<!--"):
            cells = 0
        elif cells or row.startswith("|"):
            count = len(re.findall(r"(?<!\\)\|", row))
            cells = cells or count
            if count != cells or not row.startswith("|"):
                found.append(line)
    return found


@pytest.mark.parametrize("page", sorted(str(each.relative_to(ROOT)) for each in MARKDOWN))
def test_no_row_of_a_table_is_broken(page: str) -> None:
    assert broken_rows((ROOT / page).read_text()) == []


def test_a_broken_row_is_found() -> None:
    table = "| a | b |\n| --- | --- |\n| c | d |\n"
    assert broken_rows(table + "\ntext\n") == []
    assert broken_rows(table + "| e | f\n g |\n") == ["| e | f", " g |"]


def long_lines(text: str) -> list[str]:
    """Return the lines of more than 160 characters that are not code, a table or a picture."""
    found, is_code = [], False
    for line in text.splitlines():
        is_code ^= line.lstrip().startswith("```")
        if len(line) > 160 and not is_code and not line.lstrip().startswith(("|", "![")):
            found.append(line)
    return found


@pytest.mark.parametrize("page", sorted(str(each.relative_to(ROOT)) for each in MARKDOWN))
def test_lines_have_at_most_160_characters(page: str) -> None:
    assert long_lines((ROOT / page).read_text()) == []


def test_a_long_line_is_found() -> None:
    line = "word " * 40
    assert long_lines(line[:160] + "\n| " + line + "|\n```text\n" + line + "\n```\n") == []
    assert long_lines("```text\n```\n- " + line + "\n") == ["- " + line]


def without_source(text: str) -> list[str]:
    """Return the cells of tables without a link, and names of links that are unknown or unused."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line[:2] == "| "]
    cells = [cell.strip() for name, *row in rows if name.strip(" -") for cell in row]
    used = set(re.findall(r"\]\[([\w-]+)\]", text))
    defined = set(re.findall(r"^\[([\w-]+)\]: https://", text, re.MULTILINE))
    return [cell for cell in cells if not re.search(r"\]\(|\]\[", cell)] + sorted(used ^ defined)


def test_each_cell_of_the_comparison_has_a_source() -> None:
    assert without_source((ROOT / "docs" / "comparison.md").read_text()) == []


def test_a_cell_without_a_source_is_found() -> None:
    table = "| | a |\n| --- | --- |\n| x | [yes][one] |\n\n[one]: https://example.org\n"
    assert without_source(table) == []
    assert without_source(table.replace("[yes][one]", "yes")) == ["yes", "one"]
    assert without_source(table.replace("[one]:", "[two]:")) == ["one", "two"]


def without_appendonly(text: str) -> list[str]:
    """Return the captions of tables of figures, and mentions of the bench, without `appendonly`."""
    captions = re.findall(r"<!-- bench: \w+ -->\n(.*?)\n\n", text, re.DOTALL)
    lacking = [caption for caption in captions if "jemalloc" in caption]
    lacking = [caption for caption in lacking if "appendonly" not in " ".join(caption.split())]
    mentions = re.findall(r"python -m bench\S*", text)
    is_said = re.search(r"appendonly|append-only file|\bAOF\b", text)
    return lacking + ([] if is_said else mentions)


@pytest.mark.parametrize("page", PAGES_OF_FIGURES)
def test_a_page_of_figures_says_whether_redis_had_an_append_only_file(page: str) -> None:
    assert without_appendonly((ROOT / page).read_text()) == []


def test_a_page_without_its_appendonly_is_found() -> None:
    caption = "2026-11-28, redis-server 7.0.15 with jemalloc-5.3.0, appendonly no, Python"
    page = f"`python -m bench`\n<!-- bench: cost -->\n{caption}\n\n| a |\n<!-- end -->\n"
    assert without_appendonly(page) == []
    wrong = page.replace("appendonly no, ", "")
    assert without_appendonly(wrong) == [caption.replace("appendonly no, ", ""), "python -m bench`"]
