"""An invalid value is reported at its own key, and causes no error at a key that nobody set."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from ppcls.config.base.errors import ConfigError, split_path
from ppcls.config.base.yaml import read_yaml
from ppcls.recipe.load import validate

CONFIGS = [
    *(ROOT / "configs" / f"{name}.yaml" for name in ("quickstart", "ResNet50_modern")),
    *(ROOT / "examples" / f"{name}.yaml" for name in ("embeddings", "few_labels", "imbalanced")),
]
INVALID = {"no such key": [1]}  # no key accepts this mapping


def places(node: Any, path: tuple[int | str, ...] = ()) -> list[tuple[int | str, ...]]:
    """Returns the paths of all values below a value: sections, list items and leaves."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    found = []
    for key, child in items:
        found += [(*path, key), *places(child, (*path, key))]
    return found


def replaced(tree: Any, path: tuple[int | str, ...]) -> Any:
    tree = copy.deepcopy(tree)
    node = tree
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = INVALID
    return tree


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_invalid_value_is_reported_only_at_its_key(file: Path) -> None:
    tree = read_yaml(file)
    evaluation = tree["DataLoader"]["Eval"]
    for split in evaluation.values() if "Query" in evaluation else [evaluation]:
        split["sampler"].pop("batch_size", None)  # its default depends on Train, which may be invalid
    for path in places(tree):
        with pytest.raises(ConfigError) as caught:
            validate(replaced(tree, path), "tree")
        if path == ("Arch", "name"):
            continue  # the other keys of Arch depend on the name, so they may be unknown too
        own = [str(key) for key in path]
        for problem in caught.value.problems:
            reported = split_path(problem.partition(": ")[0])
            shared = min(len(reported), len(own))
            assert reported[:shared] == own[:shared], f"{'.'.join(own)}: {problem}"
