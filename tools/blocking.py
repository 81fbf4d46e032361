"""Write the blocking classes of RMQ: of each class AsyncX of a module, a class X without `await`.

python -m tools.blocking            write them again, as `make fmt` does
python -m tools.blocking --check    fail if a generated file is stale, as `make lint` does

People write `admin.py`: it has the async classes. This tool makes the classes of
`admin_blocking.py` from it; all else is imported. docs/decisions/0059-written-once.md says why.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = "# Generated from {source}: change that, then run `make fmt`."
SOURCES = (
    "rmq.client.admin",
    "rmq.client.client",
    "rmq.client.shared_data",
    "rmq.client.topic",
    "rmq.features.audit.admin",
    "rmq.features.batches.admin",
    "rmq.features.batches.batch",
    "rmq.features.claims.admin",
    "rmq.features.dead_letters.admin",
    "rmq.features.dead_letters.jobs.admin",
    "rmq.features.doctor.admin",
    "rmq.features.follow_ups.admin",
    "rmq.features.groups.admin",
    "rmq.features.history.history",
    "rmq.features.messages.admin",
    "rmq.features.offloaded.admin",
    "rmq.features.spark.admin",
    "rmq.features.spark.query",
    "rmq.features.spark.stage",
    "rmq.features.schedules.admin",
    "rmq.features.schedules.declaration",
    "rmq.features.tokens.admin",
    "rmq.features.topic_admin.admin",
    "rmq.features.workers.admin",
    "rmq.kernel.consumer.consumer",
    "rmq.kernel.delivery.delivery",
    "rmq.kernel.results.handle",
    "rmq.kernel.transport.cluster.driver",
    "rmq.kernel.transport.single.driver",
    "rmq.kernel.transport.sentinel.master_finder",
    "rmq.kernel.transport.sentinel.master_pool",
    "rmq.worker.running.invoker",
)
# Names of blocking code, by the async name; all other names only lose their "Async".
NAMES = {
    "__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__",
    "_open_async_transport": "_open_transport", "asyncio": "threading", "aredis": "redis",
    "AsyncInvoker": "PlainInvoker",
    "AwaitableHandle": "HandleBase", "AsyncCall": "PlainCall", "call_hooks_async": "call_hooks",
    "drive_async": "drive", "run_async": "run",
    "on_duplicate_async": "on_duplicate", "run_batch_async": "run_batch",
}  # fmt: skip
MODULES = {"rmq.kernel.transport.single.asyncio": "rmq.kernel.transport.single.blocking"}
_ASYNC_CLASS = re.compile(r"\bAsync(?=[A-Z])")
# Words about asyncio in comments and docstrings, and the words about threads.
_PROSE = (
    (re.compile(r"`async (with|for)\b"), r"`\1"),
    (re.compile(r"\btask(s?)( of one event loop)?\b"), r"thread\1"),
    (_ASYNC_CLASS, ""),
)


def path_of(module: str) -> Path:
    """The file of a module, from the root of the repository."""
    return Path(*module.split(".")).with_suffix(".py")


def generate(module: str, text: str) -> str:
    """Return the text of the module with the blocking classes.

    Args:
        module: the dotted name of its source.
        text: the source.
    """
    body = ast.parse(text).body
    lines = text.splitlines(keepends=True)
    classes = "".join(
        without_asyncio("".join(lines[_first_line(node) - 1 : node.end_lineno]))
        for node in body
        if isinstance(node, ast.ClassDef) and node.name.startswith("Async")
    )
    used = {node.id for node in ast.walk(ast.parse(classes)) if isinstance(node, ast.Name)}
    parts = [
        HEAD.format(source=path_of(module).as_posix()),
        f'"""The blocking classes of `{module}`."""',
        "from __future__ import annotations",
        *(line for name, line in _imports(module, body) if name in used),
        classes,
    ]
    path = f"{path_of(module).with_suffix('')}_blocking.py"
    return _ruff(_ruff("\n".join(parts), "check --fix --select=I", path), "format", path)


def without_asyncio(text: str) -> str:
    """Return code without `async` and `await`, and with the names of the blocking classes."""
    lines = text.splitlines(keepends=True)
    given: list[str] = []
    row, column, is_dropped = 1, 0, False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if not is_dropped:
            given.append(_between(lines, (row, column), token.start))
        written = _between(lines, token.start, token.end)
        is_dropped = written in ("async", "await")
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            for pattern, instead in _PROSE:
                written = pattern.sub(instead, written)
            given.append(written)
        elif not is_dropped:
            given.append(blocking_name(written))
        row, column = token.end
    return "".join(given)


def blocking_name(name: str) -> str:
    """The name that blocking code has for a name of async code."""
    return NAMES.get(name) or _ASYNC_CLASS.sub("", name)


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]] if start < end else ""
    between = lines[start[0] - 1 : end[0]]
    return between[0][start[1] :] + "".join(between[1:-1]) + between[-1][: end[1]]


def _first_line(node: ast.ClassDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _imports(module: str, body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Each name that a source imports or defines, and a line that imports it."""
    for node in body:
        if isinstance(node, ast.Import):
            for each in node.names:
                name = blocking_name(each.name)
                yield each.asname or name, ast.unparse(ast.Import([ast.alias(name, each.asname)]))
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            assert node.module is not None, "RMQ has no relative imports"
            for each in node.names:
                name = blocking_name(each.name)
                home = MODULES.get(node.module, node.module)
                if home in SOURCES and name != each.name:
                    home += "_blocking"
                line = ast.unparse(ast.ImportFrom(home, [ast.alias(name, each.asname)], 0))
                yield each.asname or name, line
        else:
            for name in _defined(node):
                if name == blocking_name(name):
                    yield name, f"from {module} import {name}"


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [each.id for each in targets if isinstance(each, ast.Name)]


def _ruff(text: str, words: str, path: str) -> str:
    command = [sys.executable, "-m", "ruff", *words.split(), "--quiet", "--stdin-filename", path]
    done = subprocess.run(
        [*command, "-"], input=text, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True
    )
    return done.stdout


def main(words: list[str], root: Path = ROOT) -> int:
    """Write the files, or say which of them are stale."""
    stale = []
    for module in SOURCES:
        source = root / path_of(module)
        target = source.with_name(f"{source.stem}_blocking.py")
        text = generate(module, source.read_text())
        if not target.exists() or target.read_text() != text:
            stale.append(target.relative_to(root))
            if words != ["--check"]:
                target.write_text(text)
    for path in stale:
        print(f"{path}: stale; run `make fmt`" if words else f"{path}: written")
    return 1 if words and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
