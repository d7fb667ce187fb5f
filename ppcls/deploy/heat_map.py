"""Files of heat maps, for ``ppcls infer --explain``."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.models.source import ModelSource
from ppcls.deploy.models.trained import load_network
from ppcls.engine.evaluation.heat_map import HeatMaps
from ppcls.errors import UserError


def load_heat_maps(source: ModelSource) -> HeatMaps:
    """Loads a model for heat maps.

    Raises:
        UserError: If the model is exported or returns embeddings, or if it cannot be loaded.
    """
    if source.config is None or source.description.postprocess is None:
        raise UserError(f"{source.file}: heat maps need a checkpoint of a model that returns classes")
    network = load_network(source.config, source.file)
    transforms = source.description.PreProcess.transform_ops
    return HeatMaps(network, transforms, source.config.Arch.data_format)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Returns RGB pixels [H, W, 3] as a PNG file."""
    return cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes()


class HeatMapWriter:
    """Writes images with heat maps over them.

    Args:
        source: A trained model that returns classes.
        folder: Folder to write to, which must be new or empty.

    Attributes:
        maps: The heat maps of the model.

    Raises:
        UserError: If the model is exported or returns embeddings, or if the folder is not empty.
    """

    def __init__(self, source: ModelSource, folder: Path) -> None:
        self.maps, self._folder = load_heat_maps(source), folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UserError(f"--explain {folder}: expected a new or empty folder, but it has files")
        except OSError as error:
            raise UserError(f"--explain {folder}: cannot be written: {error.strerror}") from None

    def write(self, file: Path, class_id: int) -> Path:
        """Writes the heat map of one class over an image, as the model sees the image.

        Args:
            file: The image.
            class_id: The class.

        Returns:
            The PNG file.

        Raises:
            UserError: If the model has no suitable layer, or if the file cannot be written.
        """
        overlaid = self.maps.overlay(file.read_bytes(), class_id)
        path, number = self._folder / f"{file.stem}.png", 1
        while path.exists():
            path, number = self._folder / f"{file.stem}_{number + 1}.png", number + 1
        try:
            path.write_bytes(encode_png(overlaid))
        except OSError as error:
            path.unlink(missing_ok=True)
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
        return path
