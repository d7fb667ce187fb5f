"""Finds a model by a config, checkpoint, exported folder or architecture. Does not import Paddle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from glob import escape
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ppcls.arch.distillation_model import AnyArch
from ppcls.config.base.errors import ConfigError, describe_problems
from ppcls.config.base.overrides import Overrides, read_overrides
from ppcls.config.base.problems import show
from ppcls.config.base.section import Section
from ppcls.config.base.tree import node_at
from ppcls.data.index.class_names import LABEL_LIST, choose_names_file, find_names_file, read_class_names
from ppcls.data.loaders.section import Dali
from ppcls.deploy.models.description import (
    DESCRIPTION,
    ModelDescription,
    describe_model,
    describe_postprocess,
    read_description,
)
from ppcls.deploy.models.paddleclas_export import assume_description, read_paddleclas
from ppcls.deploy.models.programs.formats import NETWORK, PROGRAMS, check_version, explain_files
from ppcls.deploy.models.published import published_config
from ppcls.deploy.models.rejection import read_rejection
from ppcls.deploy.models.temperature import read_temperature
from ppcls.deploy.models.untrusted import TRUST, UntrustedConfig, check_links, read_model_config
from ppcls.engine.core.settings import CheckpointSettings
from ppcls.engine.evaluation.stored_names import find_listed
from ppcls.errors import UserError
from ppcls.files import file_states, print_error, real_path
from ppcls.files.urls import local_path
from ppcls.postprocess.section import Infer
from ppcls.recipe.load import ConfigSource, load_config
from ppcls.recipe.schema import Config
from ppcls.recipe.settings import Global
from ppcls.storage.models import weights_path
from ppcls.weights.manifest import MANIFEST, Manifest, verify
from ppcls.weights.store import BEST, LATEST, Store, newest
from ppcls.zoo import ZOO

ONNX = "inference.onnx"
OPENVINO = "inference.xml"  # its weights are in inference.bin
_CONFIG = "config.yaml"
_WEIGHTS = "model.safetensors"
_CHECKPOINTS = "checkpoints"  # folder of the checkpoints of a run
_CHECKPOINT = ("*.safetensors", _CONFIG, LABEL_LIST, MANIFEST)
_NAMES_KEY = "Infer.PostProcess.class_id_map_file"
FileStates = frozenset[tuple[str | int, ...]]
_EXPECTED = (
    "a checkpoint folder such as output/best_model, a folder written by ppcls export, or an architecture "
    "with published weights"
)


@dataclass(frozen=True)
class ModelSource:
    """A model that is not loaded yet.

    Attributes:
        file: Weights of a trained model, or file of an exported model.
        description: Preparation of the model's input, and meaning of its output.
        run: Section ``Global``: device, threads, and whether DALI loads the images.
        infer: Section ``Infer``: batch size and default images.
        dali: Settings of DALI.
        config: Config of a trained model; None for an exported model.
        folder: Folder of a checkpoint or of an exported model, without links; None for other models.
        files: State of the files in ``folder`` before they were read, see `ppcls.files.file_states`.
        manifest: Manifest of a checkpoint; None for other models.
        trust: Whether the user trusts the model: its config may name modules and paths, and a program of
            Paddle may contain any operators.
        unread: Keys of data sets that the config names, and that are not read, because the user does not
            trust the model.
    """

    file: Path
    description: ModelDescription
    run: Global
    infer: Infer
    dali: Dali
    config: Config | None
    folder: Path | None = None
    files: FileStates = frozenset()
    manifest: Manifest | None = None
    trust: bool = False
    unread: tuple[str, ...] = ()

    def without_links(self) -> ModelSource:
        """Returns the model with the path of its folder, because links to it may change later."""
        if self.folder is None:
            return self if not self.file.exists() else replace(self, file=real_path(self.file))
        return replace(self, file=self.folder if self.config else self.folder / self.file.name)

    def check_unchanged(self) -> None:
        """Checks that the files are still those that were found.

        Raises:
            UserError: A file has changed, or the folder was replaced.
        """
        if self.folder is None:
            return
        if self.config is None:
            self.description.check_files(self.file)
        same = self.manifest is None or verify(self.file) == self.manifest
        if not same or self.files != _file_states(self.folder, self.file):
            raise UserError(f"{self.file}: changed after it was found; load the model again")

    @property
    def needs_paddle(self) -> bool:
        """Whether Paddle runs the model. Otherwise, onnxruntime or OpenVINO runs it."""
        return self.file.suffix not in (".onnx", ".xml")

    @property
    def builds_network(self) -> bool:
        """Whether ppcls builds the network: that of a trained model, or of one exported for ppcls."""
        return self.config is not None or self.file.name == NETWORK

    def description_on(self, device: Literal["cpu", "gpu"]) -> ModelDescription:
        """Returns the description of the model that `ppcls.deploy.predictor.Predictor` loads.

        On a GPU, a network that ppcls builds normalizes the images itself if it can. So 8-bit pixels are
        copied to the GPU, a quarter of the bytes, and no CPU core normalizes them. This does not depend on
        `by_dali`: the config of a run with DALI is also that of a server and of Python, where threads load
        the images.
        """
        if self.builds_network and device == "gpu" and self.description.can_contain_normalization:
            return self.description.with_pixel_input("normalize")
        return self.description

    @property
    def by_dali(self) -> bool:
        """Whether DALI loads the images. Otherwise, threads load them."""
        return self.run.use_dali


def can_explain(source: ModelSource) -> bool:
    """Returns whether heat maps can be computed. They need a trained classifier, which provides gradients."""
    return source.config is not None and source.description.postprocess is not None


class _ExportedSettings(Section):
    """Sections of the config that can be set for an exported model."""

    Global: Global
    Infer: Infer


def find_source(path: Path, overrides: Overrides = (), *, trust: bool = False) -> ModelSource:
    """Returns the model at a path.

    Args:
        path: Checkpoint folder, output folder of a run (for its best model), exported folder or its ``.onnx``
            or ``.xml`` file, config file, or name of an architecture with published weights.
        overrides: Settings ``key=value`` that change the config. For an exported model, they can change
            ``Global`` and ``Infer``.
        trust: Whether the model may run code and use paths that it names. The user trusts a config file in
            any case.

    Raises:
        UserError: The path is not a usable model, or the model needs trust.
    """
    if path.suffix in (".yaml", ".yml") and path.name != DESCRIPTION:
        return replace(source_of_config(load_config(path, overrides)), trust=True)
    if path.suffix in (".onnx", ".xml") or path.name in (*PROGRAMS, NETWORK):
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        return _find_exported(path, overrides, trust)
    if not path.exists():
        if str(path) in ZOO:
            return source_of_config(published_config(str(path), overrides))
        raise UserError(f"{path}: no such file or folder{suggest_run(path)}; expected {_EXPECTED}")
    if (path / DESCRIPTION).is_file() or any((path / name).is_file() for name in PROGRAMS):
        return _find_exported(find_program(path), overrides, trust)
    if (checkpoint := find_checkpoint(path, trust=trust)) is not None:
        return _checkpoint_source(checkpoint, overrides, trust)
    raise UserError(f"{path}: not a model{explain_files(path) or suggest_run(path)}; expected {_EXPECTED}")


def suggest_run(path: Path) -> str:
    """Returns the run that a path without a model probably means, as part of a message; "" if there is none.

    The path can be the folder of several runs, a folder in a run, or a misspelt name.
    """
    if path.is_dir() and _holds_run(path.parent):
        return f"; did you mean the run {path.parent}?"
    runs = _list_runs(path if path.is_dir() else path.parent)
    if path.is_dir() and runs:
        return f"; it contains {'the run' if len(runs) == 1 else 'runs, such as'} {path / runs[0]}"
    near = get_close_matches(path.name, runs, n=1, cutoff=0.7)
    return f"; did you mean {path.parent / near[0]}?" if near else ""


def _list_runs(folder: Path) -> list[str]:
    try:
        return sorted(each.name for each in folder.iterdir() if _holds_run(each))
    except OSError:
        return []


def _holds_run(folder: Path) -> bool:
    return (folder / _CONFIG).is_file() and (folder / _CHECKPOINTS).is_dir()


def find_checkpoint(folder: Path, *, trust: bool = False) -> Path | None:
    """Returns a folder if it is a checkpoint, else the model of a run's output folder; None without one.

    This is the best model, or the latest one of a run that was not evaluated.

    Args:
        folder: Folder of a checkpoint or of a run.
        trust: Whether the folder may name another folder for checkpoints, and lead to it by links.

    Raises:
        UserError: The config of the run is invalid, or a link leads out of the folder.
    """
    checkpoint: Path | None = folder
    if not (folder / _WEIGHTS).is_file():
        file = folder / _CONFIG
        fallback = None
        if trust and file.is_file():
            fallback = load_config(file).Global.checkpoint_fallback_dir
        elif not trust:
            check_links(real_path(folder), (BEST, LATEST, _CHECKPOINTS))
        checkpoint = _best_or_latest(folder, fallback)
    complete = checkpoint is not None and all((checkpoint / name).is_file() for name in (_WEIGHTS, _CONFIG))
    return checkpoint if complete else None


def _best_or_latest(run: Path, fallback: str | None) -> Path | None:
    """Returns the best model of a run or, with a note, the latest one of a run that was not evaluated."""
    if (best := newest(BEST, run, fallback)) is not None:
        return best
    latest = newest(LATEST, run, fallback)
    if latest is not None:
        print_error(f"{run}: the run was not evaluated, so it has no {BEST}; using {latest}")
    return latest


def run_folder(model: Path) -> Path | None:
    """Returns the output folder of the run to which a folder belongs, or None.

    Args:
        model: The output folder itself, or a link to a checkpoint or an exported model in it.
    """
    places = (model, model.parent)
    linked = next((place for place in places if (place / BEST).is_symlink()), None)
    # A copied folder may have lost its links.
    return linked or next((place for place in places if Store(place).folders()), None)


def source_of_config(config: Config) -> ModelSource:
    """Returns the trained model of a config.

    Raises:
        UserError: The config has no section ``Infer``, there are no weights, or the file of class names is
            invalid.
    """
    weights = find_weights(config.Global)
    settings = need_infer(config.Infer)
    folders = [weights, local_path(config.Global.output_dir)]
    names = _read_names(config.Arch, settings.PostProcess.class_id_map_file, folders)
    description = _describe_trained(config.Arch, settings, names, weights)
    return ModelSource(
        weights, description, config.Global, settings, config.DataLoader.evaluation_dali, config
    )


def _describe_trained(
    arch: AnyArch, settings: Infer, names: Sequence[str] | None, weights: Path
) -> ModelDescription:
    """Returns the description of a trained model, with what ``ppcls calibrate`` has stored."""
    description = describe_model(arch, settings, names, read_temperature(weights))
    if arch.embeds:
        return description
    return description.with_rejection(read_rejection(weights, arch.class_num))


def check_path(key: str, text: str) -> Path:
    """Returns the path of a config key.

    Raises:
        UserError: The path contains NUL or is not valid UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{key}: the path {text!r} is not valid UTF-8") from None
    if "\0" in text:
        raise UserError(f"{key}: the path {text!r} contains a NUL character")
    return Path(text)


