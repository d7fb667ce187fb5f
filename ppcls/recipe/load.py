"""Loads a config: reads its file, applies overrides, translates old keys, and validates the result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError
from typing_extensions import Self

from ppcls.config.base.errors import ConfigError, place
from ppcls.config.base.fields import MODULE_NAME
from ppcls.config.base.overrides import Override, Overrides, plain, read_overrides
from ppcls.config.base.problems import UNKNOWN_KEYS, show
from ppcls.config.base.section import Section
from ppcls.config.base.tree import Tree, mapping_at, node_at
from ppcls.config.base.yaml import MAX_LENGTH, TOO_LONG, dump_section, read_yaml
from ppcls.errors import UserError
from ppcls.recipe.class_folders import fill_from_class_folders
from ppcls.recipe.compat import translate_old_keys
from ppcls.recipe.image_sizes import fill_image_sizes
from ppcls.recipe.paddleclas import (
    INFERENCE_KEY,
    describe_other_file,
    is_paddleclas,
    limit_topk,
    translate_paddleclas,
)
from ppcls.recipe.published import published_names, read_published
from ppcls.recipe.schema import Config
from ppcls.recipe.unknown_keys import describe_errors
from ppcls.recipe.warmup import fit_warmup
from ppcls.registry import import_user_module, suggest

AnySection = TypeVar("AnySection", bound=Section)
# If an override changes one of these keys, the config drops what was measured with other values.
_TUNED = ("Arch.name", "Arch.data_format", "Global.fused_kernels")
_NAMES = "Infer.PostProcess.class_id_map_file"
_INSTALLED = Path(__file__).parents[1] / "configs"  # in a checkout, this is a link to configs/
_UNUSABLE = re.compile("[\0\ud800-\udfff]")  # characters that file names can't contain


class ConfigSource:
    """A config before its validation: its values, and where each value comes from.

    A command reads its file once, with `read`. It applies short options and ``-o``, which may look at the
    values that are set so far, and then calls `load` once.

    Args:
        tree: Values of the file as plain data. They are changed in place.
        name: Name of the file, for error messages.

    Attributes:
        tree: All values that are set so far. After `load`, older keys are translated.
        name: The argument ``name``.
        origins: Paths of values that do not come from the file, each with its `Override.origin`, in order.
        notes: Lines for the log about the source, such as the file that was read for a path of PaddleClas.
        fits_warmup: Whether `load` shortens the warm-up of the file to the length of the run. True if ppcls
            chose the file or the number of epochs.
    """

    def __init__(self, tree: Tree, name: str, notes: tuple[str, ...] = ()) -> None:
        self.tree = tree
        self.name = name
        self.notes = notes
        self.origins: dict[str, str] = {}
        self.fits_warmup = False

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Reads a YAML file.

        If the file does not exist, a config of the package with this name is read, such as
        ``configs/ResNet50.yaml`` or ``ResNet50``, or the recipe for a path of PaddleClas's tree.

        Raises:
            UserError: The file does not exist, is not a regular file or can't be read.
            ConfigError: The file is not YAML, has a duplicate key, or is not a mapping.
        """
        path = Path(path)
        try:
            return cls(read_yaml(path), str(path))
        except FileNotFoundError:
            if (published := read_published(path, _INSTALLED)) is not None:
                tree, note = published
                return cls(tree, str(path), (note,))
            installed = _INSTALLED / path.with_suffix(".yaml").name if path.name else path
            if str(path.parent) not in (".", "configs") or not installed.is_file():
                raise UserError(f"{path}: no such config file{_suggest_config(path)}") from None
            return cls(read_yaml(installed), str(path))

    def apply(self, overrides: Iterable[Override]) -> None:
        """Sets values, in order.

        Raises:
            ConfigError: The config has no place for a value.
        """
        tuned = [node_at(self.tree, path) for path in _TUNED]
        folders = _data_folders(self.tree)
        for override in overrides:
            override.apply(self.tree)
            self.origins.pop(override.path, None)  # the last override of a path must be the last item
            self.origins[override.path] = override.origin
        # Options of a command that resumes a run often repeat the values of the run.
        if [node_at(self.tree, path) for path in _TUNED] != tuned:
            mapping_at(self.tree, "Global").pop("autotuned", None)
        if not any(f"{_NAMES}.".startswith(f"{path}.") for path in self.origins):
            self._move_names(folders)

    def _move_names(self, old_folders: tuple[Path, ...]) -> None:
        """Reads the class names beside other training data, if the old names were beside the old data.

        The old names would be wrong for the labels of the other data.

        Args:
            old_folders: Previous result of `_data_folders`.
        """
        names = node_at(self.tree, _NAMES)
        folders = _data_folders(self.tree)
        if not isinstance(names, str) or not folders:
            return
        old_folder = Path(names).parent
        if {*old_folders} == {old_folder} and old_folder not in folders:
            names = folders[-1] / Path(names).name
            Override.of_value(_NAMES, names).apply(self.tree)  # no origin, because no option set it

    def load(self) -> Config:
        """Translates older keys, then returns the validated config. Must be called only once.

        Raises:
            UserError: An image folder whose classes must be counted can't be read, images of different sizes
                can't form a batch, or a module of
                ``Global.import_modules`` can't be imported.
            ConfigError: The config is invalid. The message lists all problems.
        """
        self._check_texts()
        if reason := describe_other_file(self.tree):
            raise self._error([reason])
        _import_modules(self.tree)
        # Before the translation of old keys, which removes the key. An override may set it in any file.
        from_paddleclas = is_paddleclas(self.tree) and INFERENCE_KEY not in self.origins
        translate_old_keys(self.tree)
        translate_paddleclas(self.tree, from_paddleclas)
        if self.fits_warmup:
            for key, value in fit_warmup(self.tree, self.origins).items():
                Override.of_value(key, value).apply(self.tree)  # no origin, because no option set it
        self.finish_tree()
        try:
            fill_from_class_folders(self.tree)
            self.notes += tuple(fill_image_sizes(self.tree))
        except UserError as error:
            try:
                self.validate()
            except ConfigError as invalid:
                raise UserError(f"{error}\n{invalid}") from None
            raise
        if from_paddleclas:
            self.notes += tuple(limit_topk(self.tree, self.origins))
        config = self.validate()
        config.set_notes(self.notes)
        if from_paddleclas:
            config.mark_from_paddleclas()
        return config

    def finish_tree(self) -> None:
        """Changes values after the translation of older keys and before they are used. Does nothing here."""

    def validate(self) -> Config:
        """Returns the validated config. Older keys, which `load` translates, are unknown keys here.

        Raises:
            ConfigError: The config is invalid. The message lists all problems.
        """
        return self.validate_as(Config)

    def validate_as(self, section: type[AnySection]) -> AnySection:
        """Returns the validated values of another class, for files that contain only a part of a config.

        Raises:
            ConfigError: A value is invalid. The message lists all problems.
        """
        self._check_texts()
        try:
            return section.model_validate(self.tree)
        except ValidationError as error:
            if self._drop_keys_of_replaced_components(error):
                return self.validate_as(section)
            raise self._error(describe_errors(self.tree, error, section)) from None

    def _drop_keys_of_replaced_components(self, error: ValidationError) -> bool:
        """Removes keys of the file that belong to a component whose ``name`` an override replaced.

        With ``-o Optimizer.name=AdamW``, the file's ``Optimizer.momentum`` belongs to the optimizer that the
        user replaced. Keys that the user typed are never removed.

        Returns:
            Whether a key was removed.
        """
        dropped: dict[str, list[str]] = {}
        for details in error.errors(include_url=False):
            path = place(self.tree, details["loc"])
            parent, _, key = path.rpartition(".")
            replaced = f"{parent}.name" in self.origins
            typed = any(f"{set_path}.".startswith(f"{path}.") for set_path in self.origins)
            if details["type"] in UNKNOWN_KEYS and replaced and not typed:
                del mapping_at(self.tree, parent)[key]
                dropped.setdefault(parent, []).append(key)
        for parent, keys in dropped.items():
            self.notes += (
                f"{self.name}: {parent}: {', '.join(keys)} of the file not used, because "
                f"{self.origins[f'{parent}.name']} replaces the component",
            )
        return bool(dropped)

    def _error(self, problems: list[str]) -> ConfigError:
        return ConfigError(self.name, problems, self.origins)

    def _check_texts(self) -> None:
        """Checks all text for its length, and for characters that file names can't contain."""
        if problems := list(_text_problems(self.tree, "")):
            raise self._error(problems)


