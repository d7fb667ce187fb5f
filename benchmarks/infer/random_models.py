"""Models with random weights, to measure networks that were not trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppcls.engine.autotune.processes import MeasurementFailed, MeasuringProcess, worker_command
from ppcls.errors import UserError
from ppcls.recipe.load import dump_config, load_config
from ppcls.recipe.schema import Config
from ppcls.runtime import start as runtime
from ppcls.runtime.start import expects_gpu, selected_card
from ppcls.zoo import ZOO

if TYPE_CHECKING:  # Paddle is imported by `runtime.start`
    from paddle import nn

_CONFIG = Path(__file__).resolve().parents[2] / "configs/ResNet50_photos.yaml"
_WORKER = Path(__file__).resolve().parents[1] / "worker.py"
_TIMEOUT = 600.0  # seconds to initialize all networks
_IMAGES = 4  # of which batch norms get their statistics


def write_random_models(
    names: Sequence[str], overrides: Sequence[str], folder: Path, *, exported: bool = False
) -> list[Path]:
    """Writes random weights and a config for each architecture.

    The networks are those of `configs/ResNet50_photos.yaml` with 1,000 classes, in NHWC and with the fused
    kernels; on a GPU, they compute in float16 (AMP O2).

    Args:
        names: Architectures.
        overrides: Settings ``key=value`` of ``Global``.
        folder: Folder that receives the files.
        exported: Whether to export the models by ``ppcls export --format ppcls --precision float16``.

    Returns:
        The configs, which name their weights, or the folders of the exported models.

    Raises:
        UserError: An architecture is unknown, or it cannot be built for images of 224 px.
    """
    if not names:
        return []
    if unknown := [name for name in names if name not in ZOO]:
        raise UserError(f"--random: there is no architecture {unknown[0]}; `ppcls models list` shows them")
    task = {"names": list(names), "overrides": list(overrides), "folder": str(folder), "exported": exported}
    try:
        MeasuringProcess(worker_command(_WORKER, "random"), task, _TIMEOUT).run()
    except MeasurementFailed as failure:
        raise UserError(f"--random: {failure.reason}") from None
    return [folder / (name if exported else f"{name}.yaml") for name in names]


def write(task: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the files of `write_random_models` in this process.

    Args:
        task: Dict with ``names``, ``overrides``, ``folder`` and ``exported``.

    Returns:
        An empty sample.
    """
    folder = Path(task["folder"])
    weights = {name: folder / f"{name}.safetensors" for name in task["names"]}
    configs = {name: _config(name, path, task["overrides"]) for name, path in weights.items()}
    settings = configs[task["names"][0]].Global
    runtime.start(settings.model_copy(update={"device": "cpu"}))  # imports Paddle
    from ppcls.deploy.export.export import PrecisionSettings, export_model
    from ppcls.deploy.models.source import source_of_config
    from ppcls.weights.files import write_arrays

    for name, config in configs.items():
        write_arrays(weights[name], _random_network(config).state_dict())
        (folder / f"{name}.yaml").write_text(dump_config(config), encoding="utf-8")
        if task["exported"]:
            half = PrecisionSettings("float16")
            export_model(source_of_config(config), folder / name, "ppcls", settings=half)
    return {}


def _config(name: str, weights: Path, overrides: Sequence[str]) -> Config:
    """Returns the config of a network, in half precision if it runs on a GPU."""
    network = [f"Arch.name={name}", "Arch.class_num=1000", "Arch.data_format=NHWC"]
    settings = [*network, "Global.fused_kernels=True", f"Global.pretrained_model={weights}", *overrides]
    config = load_config(str(_CONFIG), settings)
    if not expects_gpu(config.Global, selected_card()):
        return config
    return load_config(str(_CONFIG), [*settings, "AMP.use_amp=True", "AMP.level=O2", "AMP.dtype=float16"])


def _random_network(config: Config) -> nn.Layer:
    """Returns the network with random weights, whose batch norms have the statistics of random images.

    With the initial statistics, numbers would grow from layer to layer until float16 cannot represent them.
    """
    import paddle

    from ppcls.arch.batch_statistics import batch_norms, set_momentum
    from ppcls.engine.core.networks import build_network

    paddle.seed(0)
    network = build_network(config.Arch)
    if any(batch_norms(network)):
        set_momentum(network, 0.0, "the network")
        network.train()
        channels, height, width = config.Global.image_shape
        with paddle.no_grad():
            network(paddle.randn([_IMAGES, height, width, channels]))
    return network
