"""Chooses how a run executes its training steps: layout, CUDA graph, compilation and fused kernels.

Before a long run on a GPU, each way to execute steps is measured: a separate process trains the run's model
on one synthetic batch. A way is rejected if its losses differ from those of the first way, the reference. The
choice is cached, so that each combination of model, batch, precision, GPU and version is measured only once.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppcls.config.base.yaml import dump_yaml
from ppcls.engine.autotune.processes import MeasurementFailed, MeasuringProcess, Sample, worker_command
from ppcls.files import print_error, read_regular, write_text
from ppcls.runtime.hardware import Card
from ppcls.runtime.launch import local_processes, read_launch
from ppcls.runtime.start import selected_card
from ppcls.version import __version__
from ppcls.weights.download import lock_file
from ppcls.zoo import ZOO, cache_folder

if TYPE_CHECKING:  # the engine is below the recipe
    from ppcls.recipe.schema import Config

MIN_UPDATES = 2000  # updates of a run from which a measurement of about a minute is worthwhile
_WORKER = Path(__file__).with_name("worker.py")
# Fields of `TimingPlan`: the losses of the first 8 updates are compared (`CHECKED_UPDATES` in workload.py).
_PLAN = {"warm_up": 8, "settle": 0.5, "seconds": 1.0}
_TIMEOUT = 180.0  # seconds per way
_TOLERANCE = {"float32": 0.01, "float16": 0.05, "bfloat16": 0.1}  # relative difference of the loss
_MEMORY_SHARE = 0.8  # share of the GPU's memory that steps may use; the rest is for images and evaluation
# A setting is used if its speed, relative to the best way so far, is above this value. A CUDA graph may be
# slightly slower here: during a run, the host has other work, which slows down steps without a CUDA graph.
_USED_FROM = {"cuda_graph": 0.98, "data_format": 1.02, "to_static": 1.02, "fused_kernels": 1.02}
# The settings in the order of measurement, and the values that are measured. The fused kernels need NHWC, and
# cannot be combined with compilation.
_WAYS: Mapping[str, Mapping[str, Any]] = {
    "cuda_graph": {"cuda_graph": True},
    "data_format": {"data_format": "NHWC"},
    "to_static": {"to_static": True},
    "fused_kernels": {"fused_kernels": True, "data_format": "NHWC", "to_static": False},
}

Measure = Callable[["Config"], Sample]


@dataclass(frozen=True)
class Execution:
    """A way to execute training steps.

    Attributes:
        data_format: Layout of images and activations: ``NCHW`` or ``NHWC``.
        cuda_graph: Whether steps are replayed as a CUDA graph.
        to_static: Whether the model is compiled.
        fused_kernels: Whether the model uses the fused kernels.
    """

    data_format: str = "NCHW"
    cuda_graph: bool = False
    to_static: bool = False
    fused_kernels: bool = False

    def __str__(self) -> str:
        """Returns a description of the settings, such as ``NHWC, compiled, CUDA graph``."""
        steps = "CUDA graph" if self.cuda_graph else "operator by operator"
        model = "fused kernels, " if self.fused_kernels else "compiled, " if self.to_static else ""
        return f"{self.data_format}, {model}{steps}"

    def applied(self, config: Config) -> Config:
        """Returns a copy of the config with these settings."""
        names = ("cuda_graph", "to_static", "fused_kernels")
        run = config.Global.model_copy(update={name: getattr(self, name) for name in names})
        arch = config.Arch.with_data_format(self.data_format)  # type: ignore[arg-type]
        return config.model_copy(update={"Global": run, "Arch": arch})


def autotune(config: Config) -> Config:
    """Returns the config with the fastest values of the settings that it does not set explicitly.

    The fastest values are read from the cache, or measured and saved there. Short runs are not measured, and
    an error of the cache is reported on standard error. If the fastest values are unknown for one of these
    reasons, float16 runs use NHWC, and other runs do not change.

    The config is not changed for deterministic runs, runs without a GPU or on several machines, models of
    several parts, and ``Global.autotune: False``.

    Raises:
        UserError: The GPU to measure on is unknown, because the driver and CUDA may number GPUs differently.
    """
    card = _tuned_card(config)
    if card is None:
        return config
    file = cache_folder("autotune") / f"{_cache_key(config, card)}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with lock_file(file.with_suffix(".lock")):  # of several ranks, the first one measures
            if file.is_file():
                chosen = _read_choice(file)
                _log(f"{chosen}, from an earlier measurement ({file})")
                return chosen.applied(config)
            if _count_updates(config) < MIN_UPDATES:
                return _untuned(config)
            chosen, rates = choose(config, _measure_on(card), card.total)
            write_text(file, json.dumps({"chosen": asdict(chosen), "images_per_second": rates}, indent=1))
    except (OSError, ValueError) as error:
        _log(f"{file}: cannot be used, so nothing is measured: {error}; delete the file, or set PPCLS_HOME")
        return _untuned(config)
    _log(f"uses {chosen}; saved in {file}")
    return chosen.applied(config)


def _read_choice(file: Path) -> Execution:
    """Returns the choice in a file of the cache."""
    try:
        return Execution(**json.loads(read_regular(file))["chosen"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"damaged: {error!r}") from None


def _untuned(config: Config) -> Config:
    """Returns the config with NHWC for float16, which is faster on all GPUs with tensor cores."""
    amp = config.AMP
    half = amp is not None and amp.use_amp and amp.dtype == "float16"
    if not half or "data_format" not in _open_settings(config):
        return config
    return config.model_copy(update={"Arch": config.Arch.with_data_format("NHWC")})


def choose(config: Config, measure: Measure, memory: int) -> tuple[Execution, dict[str, float]]:
    """Returns the fastest way to execute steps, and the images per second of all valid ways.

    The settings are measured one after another, each in combination with the best values so far.
    """
    open_settings = list(_open_settings(config))
    fixed: dict[str, Any] = {}
    if "data_format" not in open_settings:
        fixed["data_format"] = config.Arch.data_format
    for name in ("cuda_graph", "to_static", "fused_kernels"):
        if name not in open_settings:
            fixed[name] = getattr(config.Global, name)
    best = Execution(**fixed)
    _log(
        f"measuring {len(open_settings) + 1} ways to execute training steps, for about a minute, once for "
        "this model, batch and GPU (Global.autotune=False skips this)"
    )
    amp = config.AMP
    tolerance = _TOLERANCE[amp.dtype if amp is not None and amp.use_amp else "float32"]
    reference: list[float] | None = None
    rates: dict[str, float] = {}
    for name in ("", *(name for name in _WAYS if name in open_settings)):
        way = replace(best, **_WAYS[name]) if name else best
        try:
            sample = measure(way.applied(config))
            losses = sample["losses"]
            if reference is None:
                reference = losses
            _check(sample, reference, tolerance, memory)
        except MeasurementFailed as error:
            _log(f"  {way}: skipped: {error}")
            continue
        rates[str(way)] = rate = sample["images_per_second"]
        _log(f"  {way}: {rate:,.0f} images/s, {sample['step'] * 1e3:.1f} ms per step")
        if not name or rate > _USED_FROM[name] * rates.get(str(best), 0.0):
            best = way
    return best, rates


def _check(sample: Sample, reference: list[float], tolerance: float, memory: int) -> None:
    """Checks the sample of a way to execute steps."""
    for update, (loss, expected) in enumerate(zip(sample["losses"], reference, strict=True), start=1):
        if not math.isclose(loss, expected, rel_tol=tolerance):
            raise MeasurementFailed(f"the loss of update {update} is {loss:.4g}, expected {expected:.4g}")
    used = sample.get("gpu_reserved", 0.0)
    if used > _MEMORY_SHARE * memory:
        raise MeasurementFailed(f"it needs {used:,.0f} MiB of the GPU's {memory:,} MiB")


def _tuned_card(config: Config) -> Card | None:
    """Returns the GPU to measure on, or None if the config is not autotuned."""
    settings = config.Global
    launch = read_launch()
    if not settings.autotune or settings.deterministic or settings.device == "cpu":
        return None
    if not config.Arch.single_network or config.DataLoader.Train is None:
        return None
    if not list(_open_settings(config)):
        return None
    if launch.world_size > local_processes():
        return None  # several machines could make different choices
    return selected_card()


def _count_updates(config: Config) -> int:
    train = config.DataLoader.need_train()
    index = train.dataset.read(config.class_count(training=True))
    world = read_launch().world_size
    images = train.sampler.rows(world) * world * config.Global.update_freq
    return len(index) // images * config.Global.epochs


def _open_settings(config: Config) -> Iterator[str]:
    settings = config.Global
    launched = read_launch().world_size > 1
    if settings.cuda_graph == "auto" and not (settings.sync_bn and launched):
        yield "cuda_graph"
    entry = ZOO.get(config.Arch.name)  # the user's own architectures may not support NHWC
    nhwc = config.Arch.data_format == "NHWC"
    if "data_format" not in config.Arch.model_fields_set and entry is not None and not entry.fixed_input:
        yield "data_format"
        nhwc = True
    if settings.to_static == "auto" and settings.fused_kernels is not True:
        yield "to_static"
    if settings.fused_kernels == "auto" and settings.to_static is not True and nhwc:
        yield "fused_kernels"


def _measure_on(card: Card) -> Measure:
    def measure(config: Config) -> Sample:
        with tempfile.TemporaryDirectory(prefix="ppcls-autotune-") as folder:
            path = Path(folder) / "config.yaml"
            path.write_text(dump_yaml(config.model_dump(mode="json")), encoding="utf-8")
            task = {"config": str(path), "plan": _PLAN}
            environment = {"CUDA_VISIBLE_DEVICES": card.uuid, "FLAGS_selected_gpus": None}
            return MeasuringProcess(worker_command(_WORKER), task, _TIMEOUT, environment).run()

    return measure


def _cache_key(config: Config, card: Card) -> str:
    """Returns a hash of everything that can change which way is fastest."""
    train = config.DataLoader.need_train()
    parts = {
        "arch": config.Arch.model_dump(mode="json", exclude={"pretrained", "use_ssld"}),
        "amp": config.AMP.model_dump(mode="json") if config.AMP is not None else None,
        "optimizer": config.Optimizer.kind,
        "batch": train.sampler.rows(read_launch().world_size),
        "transforms": [repr(op) for op in train.dataset.transform_ops],
        "accumulate": config.Global.update_freq,
        "open": list(_open_settings(config)),
        "settings": [config.Global.cuda_graph, config.Global.to_static, config.Global.fused_kernels],
        "card": [card.name(), card.total],
        "versions": [__version__, _version_of("paddlepaddle-gpu"), _version_of("paddlepaddle")],
    }
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _log(text: str) -> None:
    if read_launch().rank == 0:
        print_error(f"autotune: {text}")
