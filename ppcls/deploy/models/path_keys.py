"""Keys of configs whose values are paths, names of modules, or addresses of servers.

They are apart from `ppcls.deploy.models.untrusted`, because that module reads whole configs, and descriptions
of exported models must not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ppcls.data.index.class_names import IMAGENET_NAMES

NAMES_KEY = "class_id_map_file"
PATH_KEYS = frozenset(
    {
        *("output_dir", "save_inference_dir", "checkpoint_fallback_dir", "checkpoints"),
        *("pretrained_model", "pretrained", "pretrained_list"),
        *("import_modules", "hooks", "loggers"),
        *("infer_imgs", "class_id_map_file", "weights_file"),
        *("image_root", "cls_label_path", "sample_list_path", "label_root", "bad_images"),
        *("paths", "index_paths", "data_file", "image_file", "label_file"),
    }
)


def remove_paths(tree: Any, own: Sequence[str] = ()) -> list[str]:
    """Removes all paths, modules and addresses from plain data, in place, and returns their keys.

    Args:
        tree: Plain data.
        own: Keys that the user has set. They, and what they contain, remain.
    """
    return list(_remove_paths(tree, "", own))


def _remove_paths(node: Any, where: str, own: Sequence[str]) -> Iterator[str]:
    """Removes all paths, modules and addresses from plain data, in place, and yields their keys.

    ImageNet's class names remain: ppcls contains this file, and PaddleClas's configs name it.

    Args:
        node: Plain data.
        where: Key of the data in the config.
        own: Keys that the user has set. They, and what they contain, remain.
    """
    children: list[tuple[Any, Any]] = []
    if isinstance(node, dict):
        children = list(node.items())
    elif isinstance(node, list):
        children = list(enumerate(node))
    for key, value in children:
        path = f"{where}.{key}" if where else str(key)
        if path in own:
            continue
        if key not in PATH_KEYS:
            yield from _remove_paths(value, path, own)
        elif key == NAMES_KEY and isinstance(value, str) and Path(value).name == IMAGENET_NAMES.name:
            node[key] = IMAGENET_NAMES.name
        else:
            del node[key]
            if value is not None:
                yield path
