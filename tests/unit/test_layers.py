"""CONTRIBUTING.md draws the layers that the import contract holds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def contract() -> list[set[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (layers,) = [
        contract["layers"]
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == ["rmq"]
    ]
    return [set(layer.split(" | ")) for layer in layers]


def drawing(text: str) -> list[set[str]]:
    _, _, table = text.partition("| layer | what is inside |\n| --- | --- |\n")
    rows = re.findall(r"^\| ((?:`\w+` ?)+) \|", table, re.MULTILINE)
    return [set(re.findall(r"\w+", row)) for row in rows]


def test_contributing_draws_the_layers_of_the_contract() -> None:
    assert drawing((ROOT / "CONTRIBUTING.md").read_text()) == contract()


def test_a_layer_that_is_missing_in_the_drawing_is_found() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()

    assert drawing(re.sub(r"^\| `client`.*\n", "", text, flags=re.MULTILINE)) != contract()