def find_weights(settings: CheckpointSettings) -> Path:
    """Returns the path of the weights: ``Global.pretrained_model`` or, without it, the run's model.

    This is the best model, or the latest one of a run that was not evaluated.

    Raises:
        UserError: There are no weights.
    """
    if settings.pretrained_model:
        return weights_path(settings.pretrained_model)
    run = local_path(settings.output_dir)
    best = _best_or_latest(run, settings.checkpoint_fallback_dir)
    if best is None:
        raise UserError(
            f"no weights: {run / BEST} does not exist; set Global.pretrained_model, or train this config "
            "first"
        )
    return best


def need_infer(infer: Infer | None) -> Infer:
    """Returns the section ``Infer``.

    Raises:
        UserError: The config has no section ``Infer``.
    """
    if infer is None:
        raise UserError("the config has no section Infer; add it with the transforms that prepare images")
    return infer


def _checkpoint_source(folder: Path, overrides: Overrides, trust: bool) -> ModelSource:
    """Returns the model of a checkpoint.

    Class names in the checkpoint are preferred to the file in its config, which may exist only on another
    machine.
    """
    real = real_path(folder)  # a link could change while the files are read
    files = _file_states(real, folder)
    file = real / _CONFIG
    if not trust:
        check_links(real, [path.name for path in real.iterdir()])
    manifest = verify(real, (_CONFIG,)) if (real / MANIFEST).is_file() else None
    source = read_model_config(file, trust=trust)
    stored_names = node_at(source.tree, _NAMES_KEY)
    source.apply(read_overrides(overrides))
    config = source.load()
    settings = need_infer(config.Infer)
    names_file = settings.PostProcess.class_id_map_file
    overridden = names_file if names_file != stored_names else None
    folders = [place for place in _folders_of_names(real, trust) if find_listed(place) is not None]
    names = _read_names(config.Arch, overridden if folders else names_file, folders)
    if isinstance(source, UntrustedConfig) and source.names_file and names is None:
        print_error(
            f"warning: {show(source.names_file)}: the class names in this file are not read, because the "
            f"config of a model names it; set {_NAMES_KEY}, or, if you trust the model, use {TRUST}",
        )
    return ModelSource(
        file=folder,
        description=_describe_trained(config.Arch, settings, names, real),
        run=config.Global,
        infer=settings,
        dali=config.DataLoader.evaluation_dali,
        config=config,
        folder=real,
        files=files,
        manifest=manifest,
        trust=trust,
        unread=tuple(source.unread) if isinstance(source, UntrustedConfig) else (),
    )


