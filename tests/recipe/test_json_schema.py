"""The JSON schema of the config, which editors read: it accepts what a run accepts, and finds wrong keys."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from paths import ROOT

from ppcls.config.base.tree import node_at
from ppcls.config.base.yaml import parse_yaml
from ppcls.recipe import json_schema
from ppcls.recipe.json_schema import main, write_schema
from ppcls.recipe.load import load_config

CONFIGS = [
    path
    for folder in ("configs", "examples")
    for path in sorted((ROOT / folder).glob("*.yaml"))
    if path.name not in ("tune.yaml", "custom_parts.yaml")  # no config; own components
]


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    schema = write_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def tree(path: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = parse_yaml(path.read_text(), path)
    return parsed


def test_shipped_schema_is_the_schema_of_the_classes() -> None:
    assert json.loads((ROOT / "configs" / "schema.json").read_text()) == write_schema(), (
        "run: python -m ppcls.recipe.json_schema configs/schema.json"
    )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_config_names_the_schema_and_satisfies_it(path: Path, validator: jsonschema.Draft7Validator) -> None:
    line = path.read_text().splitlines()[0]
    name = line.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / name).resolve() == (ROOT / "configs" / "schema.json").resolve()
    assert [error.message for error in validator.iter_errors(tree(path))] == []


@pytest.mark.parametrize(
    "path", [path for path in CONFIGS if path.name != "python_source.yaml"], ids=lambda path: path.name
)
def test_config_with_all_defaults_satisfies_the_schema(
    path: Path, validator: jsonschema.Draft7Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    overrides = {"Arch.class_num": 10} if node_at(tree(path), "Arch.class_num") == "auto" else {}
    complete = load_config(path, overrides).model_dump(mode="json")
    assert [error.message for error in validator.iter_errors(complete)] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Global.epochs", 0),
        ("Global.epoch", 3),
        ("Global.device", "tpu"),
        ("AMP.level", "O3"),
        ("Loss.Train", [{"CELos": {}}]),
        ("Loss.Train", [{"CELoss": {"epsilon": "large"}}]),
        ("Optimizer.name", "Adamm"),
        ("Optimizer.lr.name", "Cosines"),
        ("DataLoader.Train.sampler.batch_size", 1.5),
        ("DataLoader.Train.dataset.transform_ops", [{"DecodeImages": None}]),
    ],
)
def test_wrong_keys_and_values_are_found(key: str, value: Any, validator: jsonschema.Draft7Validator) -> None:
    config = tree(ROOT / "configs" / "ResNet50_fp16.yaml")
    assert validator.is_valid(config)
    *parents, last = key.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    node[last] = value
    assert not validator.is_valid(config)


def test_schema_contains_the_components_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    main([str(tmp_path / "mine.json"), "custom_parts"])
    validator = jsonschema.Draft7Validator(json.loads((tmp_path / "mine.json").read_text()))
    assert validator.is_valid(tree(ROOT / "examples" / "custom_parts.yaml"))


def test_missing_module_is_an_error_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["json_schema", "mine.json", "no_such_parts"])
    with pytest.raises(SystemExit, match=r"^error: the module: no module 'no_such_parts'"):
        runpy.run_path(json_schema.__file__, run_name="__main__")
