"""Short options for keys of the config, such as ``--epochs 20``, and the keys that they set."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeGuard

from ppcls.cli.arguments.hints import Hint, find_hint
from ppcls.cli.arguments.options import Option, read_options
from ppcls.commands import command_line, set_keys
from ppcls.config.base.tree import Tree, mapping_at, node_at
from ppcls.errors import UserError
from ppcls.files import real_path
from ppcls.recipe.places import set_output, splits

if TYPE_CHECKING:  # not needed for --help
    from ppcls.config.base.overrides import Override
    from ppcls.recipe.load import ConfigSource

_EVAL = "DataLoader.Eval.dataset"
PART_KEYS = ("part", "val_share", "split_seed")  # keys of a random part of an image folder


def apply_options(options: Any, source: ConfigSource) -> None:
    """Sets the values of the short options on a command line in a config.

    Raises:
        UserError: An option does not fit the config.
    """
    apply_values(type(options), vars(options), source)


def apply_values(cls: type[Any], values: Mapping[str, Any], source: ConfigSource) -> None:
    """Sets the values of short options in a config.

    Args:
        cls: Class that declares the options.
        values: Values by the name of the field. None and missing values set nothing.
        source: Config file.

    Raises:
        UserError: An option does not fit the config.
    """
    for option in key_options(cls):
        # One option after the other, because --image-size looks at the model that --model sets.
        source.apply(_overrides(option, values.get(option.field), source.tree))


def apply_arguments(command: str, cls: type[Any], values: Mapping[str, Any], source: ConfigSource) -> None:
    """Sets arguments of the Python API, which are short options of a command, in a config.

    Args:
        command: Name of the command.
        cls: Class that declares the options.
        values: Values by the name of the argument. None and missing values set nothing.
        source: Config file.

    Raises:
        UserError: An argument is unknown or invalid, or does not fit the config.
    """
    options = {option.field: option for option in key_options(cls)}
    for name, value in values.items():
        if name not in options:
            from ppcls.registry import suggest  # reads the table of architectures

            values_typed = [] if value is True else [str(value)]
            if any(option.field == name for option in read_options(cls)):
                written = shlex.join([f"--{name.replace('_', '-')}", *values_typed])
                raise UserError(
                    f"{name}: only the command has this option: `ppcls {command} FOLDER {written}`"
                )
            hint = find_hint(command, name.replace("_", "-").lower(), values_typed)
            known = (
                suggest(name, list(options)) if hint is None else f"; {_in_python(command, hint, options)}"
            )
            raise UserError(f"unknown option '{name}'{known}")
    for name, option in options.items():
        value = option.convert(values.get(name))
        source.apply(_overrides(option, value, source.tree, f"{name}={value!r}"))


def _in_python(command: str, hint: Hint, known: Collection[str]) -> str:
    """Returns a hint for the Python API, or the command if only that has the options of the hint.

    Args:
        command: Name of the command.
        hint: The hint.
        known: Names of the arguments of the Python API.
    """
    names = {word.lstrip("-").replace("-", "_") for word in hint.words if word.startswith("--")}
    if names <= set(known):
        return hint.in_python()
    use = f"use the command: `ppcls {command} FOLDER {shlex.join(hint.words)}`"
    return ": ".join(filter(None, [use, hint.text]))


def model_overrides(options: Any) -> list[Override]:
    """Returns the overrides of a command that accepts models: the short options, then those of ``-o``.

    The command does not read the config itself, because an exported model has only a part of it.
    """
    from ppcls.config.base.overrides import Override

    short = [
        override
        for option in key_options(type(options))
        for override in _overrides(option, getattr(options, option.field), {})
    ]
    return [*short, *map(Override.parse, options.override)]


def _overrides(option: Option, value: Any, tree: Tree, origin: str | None = None) -> list[Override]:
    from ppcls.config.base.overrides import Override

    if value is None or value is False:
        return []
    sets = option.argument.settings.get("sets")
    values = sets(tree, value) if sets is not None else {str(option.key): value}
    origin = origin or (option.name if value is True else f"{option.name} {value}")
    return [Override.of_value(key, setting, origin) for key, setting in values.items()]


def key_options(cls: type[Any]) -> list[Option]:
    """Returns the options that set keys of the config, in the order in which they are applied."""
    return [each for each in read_options(cls) if each.key is not None]


def set_train_data(tree: Tree, folder: str) -> dict[str, Any]:
    """Returns the keys of the folder of ``DataLoader.Train``, and of every other data set that has one.

    Raises:
        UserError: The config reads IDX files, and the folder is a file or has class folders instead.
    """
    paths = ["DataLoader.Train", *(path for path in splits(tree) if _has_folder(tree, path))]
    overrides = {key: value for path in paths for key, value in _folder_keys(tree, path, folder).items()}
    if _reads_idx(tree, "DataLoader.Train"):
        _check_idx_folder(overrides, folder, f"`{command_line('train', folder)}` trains on them")
    return overrides


def _reads_idx(tree: Tree, path: str) -> bool:
    return bool(node_at(tree, f"{path}.dataset.name") == "IdxDataset")


def _has_folder(tree: Tree, path: str) -> bool:
    return _reads_idx(tree, path) or node_at(tree, f"{path}.dataset.image_root") is not None


def _folder_keys(tree: Tree, path: str, folder: str) -> dict[str, str]:
    """Returns the keys with which a data set reads another folder.

    Args:
        tree: The config.
        path: Path of the data set, such as ``DataLoader.Train``.
        folder: Folder of the images; of an `IdxDataset`, the folder with files of the same names, which may
            differ in whether they are compressed.
    """
    if not _reads_idx(tree, path):
        return {f"{path}.dataset.image_root": folder}
    files = {}
    for key in (f"{path}.dataset.image_file", f"{path}.dataset.label_file"):
        if not isinstance(before := node_at(tree, key), str):
            continue  # the validation reports it
        file = Path(folder) / Path(before).name
        other = file.with_suffix("") if file.suffix == ".gz" else file.with_name(f"{file.name}.gz")
        files[key] = str(other if other.exists() and not file.exists() else file)
    return files


def _check_idx_folder(files: Mapping[str, str], folder: str, remedy: str) -> None:
    """Checks that a folder is no file and no image folder, if it lacks the IDX files of a config.

    Args:
        files: Paths of the IDX files, by their keys.
        folder: Folder that the user named.
        remedy: What to do with class folders, for the message.

    Raises:
        UserError: The folder is a file, or has class folders and none of the files.
    """
    if any(Path(file).exists() for file in files.values()):
        return
    name = Path(next(iter(files.values()), "")).name
    if Path(folder).is_file():
        raise UserError(
            f"{folder}: expected a folder with IDX files, which this config reads, such as {name}, found a "
            "file; docs/data.md#sources lists what other configs read"
        )
    from ppcls.data.index.class_names import join_first  # imports NumPy, which --help does not need
    from ppcls.recipe.folder_hints import list_filled_classes

    if classes := list_filled_classes(Path(folder)):
        raise UserError(
            f"{folder}: expected IDX files, which this config reads, such as {name}, found class folders "
            f"({join_first(classes)}); {remedy}"
        )


def set_model(tree: Tree, model: str) -> dict[str, Any]:
    """Returns the settings of an architecture and of the preprocessing for its published weights.

    A mean, standard deviation or interpolation in the config is not changed if it differs from that of the
    config's architecture.
    """
    from ppcls.zoo import architecture  # reads a large table, which --help does not need

    overrides: dict[str, Any] = {"Arch.name": model}
    before = architecture(str(node_at(tree, "Arch.name")))
    after = architecture(model)
    for path in _transform_lists(tree):
        for position, transform in enumerate(node_at(tree, path) or []):
            for kind, parameters in transform.items() if isinstance(transform, dict) else ():
                settings = parameters if isinstance(parameters, dict) else {}
                key = f"{path}.{position}.{kind}"
                for name in ("mean", "std") if kind == "NormalizeImage" else ():
                    if settings.get(name) == list(getattr(before, name)) != list(getattr(after, name)):
                        overrides[f"{key}.{name}"] = list(getattr(after, name))
                used = settings.get("interpolation", "bilinear")
                if kind == "ResizeImage" and used == before.interpolation != after.interpolation:
                    backend = "cv2" if after.interpolation == "bilinear" else "pil"
                    overrides |= {f"{key}.interpolation": after.interpolation, f"{key}.backend": backend}
    return overrides


def _transform_lists(tree: Tree) -> list[str]:
    """Returns the paths of the lists of transforms in a config. Those of ``DataLoader.Train`` are last."""
    return ["Infer.transforms", *(f"{path}.dataset.transform_ops" for path in reversed(splits(tree)))]


def set_eval_splits(key: str) -> Callable[[Tree, Any], dict[str, Any]]:
    """Returns a function that sets a key of every data set for evaluation."""
    return lambda tree, value: {
        f"{path}.{key}": value for path in splits(tree) if path.startswith("DataLoader.Eval")
    }


def set_eval_data(tree: Tree, folder: str) -> dict[str, Any]:
    """Returns the keys of the image folder of every data set for evaluation.

    If a random part of the training folder was kept for evaluation, another folder is evaluated as a whole.

    Raises:
        UserError: The config reads IDX files, and the folder is a file or has class folders instead.
    """
    overrides: dict[str, Any] = {}
    for path in _eval_splits(tree):
        overrides |= _folder_keys(tree, path, folder)
    if _reads_idx(tree, "DataLoader.Eval"):
        keys = {f"{_EVAL}.name": "ImageFolderDataset", f"{_EVAL}.image_root": folder}
        _check_idx_folder(overrides, folder, f"instead of --data, use {set_keys(keys)}")
    return overrides | _whole_folder(tree, folder)


def _eval_splits(tree: Tree) -> list[str]:
    return [path for path in splits(tree) if path.startswith("DataLoader.Eval")]


def _whole_folder(tree: Tree, folder: str) -> dict[str, Any]:
    """Returns the keys with which all images of a folder are evaluated, unless it is the training folder."""
    from ppcls.data.index.folders import ImageFolderDataset

    defaults = ImageFolderDataset.model_fields
    return {
        f"{path}.dataset.{key}": defaults[key].default
        for path in _eval_splits(tree)
        if node_at(tree, f"{path}.dataset.part") is not None and is_other_folder(tree, folder)
        for key in PART_KEYS
    }


def part_overrides(texts: Sequence[str], tree: Tree) -> list[Override]:
    """Returns the overrides with which ``-o`` evaluates all images of another folder, as ``--data`` does.

    Args:
        texts: Values of ``-o``.
        tree: Config to which they are not applied yet.
    """
    from ppcls.config.base.overrides import Override

    values = {override.path: override.value for override in map(Override.parse, texts)}
    folder = values.get(f"{_EVAL}.image_root")
    if not isinstance(folder, str) or any(f"{_EVAL}.{key}" in values for key in PART_KEYS):
        return []
    return [
        Override.of_value(key, value, f"-o {_EVAL}.image_root={folder}")
        for key, value in _whole_folder(tree, folder).items()
    ]


def is_other_folder(tree: Tree, folder: str) -> bool:
    """Returns whether a folder is not the training folder, and has no subfolders ``train`` and ``val``."""
    from ppcls.data.index.class_folders import find_class_root
    from ppcls.data.stored.roots import data_root

    trained = node_at(tree, "DataLoader.Train.dataset.image_root")
    if isinstance(trained, str) and (
        _may_be_same(Path(trained), Path(folder)) or _is_moved(tree, Path(trained), Path(folder))
    ):
        return False
    try:
        return not find_class_root(data_root(folder), "val")[1]
    except UserError:  # only one of these subfolders, which is reported when the images are listed
        return False


def _may_be_same(trained: Path, folder: Path) -> bool:
    """Returns whether a folder is the training folder, or may be it because the run started elsewhere."""
    if trained.is_absolute() or trained.exists():
        return real_path(trained) == real_path(folder)
    parts = PurePath(os.path.normpath(trained)).parts
    return real_path(folder).parts[-len(parts) :] == parts


def _is_moved(tree: Tree, trained: Path, folder: Path) -> bool:
    """Returns whether a folder has the evaluated images of a run whose training folder no longer exists.

    The report of the run lists the mistakes. Evaluating the training images would give a wrong accuracy.
    """
    model = node_at(tree, "Global.pretrained_model")
    if trained.exists() or not isinstance(model, str):
        return False
    from ppcls.report.stored_evaluation import EVALUATION_FILE, read_evaluation

    # A checkpoint RUN/checkpoints/step_8, to which RUN/best_model leads, or a copy RUN/best_model.
    stored = (read_evaluation(parent / EVALUATION_FILE) for parent in real_path(Path(model)).parents[:2])
    names = next((evaluation.names for evaluation in stored if evaluation is not None), ())
    try:
        paths = [Path(name).relative_to(trained) for name in names]
    except ValueError:  # images of another folder
        return False
    return bool(paths) and all((folder / path).is_file() for path in paths)


def set_pretrained(_tree: Tree, weights: str | bool) -> dict[str, Any]:
    """Returns the keys of the initial weights: a path, or True for the published weights.

    The words ``True`` and ``imagenet``, which other tools accept, mean the published weights, and ``False``
    means none.
    """
    words = {"true": True, "imagenet": True, "false": False}
    if isinstance(weights, str) and not Path(weights).exists():
        weights = words.get(weights.lower(), weights)
    if isinstance(weights, bool):
        return {"Arch.pretrained": weights, "Global.pretrained_model": None}
    return {"Global.pretrained_model": weights}


def set_head(tree: Tree, chosen: bool) -> dict[str, Any]:
    """Returns the keys of a linear head. It needs weights, so ``Arch.pretrained: auto`` requires them."""
    if not chosen:
        return {}
    overrides: dict[str, Any] = {"LinearHead": node_at(tree, "LinearHead") or {}, "Global.epochs": 1}
    if node_at(tree, "Arch.pretrained") == "auto":
        overrides["Arch.pretrained"] = True
    return overrides


def set_next_output(tree: Tree, _value: bool) -> dict[str, Any]:
    """Returns the keys of the first free output folder: itself, or with ``-2``, ``-3`` behind.

    Raises:
        UserError: There are several processes, which could find different folders.
    """
    from ppcls.runtime.launch import read_launch

    if read_launch().world_size > 1:
        raise UserError(
            "--increment-output: expected one process; with several, set --output to a new folder"
        )
    folder = Path(str(node_at(tree, "Global.output_dir") or "output"))
    if not folder.is_dir() or not any(folder.iterdir()):
        return {}
    name = next(name for number in itertools.count(2) if not os.path.lexists(name := f"{folder}-{number}"))
    return set_output(tree, name)


def set_on_error(tree: Tree, action: str) -> dict[str, Any]:
    """Returns the keys of the action on a bad image, of all data sets."""
    paths = splits(tree) or ["DataLoader.Train", "DataLoader.Eval"]
    return {f"{path}.dataset.on_error": action for path in paths}


def set_workers(tree: Tree, workers: int) -> dict[str, Any]:
    """Returns the keys of the numbers of processes and threads. DALI needs at least one thread."""
    keys = ["num_workers", "dali.num_threads"] if workers else ["num_workers"]
    return {f"{path}.loader.{key}": workers for path in splits(tree) for key in keys}


def set_amp(_tree: Tree, level: str) -> dict[str, Any]:
    """Returns the keys that enable mixed precision at a level."""
    return {"AMP.use_amp": True, "AMP.level": level}


def set_learning_rate(tree: Tree, rate: float) -> dict[str, Any]:
    """Returns the keys of the learning rate: its first value in Piecewise, the highest one in cycles.

    The other rates of the schedule are scaled by the same factor.
    """
    schedule = mapping_at(tree, "Optimizer.lr")
    values = schedule.get("values")
    if isinstance(values, list) and values and all(_is_rate(value) for value in values):
        scaled = [_scaled(value, rate / values[0]) for value in values]
        first = {"Optimizer.lr.learning_rate": rate} if "learning_rate" in schedule else {}
        return {"Optimizer.lr.values": scaled, **first}
    highest = schedule.get("max_learning_rate")
    if _is_rate(highest):
        others = ("base_learning_rate", "end_learning_rate")
        return {
            "Optimizer.lr.max_learning_rate": rate,
            **{
                f"Optimizer.lr.{key}": _scaled(schedule[key], rate / highest)
                for key in others
                if _is_rate(schedule.get(key))
            },
        }
    return {"Optimizer.lr.learning_rate": rate}


def _is_rate(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _scaled(rate: float, factor: float) -> float:
    return float(f"{rate * factor:.6g}")


def set_image_size(tree: Tree, side: int) -> dict[str, Any]:
    """Returns the keys of all sizes in the transforms, scaled for square images of ``side`` pixels."""
    from ppcls.zoo import architecture

    for path in splits(tree):
        for key in ("sampler.scales", "input_size"):
            if node_at(tree, f"{path}.{key}") is not None:
                raise UserError(f"--image-size {side}: {path}.{key} sets the image sizes; change them there")
    sizes = {path: dict(_sizes(path, node_at(tree, path))) for path in _transform_lists(tree)}
    channels, height, width = node_at(tree, "Global.image_shape") or (3, 224, 224)
    for chain_sizes in sizes.values():  # the last size in a list of transforms is the model's input size
        if final := [size for key, size in chain_sizes.items() if key.endswith(".size")]:
            width, height = final[-1]
            break
    overrides: dict[str, Any] = {"Global.image_shape": [channels, side, side]}
    for key, size in (item for chain_sizes in sizes.values() for item in chain_sizes.items()):
        if key.endswith(".resize_short"):
            overrides[key] = round(size[0] * side / min(width, height))
        else:
            scaled = [round(size[0] * side / width), round(size[1] * side / height)]
            overrides[key] = scaled[0] if scaled[0] == scaled[1] else scaled
    if architecture(str(node_at(tree, "Arch.name"))).patch:
        overrides["Arch.img_size"] = side
    return overrides


def _sizes(path: str, transforms: Any) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields the key, width and height of each valid size in a list of transforms."""
    for position, transform in enumerate(transforms if isinstance(transforms, list) else []):
        for name, settings in transform.items() if isinstance(transform, dict) else ():
            for key in ("size", "resize_short") if isinstance(settings, dict) else ():
                size = settings.get(key)
                pair = size if isinstance(size, list) else [size, size]
                if len(pair) == 2 and all(isinstance(number, int) for number in pair):
                    yield f"{path}.{position}.{name}.{key}", (pair[0], pair[1])
