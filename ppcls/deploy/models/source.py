"""Where a model comes from: a config, a checkpoint, or an exported folder. Imports no Paddle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ppcls.config.base.errors import ConfigError
from ppcls.config.base.errors import describe as describe_errors
from ppcls.config.base.fields import Section
from ppcls.config.load import apply_override, load_config
from ppcls.config.objectives.embedding import RecModel
from ppcls.config.schema import Config
from ppcls.config.sections.infer import Infer
from ppcls.config.sections.loader import Dali
from ppcls.config.sections.run import Global
from ppcls.data.index.class_names import LABEL_LIST, read_class_names
from ppcls.deploy.models.description import DESCRIPTION, Description, describe, post_process, read_description
from ppcls.errors import UserError
from ppcls.weights.store import BEST, newest

ONNX = "inference.onnx"
PROGRAMS = ("inference.json", "inference.pdmodel")  # of Paddle 3, and of 2.6
_CONFIG = "config.yaml"
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Source:
    """A model that is not loaded yet.

    Attributes:
        file: The weights of a trained model, or the exported program.
        description: How its input is made, and what its output means.
        run: Device, threads, and whether DALI feeds.
        infer: How many images at once, and which where none are named.
        dali: How DALI feeds.
        config: Of a trained model; None for an exported one.
    """

    file: Path
    description: Description
    run: Global
    infer: Infer
    dali: Dali
    config: Config | None

    @property
    def needs_paddle(self) -> bool:
        """Whether Paddle runs the model; else onnxruntime does."""
        return self.file.suffix != ".onnx"

    @property
    def by_dali(self) -> bool:
        """Whether DALI feeds; else threads of ours."""
        return self.run.use_dali


class _Exported(Section):
    """What can be set for an exported model."""

    Global: Global
    Infer: Infer


def find_source(path: Path, overrides: Sequence[str] = ()) -> Source:
    """Finds what a path means.

    Args:
        path: A checkpoint folder, a run's output folder (its best model), an exported folder, its
            ``.onnx`` file, or the YAML file of a config.
        overrides: ``path=value`` each, of the config; for an exported model of ``Global`` and ``Infer``.

    Raises:
        UserError: There is no such thing, or what there is can't be used.
    """
    if path.suffix in (".yaml", ".yml") and path.name != DESCRIPTION:
        return configured(load_config(path, overrides))
    if path.suffix == ".onnx" or path.name in PROGRAMS:
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        return _exported(path, overrides)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; expected {_EXPECTED}")
    if (path / DESCRIPTION).is_file():
        return _exported(find_program(path), overrides)
    if not (path / _WEIGHTS).is_file():
        path = newest(BEST, path, _fallback_of(path)) or path
    if (path / _WEIGHTS).is_file() and (path / _CONFIG).is_file():
        return _checkpoint(path, overrides)
    raise UserError(f"{path}: not a model; expected {_EXPECTED}")


_EXPECTED = "a checkpoint folder such as output/best_model, or a folder that tools/export.py wrote"


def configured(config: Config) -> Source:
    """Returns the trained model that a config means.

    Raises:
        UserError: It has no ``Infer``, or there are no weights, or the file of names is wrong.
    """
    weights, settings = find_weights(config), need_infer(config)
    run = Path(config.Global.output_dir)
    return _trained(config, weights, settings.PostProcess.class_id_map_file, [weights, run])


def find_weights(config: Config) -> Path:
    """Returns ``Global.pretrained_model``, or the run's best model where none is given.

    Raises:
        UserError: Neither is there.
    """
    if config.Global.pretrained_model:
        return Path(config.Global.pretrained_model)
    run = Path(config.Global.output_dir)
    best = newest(BEST, run, config.Global.checkpoint_fallback_dir)
    if best is None:
        raise UserError(f"no weights: Global.pretrained_model is not set, and there is no {run / BEST}")
    return best


def _fallback_of(run: Path) -> str | None:
    """Returns where a run's checkpoints went while its folder took none, as its own config says."""
    file = run / _CONFIG
    return load_config(file).Global.checkpoint_fallback_dir if file.is_file() else None


def need_infer(config: Config) -> Infer:
    """Returns ``Infer``.

    Raises:
        UserError: There is none.
    """
    if config.Infer is None:
        raise UserError("the config has no section Infer, which says how images are prepared (transforms)")
    return config.Infer


def _checkpoint(folder: Path, overrides: Sequence[str]) -> Source:
    """Returns the model in a checkpoint, whose own names come first: its config may be of another machine."""
    file = folder / _CONFIG
    own, config = need_infer(load_config(file)), load_config(file, overrides)
    wanted = need_infer(config).PostProcess.class_id_map_file
    given = wanted if wanted != own.PostProcess.class_id_map_file else None
    run = folder.resolve().parent.parent  # of checkpoints that hold no names
    found = [each for each in (folder, run) if (each / LABEL_LIST).is_file()]
    return _trained(config, folder, given if found else wanted, found)


def _trained(config: Config, weights: Path, named: str | None, folders: Sequence[Path]) -> Source:
    lists = [Path(named)] if named else [each / LABEL_LIST for each in folders]
    listing = lists[0] if named else next((each for each in lists if each.is_file()), None)
    of_classes = not isinstance(config.Arch, RecModel)
    names = read_class_names(listing, config.Arch.class_num) if listing is not None and of_classes else None
    settings, split = need_infer(config), next(iter(config.DataLoader.evaluated.values()), None)
    return Source(
        weights,
        describe(config, settings, names),
        config.Global,
        settings,
        split.loader.dali if split is not None else Dali(),
        config,
    )


def _exported(file: Path, overrides: Sequence[str]) -> Source:
    description = read_description(file.parent)
    transforms = description.model_dump(mode="json")["PreProcess"]["transform_ops"]
    told = description.told
    tree: dict[str, Any] = {"Global": {}, "Infer": {"transforms": transforms}}
    if told is not None:
        tree["Infer"]["PostProcess"] = {"name": told.kind, **told.model_dump(mode="json")}
    for override in overrides:
        apply_override(tree, override)
    try:
        settings = _Exported.model_validate(tree)
    except ValidationError as error:
        where = f"{file.parent}: an exported model, of which -o sets values of Global and Infer"
        raise ConfigError(where, describe_errors(tree, error)) from None
    if settings.Infer.transforms != description.PreProcess.transform_ops:
        raise UserError(f"{file}: Infer.transforms are part of an exported model; export it anew")
    if told is None:
        if "PostProcess" in settings.Infer.model_fields_set:
            raise UserError(f"{file}: gives embeddings, no classes; remove Infer.PostProcess")
        return Source(file, description, settings.Global, settings.Infer, Dali(), None)
    named = settings.Infer.PostProcess.class_id_map_file
    names = read_class_names(Path(named), description.width) if named else description.names
    post = post_process(settings.Infer.PostProcess, names)
    try:
        description = Description.model_validate({**dict(description), "PostProcess": post})
    except ValidationError as error:
        raise ConfigError(file.parent, describe_errors(tree, error)) from None
    return Source(file, description, settings.Global, settings.Infer, Dali(), None)


def find_program(folder: Path) -> Path:
    """Returns the exported program in a folder; Paddle's where there is ONNX, too.

    Raises:
        UserError: There is none.
    """
    for name in (*PROGRAMS, ONNX):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder}: no model in it; expected {', '.join(PROGRAMS)} or {ONNX}")
