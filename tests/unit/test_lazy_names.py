"""`import rmq` is quick: the modules behind its names are imported when a name is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rmq

MODULES = rmq._MODULES


def imports_for_type_checkers():
    tree = ast.parse(Path(rmq.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and node.body[1:]
                and isinstance(node.body[0], ast.ImportFrom)]  # fmt: skip
    return {node.module: sorted(name.name for name in node.names) for node in block.body}


def test_each_name_is_imported_from_where_type_checkers_see_it():
    assert {m: sorted(names.split()) for m, names in MODULES.items()} == imports_for_type_checkers()


def test_every_public_name_is_there():
    errors = {name for name in rmq.__all__ if hasattr(rmq.errors, name)}
    assert sorted([*rmq._MODULE_OF, *errors]) == sorted(rmq.__all__)
    assert errors <= set(vars(rmq))  # imported at once: `rmq.errors` is loaded in any case
    assert all(getattr(rmq, name) is not None for name in rmq.__all__)
    assert set(rmq.__all__) <= set(dir(rmq))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Cliant'"):
        rmq.Cliant  # noqa: B018


def modules_after(code):
    told = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    return set(told.stdout.split())


def test_import_rmq_and_the_help_of_the_command_line_import_no_redis():
    shown = modules_after("import rmq.cli\ntry: rmq.cli.cli.main(['--help'])\nexcept SystemExit: 0")

    assert "rmq.cli_framework.app" in shown
    assert not shown & {
        "redis",
        "rich",
        "rmq.client",
        "rmq.worker",
        "rmq.features.topic_admin.cli.topics",
    }


def test_import_rmq_imports_no_framework_that_has_an_adapter():
    shown = modules_after("from rmq import *\nimport rmq.cli.commands, rmq.server, rmq.connectors")

    assert "rmq.worker" in shown
    assert not shown & {"celery", "kombu", "django", "django_tasks", "taskiq", "rmq.integrations"}
