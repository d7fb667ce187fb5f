"""Finds data sets in a config before its validation, and changes its output folder."""

from __future__ import annotations

from typing import Any

from ppcls.config.base.tree import Tree, node_at


def splits(tree: Tree) -> list[str]:
    """Returns the paths of the data sets in a config, such as ``DataLoader.Train``."""
    paths = [f"DataLoader.{name}" for name in ("Train", "Eval", "Eval.Query", "Eval.Gallery")]
    return [path for path in paths if isinstance(node_at(tree, f"{path}.dataset"), dict)]


def set_output(tree: Tree, folder: str) -> dict[str, Any]:
    """Returns the keys to change for a new output folder.

    If the folder of exported models is in the old output folder, it moves to the new one.
    """
    overrides = {"Global.output_dir": folder}
    before = node_at(tree, "Global.output_dir")
    exported = node_at(tree, "Global.save_inference_dir")
    if isinstance(before, str) and isinstance(exported, str) and exported.startswith(f"{before}/"):
        overrides["Global.save_inference_dir"] = folder + exported.removeprefix(before)
    return overrides