def _data_folders(tree: Tree) -> tuple[Path, ...]:
    """Returns the folders of the images and of the labels for training.

    Returns:
        An empty tuple if the data set has no files of labels.
    """
    dataset = mapping_at(tree, "DataLoader.Train.dataset")
    is_idx = dataset.get("name") == "IdxDataset"
    images, labels = ("image_file", "label_file") if is_idx else ("image_root", "cls_label_path")
    if not isinstance(dataset.get(images), str) or not isinstance(dataset.get(labels), str):
        return ()
    place = Path(dataset[images])
    return place.parent if is_idx else place, Path(dataset[labels]).parent


def _text_problems(node: Any, path: str) -> Iterator[str]:
    if isinstance(node, dict):
        for key, child in node.items():
            yield from _text_problems(child, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for position, child in enumerate(node):
            yield from _text_problems(child, f"{path}[{position}]")
    elif isinstance(node, str) and len(node) > MAX_LENGTH:
        yield f"{path}: {TOO_LONG}"
    elif isinstance(node, str) and _UNUSABLE.search(node):
        yield f"{path}: contains a NUL or surrogate character: {show(node)}"


def _suggest_config(path: Path) -> str:
    """Returns the hint for a missing file: similar configs in its folder or in ppcls."""
    here = [file.name for file in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    if here and path.parent != Path():
        return suggest(path.name, here)
    installed = {file.stem for file in _INSTALLED.glob("*.yaml")}
    # ResNet50_fp16 is suggested for ResNet50_fp16_dygraph.
    shorter = [name for name in installed if path.stem.startswith(name)]
    if shorter:
        hint = f"; ppcls has -c {max(shorter, key=len)}"
    else:
        hint = suggest(path.stem, [*here, *installed], f"ppcls has: {', '.join(sorted(installed))}")
    if "configs/ImageNet/" in path.as_posix():
        known = sorted({name.partition("/")[0] for name in published_names()})
        hint += (
            f"; of PaddleClas's files in configs/ImageNet, ppcls has those in {', '.join(known)}; for "
            "another one, give its path in a clone of PaddleClas"
        )
    elif "ppcls/configs/" in path.as_posix():
        hint += "; for a file of PaddleClas, give its path in a clone of PaddleClas"
    return hint


def validate(tree: Tree, name: Path | str) -> Config:
    """Returns the validated config of plain data with the current keys.

    Args:
        tree: Nested dicts and lists.
        name: Name of the config, for error messages.

    Raises:
        ConfigError: The config is invalid. The message lists all problems.
    """
    return ConfigSource(tree, str(name)).validate()


def load_config(source: Path | str | Mapping[str, Any], overrides: Overrides = ()) -> Config:
    """Loads, overrides and validates a config.

    Args:
        source: A YAML file, or its content as nested dicts and lists, which are not changed.
        overrides: Strings ``path=value``, as after ``-o``; or a mapping of paths to values, such as
            ``{"Global.epochs": 2}``. A path such as ``Global`` would replace the whole section. Overrides are
            applied in order, before validation.

    Raises:
        UserError: The file can't be read, or an image folder whose classes must be counted can't be read.
        ConfigError: The YAML, an override or the config is invalid.
    """
    if isinstance(source, Mapping):
        config = ConfigSource(cast(Tree, plain(source, "the config")), "the config")
    else:
        config = ConfigSource.read(source)
    config.apply(read_overrides(overrides))
    return config.load()


def _import_modules(tree: Tree) -> None:
    """Imports the modules of ``Global.import_modules``, which can register components."""
    names = node_at(tree, "Global.import_modules")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and MODULE_NAME.fullmatch(name):  # validation reports invalid names
            import_user_module(name, "Global.import_modules")


def dump_config(config: Config, *, ascii_only: bool = False) -> str:
    """Returns the config, including all defaults, as YAML text that `load_config` can read.

    Args:
        ascii_only: Whether to escape all characters other than ASCII.
    """
    return dump_section(config, ascii_only=ascii_only)