def _folders_of_names(checkpoint: Path, trust: bool) -> list[Path]:
    """Returns the folders that can contain class names: the checkpoint, and the output folder of its run."""
    run = checkpoint.parent.parent
    if not trust:
        if checkpoint.parent.name != _CHECKPOINTS:
            return [checkpoint]
        check_links(run, [LABEL_LIST])
    return [checkpoint, run]


def _file_states(folder: Path, file: Path) -> FileStates:
    """Returns the states of the files of a model.

    Args:
        folder: Folder of the model.
        file: File of an exported model, or the folder of a checkpoint.

    Raises:
        UserError: The files were removed.
    """
    exported = file.suffix in (".onnx", ".xml") or file.name in (*PROGRAMS, NETWORK)
    try:
        return file_states(folder, *((DESCRIPTION, f"{escape(file.stem)}.*") if exported else _CHECKPOINT))
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None


def _read_names(arch: AnyArch, names_file: str | None, folders: Sequence[Path]) -> tuple[str, ...] | None:
    """Returns the class names of a model; None if they are unknown, or if it returns embeddings.

    Args:
        arch: Number of classes, and whether the model returns embeddings.
        names_file: File of class names; None to look for a list in the folders.
        folders: Folders that can contain the list of class names, the preferred one first.
    """
    file = None
    if names_file:
        file, reason = choose_names_file(str(check_path(_NAMES_KEY, names_file)), arch.class_num)
        if file is None:
            print_error(
                f"warning: {names_file}: {reason}; results contain class numbers instead of names. Set "
                "Infer.PostProcess.class_id_map_file to a file with lines of 'id name'",
            )
    if file is None:
        file = next((path for folder in folders if (path := find_listed(folder))), None)
    return read_class_names(file, arch.class_num) if file is not None and not arch.embeds else None


