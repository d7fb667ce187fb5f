"""Writes heat maps as image files, for ``ppcls infer --explain``."""

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
    """Loads a model, and returns an object that computes its heat maps.

    Raises:
        UserError: The model is exported, returns embeddings, or cannot be loaded.
    """
    if source.config is None or source.description.postprocess is None:
        model_type = "an exported model" if source.config is None else "an embedding model"
        raise UserError(
            f"{source.file}: heat maps need a checkpoint of a model that returns classes; found {model_type}"
        )
    network = load_network(source.config.Arch, source.config.Loss.Train, source.file)
    transforms = source.description.PreProcess.transform_ops
    return HeatMaps(network, transforms, source.config.Arch.data_format)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Returns the bytes of a PNG file with RGB pixels [H, W, 3]."""
    return cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes()


class HeatMapWriter:
    """Writes images overlaid with heat maps.

    Args:
        source: Trained model that returns classes.
        folder: New or empty folder to write to.

    Attributes:
        maps: Object that computes the heat maps of the model.

    Raises:
        UserError: The model is exported or returns embeddings, or the folder is not empty.
    """

    def __init__(self, source: ModelSource, folder: Path) -> None:
        self.maps = load_heat_maps(source)
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UserError(
                    f"--explain {folder}: expected a new or empty folder, found files in it; "
                    "choose another folder"
                )
        except FileExistsError:
            raise UserError(
                f"--explain {folder}: expected a folder, found a file; choose another folder"
            ) from None
        except OSError as error:
            raise UserError(
                f"--explain {folder}: cannot be written: {error.strerror}; choose another folder"
            ) from None

    def write(self, file: Path, class_id: int) -> Path:
        """Writes an image, cropped as for the model and overlaid with the heat map of one class.

        Args:
            file: Image file.
            class_id: Number of the class.

        Returns:
            The path of the written PNG file.

        Raises:
            UserError: The model has no suitable layer, or the file cannot be written.
        """
        overlaid = self.maps.overlay(file.read_bytes(), class_id)
        path = self._folder / f"{file.stem}.png"
        number = 1
        while path.exists():
            path = self._folder / f"{file.stem}_{number + 1}.png"
            number = number + 1
        try:
            path.write_bytes(encode_png(overlaid))
        except OSError as error:
            path.unlink(missing_ok=True)
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
        return path
