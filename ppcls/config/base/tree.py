"""Functions for configs as plain data: nested dicts and lists that are not validated yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Tree = dict[str, Any]
STUDENT = "Student"  # default name of the model that distillation trains and evaluates, as in PaddleClas


def node_at(tree: Any, path: str) -> Any:
    """Returns the value at a path such as ``DataLoader.Train``; None if the path does not exist."""
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def mapping_at(tree: Any, path: str) -> Tree:
    """Returns the mapping at a path; if there is none, a new empty dict that is not part of the tree."""
    node = node_at(tree, path)
    return node if isinstance(node, dict) else {}


def model_sections(tree: Any) -> Iterator[Tree]:
    """Yields the sections in ``Arch`` that can have an architecture or a number of classes.

    These are ``Arch`` itself, its backbone and head, and the models of a ``DistillationModel``.
    """
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
    """Yields the path and value of every leaf, with paths such as ``Loss.Train.0.CELoss.weight``.

    A list without mappings is a leaf.
    """
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list) and any(isinstance(entry, dict) for entry in tree):
        for position, value in enumerate(tree):
            yield from leaves(value, f"{path}.{position}")
    else:
        yield path, tree


def copy_tree(node: Any) -> Any:
    """Returns a deep copy of plain data in which no dict or list occurs twice."""
    if isinstance(node, dict):
        return {key: copy_tree(value) for key, value in node.items()}
    if isinstance(node, list):
        return [copy_tree(value) for value in node]
    return node
