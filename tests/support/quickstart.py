"""Loads the config of the quick start with overrides, and returns the problems that these cause."""

from __future__ import annotations

import copy
from typing import Any

import yaml
from paths import ROOT

from ppcls.config.base.errors import ConfigError
from ppcls.config.base.overrides import Override
from ppcls.config.base.yaml import read_yaml
from ppcls.recipe.load import dump_config, validate
from ppcls.recipe.schema import Config

PATH = ROOT / "configs/quickstart.yaml"
TREE = read_yaml(PATH)


def read(*overrides: str, tree: dict[str, Any] = TREE) -> Config:
    """Returns the config with these overrides."""
    tree = copy.deepcopy(tree)
    for override in overrides:
        Override.parse(override).apply(tree)
    return validate(tree, "tree")


def problems(*overrides: str, tree: dict[str, Any] = TREE) -> list[str]:
    """Returns the problems of the config with these overrides; a valid config must survive a dump."""
    try:
        config = read(*overrides, tree=tree)
    except ConfigError as error:
        return list(error.problems)
    assert validate(yaml.safe_load(dump_config(config)), "dump") == config
    return []
