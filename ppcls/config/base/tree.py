"""Configs as plain data: nested dicts and lists, before they are checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Tree = dict[str, Any]


def node_at(tree: Any, path: str) -> Any:
    """Returns the value at a path such as ``DataLoader.Train``; None if there is none."""
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def mapping_at(tree: Any, path: str) -> Tree:
    """Returns the mapping at a path; an empty one, which is not part of the tree, if there is none."""
    node = node_at(tree, path)
    return node if isinstance(node, dict) else {}


def model_sections(tree: Any) -> Iterator[Tree]:
    """Yields everything in ``Arch`` that may be a model or a head: with an architecture or classes."""
    arch = mapping_at(tree, "Arch")
    models = arch.get("models")
    named = [item for item in models if isinstance(item, dict)] if isinstance(models, list) else []
    sections = [
        arch,
        arch.get("Backbone"),
        arch.get("Head"),
        *(keys for item in named for keys in item.values()),
    ]
    yield from (section for section in sections if isinstance(section, dict))


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields path and value of every leaf, such as ``Loss.Train.0.CELoss.weight``.

    A list is a leaf unless it holds mappings.
    """
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list) and any(isinstance(entry, dict) for entry in tree):
        for position, value in enumerate(tree):
            yield from leaves(value, f"{path}.{position}")
    else:
        yield path, tree
