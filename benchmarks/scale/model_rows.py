"""Measured work with large models and with many models; see `benchmarks.scale.rows`."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

if TYPE_CHECKING:  # imports Paddle
    from paddle import nn

    from ppcls.engine.checkpoint.checkpoints import Checkpoints
    from ppcls.engine.core.state import TrainState

_WIDTH = 1024  # inputs and outputs of a layer
_KEPT_MODELS = 10  # --max-models
_BATCH = 16  # --max-batch of a server by default
_TRANSFORMS = [
    {"DecodeImage": None},
    {"ResizeImage": {"resize_short": 256}},
    {"CropImage": {"size": 224}},
    {"NormalizeImage": None},
]
_OBJECTIVE = {
    "Loss": {"Train": [{"CELoss": {"weight": 1.0}}]},
    "Optimizer": {"name": "AdamW", "lr": {"name": "Constant", "learning_rate": 0.1}},
    "Metric": {"Eval": [{"TopkAcc": {"topk": 1}}]},
}


def save_checkpoint(folder: Path, count: int) -> Iterator[None]:
    """Saves a model of ``count`` parameters, and then needs the memory of its state for other things."""
    place = folder / f"saved_{os.getpid()}"
    state = _build_state(folder, count)
    checkpoints = _checkpoints_of(place, state)
    size = _allocate_optimizer(state)
    yield
    checkpoints.save(state, ["latest"], in_background=True)
    checkpoints.wait()
    np.ones(size, np.uint8)
    shutil.rmtree(place)


def restore_checkpoint(folder: Path, count: int) -> Iterator[None]:
    """Verifies and restores a checkpoint with ``count`` parameters, as each rank does at a resume.

    The first process of a machine compares the files with their digests, as in `choose_checkpoint`.
    """
    from ppcls.engine.checkpoint.resume import resume
    from ppcls.weights.manifest import verify

    place = folder / f"checkpoint_{count}"
    if not place.exists():
        _run_apart(_write_checkpoint, folder, count, place)
    state = _build_state(folder, count)
    _allocate_optimizer(state)
    yield
    if _is_first() or "names" not in inspect.signature(verify).parameters:  # an older version
        verify(place / "latest")
    else:
        verify(place / "latest", ())
    resume(state, place / "latest")


def load_models(folder: Path, count: int) -> Iterator[None]:
    """Loads ``count`` models of 17 MB into a server one after the other, with ``--max-models 10``."""
    from ppcls.deploy.models.source import find_source
    from ppcls.serve import models
    from ppcls.serve.service import BatchingOptions, load

    try:
        from ppcls.serve.pools import TimedPool
    except ModuleNotFoundError:  # an older version
        from concurrent.futures import ThreadPoolExecutor as TimedPool  # type: ignore[assignment]
    root = folder / f"models_{count}"
    if not root.exists():
        _run_apart(_export_models, root, count)
    names = sorted(path.name for path in root.iterdir() if path.is_dir())
    loadable: Any = root
    if hasattr(models, "LoadableModels"):
        loadable = models.LoadableModels(root, max_models=_KEPT_MODELS)
    yield

    async def load_all(worker: TimedPool) -> None:
        first = {names[0]: load(find_source(root / names[0]), _BATCH)}
        served = models.ServedModels(first, worker, BatchingOptions(_BATCH, 0.0, _BATCH), loadable)
        served.start()
        for name in names[1:]:
            await served.load(name)
        await served.stop()

    with TimedPool(1, "model") as worker:
        asyncio.run(load_all(worker))


def build_layers(class_num: int, data_format: str, input_image_channel: int) -> nn.Layer:  # noqa: ARG001
    """Builds a model with ``class_num`` linear layers. It is only saved and restored, and never called."""
    from paddle import nn

    return nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH) for _ in range(class_num)])


def _build_state(folder: Path, count: int) -> TrainState:
    """Builds the state of a run with AdamW and about ``count`` parameters."""
    from ppcls.api import build_state, load_config
    from ppcls.config.custom import register_architecture

    register_architecture("Layers", f"{__name__}:{build_layers.__name__}")
    images = folder / "two_images.txt"
    images.write_text("a.jpg 0\nb.jpg 1\n")
    dataset = {"image_root": str(folder), "cls_label_path": str(images), "transform_ops": _TRANSFORMS}
    tree = {
        "Global": {"device": "cpu", "output_dir": str(folder / "run"), "image_shape": [3, 224, 224]},
        "Arch": {"name": "Layers", "class_num": max(2, count // (_WIDTH * _WIDTH + _WIDTH))},
        **_OBJECTIVE,
        "DataLoader": {
            part: {"dataset": {"name": "ImageNetDataset", **dataset}, "sampler": {"batch_size": 2}}
            for part in ("Train", "Eval")
        },
    }
    config = folder / f"layers_{os.getpid()}.yaml"
    config.write_text(yaml.safe_dump(tree))
    return build_state(load_config(config))


def _allocate_optimizer(state: TrainState) -> int:
    """Allocates the optimizer's state, and returns the number of bytes of a checkpoint."""
    from ppcls.optimizer.state import optimizer_state

    tensors = [*state.model.state_dict().values(), *optimizer_state(state.optimizer, state.model).values()]
    return sum(tensor.size * tensor.element_size() for tensor in tensors)


def _checkpoints_of(folder: Path, state: TrainState) -> Checkpoints:
    from ppcls.engine.checkpoint.checkpoints import Checkpoints

    if len(inspect.signature(Checkpoints).parameters) == 2:  # an older version
        return Checkpoints(folder, state.config)  # type: ignore[call-arg, arg-type]
    from ppcls.config.base.yaml import dump_section

    return Checkpoints(folder, state.config.Global, dump_section(state.config))


def _write_checkpoint(folder: Path, count: int, place: Path) -> None:
    state = _build_state(folder, count)
    _checkpoints_of(place, state).save(state, ["latest"])


def _export_models(root: Path, count: int) -> None:
    """Exports a MobileNetV1 with random weights, and links its files into ``count`` folders."""
    from ppcls.arch.build import build_model
    from ppcls.cli.export import export
    from ppcls.weights.files import write_arrays

    root.mkdir(parents=True)
    weights = root / "weights.safetensors"
    write_arrays(weights, build_model("MobileNetV1", 1000).state_dict())
    config = root / "config.yaml"
    tree = {
        "Global": {"device": "cpu", "pretrained_model": str(weights), "image_shape": [3, 224, 224]},
        "Arch": {"name": "MobileNetV1", "class_num": 1000},
        **_OBJECTIVE,
        "Infer": {"transforms": _TRANSFORMS, "PostProcess": {"topk": 5}},
    }
    config.write_text(yaml.safe_dump(tree))
    first = root / "m000"
    if code := export(["-c", str(config), "--format", "onnx", "-o", f"Global.save_inference_dir={first}"]):
        raise SystemExit(code)
    for number in range(1, count):
        shutil.copytree(first, root / f"m{number:03d}", copy_function=os.link)


def _run_apart(function: Callable[..., None], *arguments: object) -> None:
    """Runs a function in another process, whose memory does not count."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{function.__name__} failed with exit code {process.exitcode}")


def _is_first() -> bool:
    """Returns whether this is the first process of the measured machine, whose state is in PPCLS_HOME."""
    home = Path(os.environ["PPCLS_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    try:
        (home / "first").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
