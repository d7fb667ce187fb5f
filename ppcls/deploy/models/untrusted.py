"""Reads models from elsewhere without running their code, and without using paths that they name.

A model that is loaded by its folder may come from a stranger. Its config could name Python modules in the
folder, a file to show line by line as names of classes, or a folder to write to. The config that a command
names with ``-c`` and the config of a run that resumes are the user's own, and are not read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ppcls.config.base.errors import split_path
from ppcls.config.base.problems import show
from ppcls.config.base.tree import Tree, mapping_at, node_at
from ppcls.deploy.models.path_keys import NAMES_KEY, remove_paths
from ppcls.errors import UserError
from ppcls.files import real_path
from ppcls.recipe.load import ConfigSource
from ppcls.recipe.schema import Config

TRUST = "--trust (in Python: trust=True)"
_MODULES = "Global.import_modules"
_OPTIONAL = frozenset(
    {"label_root", "bad_images", "index_paths"}
)  # a data set can be read without these keys


class UntrustedConfig(ConfigSource):
    """The config of a model from elsewhere, without the paths and modules that it names.

    Overrides are the user's own, and may name paths and modules.

    Args:
        tree: See `ConfigSource`.
        name: See `ConfigSource`.
        notes: See `ConfigSource`.

    Attributes:
        names_file: File of class names that the config names, which is not read; None without one.
        unread: Keys of data sets that `load` removed. No override sets them.
    """

    def __init__(self, tree: Tree, name: str, notes: tuple[str, ...] = ()) -> None:
        super().__init__(tree, name, notes)
        self.names_file = node_at(tree, f"Infer.PostProcess.{NAMES_KEY}")
        self.unread: list[str] = []
        self._modules = mapping_at(tree, "Global").pop("import_modules", None)

    def load(self) -> Config:
        """Returns the validated config; see `ConfigSource.load`.

        Raises:
            UserError: The config names modules.
        """
        if self._modules and node_at(self.tree, _MODULES) is None:
            raise UserError(
                f"{self.name}: {_MODULES} names Python modules, whose code would run: {show(self._modules)}. "
                f"If you trust the model, for example because you trained it, use {TRUST}"
            )
        return super().load()

    def finish_tree(self) -> None:
        """Removes all paths that no override sets, and data sets that cannot be read without them."""
        own = [".".join(split_path(path)) for path in self.origins]
        removed = remove_paths(self.tree, own)
        for path in removed:
            split, _, key = path.rpartition(".dataset.")
            if split and key not in _OPTIONAL:
                self.unread.append(path)
                # Query without Gallery would be useless, so both are removed.
                mapping_at(self.tree, "DataLoader").pop(split.split(".")[1], None)


def read_model_config(file: Path, *, trust: bool) -> ConfigSource:
    """Returns the config of a model.

    Args:
        file: The file ``config.yaml`` of a run or of a checkpoint.
        trust: Whether the config may name modules to import and paths to read and write.

    Raises:
        UserError: The file cannot be read.
    """
    return ConfigSource.read(file) if trust else UntrustedConfig.read(file)


def check_links(folder: Path, names: Iterable[str]) -> None:
    """Checks that files of a model are in its folder.

    Args:
        folder: Folder of the model, without links.
        names: Names of files or folders in it, which may be missing.

    Raises:
        UserError: One is a link that leads out of the folder.
    """
    for path in (folder / name for name in names):
        if path.is_symlink() and not real_path(path).is_relative_to(folder):
            raise UserError(
                f"{path}: a link that leads out of the folder of the model; replace it by its target, or, if "
                f"you trust the model, use {TRUST}"
            )
