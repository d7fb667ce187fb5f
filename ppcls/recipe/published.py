"""Finds the recipe of ppcls for a path in PaddleClas's tree: ``ppcls/configs/ImageNet/ResNet/ResNet50.yaml``.

Commands from PaddleClas's documents then run as they are printed there. Files in a clone of PaddleClas come
first: a path is only looked up here if it does not exist.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from ppcls.config.base.overrides import Override
from ppcls.config.base.tree import Tree
from ppcls.config.base.yaml import read_yaml
from ppcls.zoo import read_table

_PATH = re.compile(r"(?:.*/)?configs/ImageNet/(\w+)/(\w+)\.yaml")


@cache
def _recipes() -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the recipes of ``published.yaml``, by folder and name of the file."""
    table = read_table(Path(__file__).with_name("published.yaml"))
    return {(recipe["folder"], name): recipe for recipe in table["recipes"] for name in recipe["names"]}


def published_names() -> list[str]:
    """Returns the paths of all recipes, relative to ``configs/ImageNet/``."""
    return [f"{folder}/{name}.yaml" for folder, name in _recipes()]


def read_published(path: Path, configs: Path) -> tuple[Tree, str] | None:
    """Returns the values of a recipe, and a note for the log that names its file; None for other paths.

    Args:
        path: Path in PaddleClas's tree.
        configs: Folder of the configs of ppcls.
    """
    match = _PATH.fullmatch(path.as_posix())
    recipe = _recipes().get((match[1], match[2])) if match else None
    if match is None or recipe is None:
        return None
    name = match[2]
    base = f"{recipe['base']}.yaml"
    tree = read_yaml(configs / base)
    values = {
        "Global.output_dir": f"./output/{name}",
        "Global.save_inference_dir": f"./inference/{name}",
        "Arch.name": name,
        **recipe["set"],
    }
    for key, value in values.items():
        Override.of_value(key, value).apply(tree)  # copies the value: recipes share some of theirs
    changed = [f"{key}={value}" for key, value in recipe["set"].items() if key != "Arch.name"]
    details = f", PaddleClas's {', '.join(changed)}" if changed else ""
    return tree, f"config {path}: configs/{base} with Arch.name={values['Arch.name']}{details}"