def _find_exported(file: Path, overrides: Overrides, trust: bool) -> ModelSource:
    folder = real_path(file.parent)  # a link could change while the files are read
    if not trust:
        check_links(folder, [DESCRIPTION, *(path.name for path in folder.glob(f"{escape(file.stem)}.*"))])
    files = _file_states(folder, file)
    check_version(file)
    from_elsewhere = file.name in PROGRAMS or file.suffix == ".onnx"
    assumed = from_elsewhere and not (folder / DESCRIPTION).is_file()
    described = None
    if assumed:
        described = assume_description(folder / file.name, trust=trust)
    elif from_elsewhere:
        described = read_paddleclas(folder / file.name, trust=trust)
    description = described or read_description(folder)
    description.check_files(folder / file.name)
    if (file.name == NETWORK) != (description.Arch is not None):
        raise UserError(
            f"{file}: {DESCRIPTION} does not describe this file: expected a section Arch for {NETWORK}, and "
            "none for other models; export the model again"
        )
    postprocess = description.postprocess
    transforms = description.model_dump(mode="json")["PreProcess"]["transform_ops"]
    tree: dict[str, Any] = {"Global": {}, "Infer": {"transforms": transforms}}
    temperature = description.Output.temperature
    if postprocess is not None:
        plain = postprocess.calibrated(1 / temperature)  # overrides refer to scores without the temperature
        tree["Infer"]["PostProcess"] = {"name": plain.kind, **plain.model_dump(mode="json")}
    source = ConfigSource(
        tree, f"{file.parent}: an exported model, for which -o can change only Global and Infer"
    )
    source.apply(read_overrides(overrides))
    settings = source.validate_as(_ExportedSettings)
    infer = settings.Infer
    if assumed:
        if infer.transforms == description.PreProcess.transform_ops:
            print_error(
                f"warning: {file}: no {DESCRIPTION}, so images are prepared as PaddleClas prepares those "
                "of ImageNet; if the config of the model has others, set them with -o Infer.transforms=…"
            )
        prepared = description.PreProcess.model_copy(update={"transform_ops": infer.transforms})
        description = description.model_copy(update={"PreProcess": prepared})
    if infer.transforms != description.PreProcess.transform_ops:
        raise UserError(
            f"{file}: Infer.transforms of an exported model cannot be changed; export the model again"
        )
    if postprocess is None:
        if "PostProcess" in infer.model_fields_set:
            raise UserError(f"{file}: the model returns embeddings, not classes; remove Infer.PostProcess")
    else:
        names_file = infer.PostProcess.class_id_map_file
        names = description.names
        if names_file:
            path = check_path(_NAMES_KEY, names_file)
            names_path = find_names_file(names_file) or path
            names = read_class_names(names_path, description.width)
        method = postprocess if infer.PostProcess == plain else infer.PostProcess.calibrated(temperature)
        tree = {**dict(description), "PostProcess": describe_postprocess(method, names)}
        if not description.Output.normalized:  # logits, which become the scores that the method needs
            tree["Output"] = description.Output.model_copy(update={"activation": method.activation})
        try:
            description = ModelDescription.model_validate(tree)
        except ValidationError as error:
            raise ConfigError(file.parent, describe_problems(tree, error), source.origins) from None
    return ModelSource(file, description, settings.Global, infer, Dali(), None, folder, files, trust=trust)


def find_program(folder: Path) -> Path:
    """Returns the file of the exported model in a folder.

    A folder with several models was put together by hand. The order of preference is a program of Paddle, a
    network of ppcls, ONNX, OpenVINO.

    Raises:
        UserError: The folder contains no exported model.
    """
    names = (*PROGRAMS, NETWORK, ONNX, OPENVINO)
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder}: no model; expected one of {', '.join(names)}")
