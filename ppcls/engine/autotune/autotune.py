"""Chooses how a run executes its training steps: layout, CUDA graph, compilation and fused kernels.

Before a long run, each way to execute steps is measured: a separate process trains the run's model on one
synthetic batch, and evaluates it. A way is rejected if its losses differ from those of the first way, the
reference. The choice is cached, so that each combination of model, batch, precision, share of evaluations,
machine and version is measured only once. The code of the user's own modules is part of the combination.

Decisions:
- The fastest way is the one with the shortest training and evaluations together. Predictions with a
  checkpoint use the way with the fastest inference; see `ppcls.engine.autotune.record`.
- A resumed run repeats the choice of its checkpoint, whose config contains it. Another choice would add in
  another order, so the weights would differ from those of a run without interruption.
- In float32, a difference of the losses is accepted if tiny changes of the images have an effect of the same
  size. In networks with batch norm and small batches, two summation orders of the same network differ by
  several percent after a few updates: MobileNetV2 with 16 images of 64 pixels by 3.7 % at the third update,
  as much as Paddle's operators in float32 and in float64.
- On a CPU, a short run ignores the cache. Otherwise, its result would depend on which runs were before it.
- On a CPU, only the fused kernels and the number of threads are measured. Compiled steps without oneDNN are
  not faster, and with oneDNN they fail in Paddle 3.3.1 (docs/measurements/cpu.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ppcls.arch.distillation_model import AnyArch
from ppcls.arch.section import Arch
from ppcls.config.base.yaml import dump_yaml, read_yaml
from ppcls.data.section import Split
from ppcls.engine.autotune.processes import MeasuringProcess, Sample, worker_command
from ppcls.engine.autotune.ways import WAYS, Criteria, Execution, choose, log
from ppcls.engine.autotune.worthwhile import estimate_update, fits_limit, saves_time
from ppcls.engine.core.settings import AMP, Autotuned, EngineSettings, ExecutionSettings, TrainingSettings
from ppcls.errors import UserError
from ppcls.files import read_regular, write_text
from ppcls.files.temporary import temporary_folder
from ppcls.registry import ARCHITECTURES
from ppcls.runtime.hardware import Card, physical_cores, read_cpu_model, usable_cores
from ppcls.runtime.launch import local_processes, read_launch
from ppcls.runtime.paddle_import import omp_threads
from ppcls.runtime.settings import RuntimeSettings
from ppcls.runtime.start import selected_card
from ppcls.version import __version__
from ppcls.weights.download import lock_file
from ppcls.zoo import ZOO, cache_folder

if TYPE_CHECKING:  # the engine is below the recipe
    from ppcls.optimizer.base import Optimizer
    from ppcls.recipe.schema import Config

_MEASUREMENT = 60.0  # usual duration of a measurement in seconds
MIN_UPDATES = 2000  # updates of a run on a GPU from which a measurement of about a minute is worthwhile
MIN_CPU_UPDATES = 300  # the same on a CPU, for architectures whose updates have an unknown duration
_WORKER = Path(__file__).with_name("worker.py")
# Fields of `TimingPlan`: the losses of the first 8 updates are compared (`CHECKED_UPDATES` in workload.py).
_PLAN = {"warm_up": 8, "settle": 0.5, "seconds": 1.0}
# On a CPU, an update may take many seconds, and its speed does not change after the first one.
_CPU_PLAN = {"warm_up": 2, "settle": 0.0, "seconds": 1.0, "steps": 4}
_TIMEOUT = 180.0  # seconds per way
_TOLERANCE = {"float32": 0.01, "float16": 0.05, "bfloat16": 0.1}  # relative difference of the loss
_NOISE = 1e-5  # largest change of a pixel, whose range is -1 to 1, that shows how losses depend on rounding


@dataclass(frozen=True)
class Machine:
    """The device on which steps are measured.

    Attributes:
        facts: What identifies the device in the cache.
        min_updates: Number of updates of a run from which it is measured. On a CPU, only if their duration
            is unknown.
        uses_cache: Whether runs with fewer updates use a choice of the cache.
        tuned: Settings that are measured, if the config leaves them open.
        plan: Fields of `TimingPlan`.
        environment: Environment variables of the processes that measure; None removes a variable.
        memory: Memory of the GPU in MiB; None on a CPU.
        cores: Cores that train the model; None on a GPU.
        threads: Numbers of CPU threads to measure in addition to the default.
    """

    facts: tuple[Any, ...]
    min_updates: int
    uses_cache: bool
    tuned: frozenset[str]
    plan: Mapping[str, Any]
    environment: Mapping[str, str | None]
    memory: int | None
    cores: int | None = None
    threads: tuple[int, ...] = ()

    @property
    def model(self) -> str:
        """The model of the GPU or CPU."""
        return str(self.facts[0])

    @classmethod
    def of_card(cls, card: Card) -> Machine:
        """Returns the machine of a run on a GPU."""
        environment = {"CUDA_VISIBLE_DEVICES": card.uuid, "FLAGS_selected_gpus": None}
        facts = (card.name(), card.total)
        return cls(facts, MIN_UPDATES, True, frozenset(WAYS), _PLAN, environment, card.total)

    @classmethod
    def of_cpu(cls, threads: int | None) -> Machine:
        """Returns the machine of a run on a CPU.

        Args:
            threads: Value of ``Global.cpu_threads``.
        """
        cores = usable_cores()
        # Paddle reads OMP_NUM_THREADS at its import, which may be over. Processes of a run share the cores.
        is_open = threads is None and omp_threads() is None and local_processes() == 1
        counts = thread_counts(cores, physical_cores()) if is_open else ()
        facts = (read_cpu_model(), cores, threads, *counts)
        used = min(threads or cores, cores)
        tuned = frozenset({"fused_kernels"})
        return cls(facts, MIN_CPU_UPDATES, False, tuned, _CPU_PLAN, {}, None, used, counts)


def thread_counts(cores: int, physical: int) -> tuple[int, ...]:
    """Returns the numbers of CPU threads to measure, in addition to one for each core.

    Args:
        cores: Number of logical cores.
        physical: Number of physical cores.
    """
    half = cores // 2 if cores > 2 else cores
    return tuple(count for count in dict.fromkeys((physical, half)) if count != cores)


def autotune(config: Config, checkpoint: Path | None = None) -> Config:
    """Returns the config with the fastest values of the settings that it does not set explicitly.

    The fastest values are read from the cache, or measured and saved there. Short runs are not measured, and
    an error of the cache is reported on standard error. If the fastest values are unknown for one of these
    reasons, float16 runs use NHWC, and other runs do not change.

    The config is not changed for deterministic runs, runs on several machines, half precision on a CPU,
    models of several parts, and ``Global.autotune: False``.

    Args:
        config: Config of the run.
        checkpoint: Checkpoint from which the run is resumed; its values are used if they are known.

    Raises:
        UserError: The GPU to measure on is unknown, because the driver and CUDA may number GPUs differently.
    """
    settings = config.Global
    arch = config.Arch
    split = config.DataLoader.Train
    open_settings = list_open_settings(settings, arch)
    if split is None or not arch.single_network or not open_settings or not is_tuned(settings, settings):
        return config
    card = selected_card() if settings.device != "cpu" else None
    machine = Machine.of_cpu(settings.cpu_threads) if card is None else Machine.of_card(card)
    number_format = _number_format(config.AMP)
    if card is None and ("fused_kernels" not in open_settings or number_format != "float32"):
        return config
    if (saved := read_execution(checkpoint, on_cpu=card is None)) is not None:
        if saved == "untuned":
            return config
        log(f"{saved[0]}, as before the interruption")
        return config.model_copy(update=saved[0].recorded_sections(settings, arch, saved[1]))
    # Without a measurement, float16 uses NHWC, which is faster on all GPUs with tensor cores.
    nhwc = "data_format" in open_settings and number_format == "float16"
    untuned = config.model_copy(update={"Arch": arch.with_data_format("NHWC")}) if nhwc else config

    updates = count_updates(settings, split, config.class_count(training=True))
    rank_images = split.sampler.rows(read_launch().world_size) * settings.update_freq
    is_long = updates >= machine.min_updates and fits_limit(_MEASUREMENT, settings.time_limit)
    if machine.cores is not None:
        images = rank_images
        if (unlabelled := config.DataLoader.UnLabelTrain) is not None:  # the network computes two views
            images += 2 * unlabelled.sampler.rows(read_launch().world_size) * settings.update_freq
        seconds = estimate_update(arch.name, images, settings.image_shape[1], machine.cores)
        if seconds is not None:
            is_long = saves_time(updates, seconds, settings.time_limit)
    if not machine.uses_cache and not is_long:
        return untuned
    model = model_facts(settings, arch, config.AMP, config.Optimizer)
    facts = {**model, **data_facts(split), "card": machine.facts}
    trained = updates * rank_images * read_launch().world_size
    classes = config.class_count(training=False)
    if code := users_code([*config.Global.import_modules, *map(_module_of, arch.architectures)]):
        facts["code"] = code
    if evaluated := evaluated_share(settings, config.DataLoader.evaluated.values(), classes, trained):
        facts["evaluated"] = evaluated
    file = cache_folder("autotune") / f"{cache_key(facts)}.json"

    def measure(way: Execution, noise: float = 0.0) -> Sample:
        tried = config.model_copy(update=way.sections(settings, arch))
        return _measure_on(machine, dump_yaml(tried.model_dump(mode="json")), noise)

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with lock_file(file.with_suffix(".lock")):  # of several ranks, the first one measures
            if file.is_file():
                chosen, record = _read_choice(file)
                log(f"{chosen}, from an earlier measurement ({file})")
                return config.model_copy(update=chosen.recorded_sections(settings, arch, record))
            if not is_long:
                return untuned
            first = first_execution(settings, arch, open_settings)
            tolerance = _TOLERANCE[number_format]
            measured = [name for name in open_settings if name in machine.tuned]
            noise = _NOISE if number_format == "float32" else None
            criteria = Criteria(tolerance, machine.memory, noise, evaluated)
            fastest = choose(first, measured, measure, criteria, machine.threads)
            chosen, record = fastest.execution, fastest.record(machine.model)
            content = {"chosen": asdict(chosen), **record.model_dump(mode="json")}
            write_text(file, json.dumps(content, indent=1))
    except (OSError, ValueError) as error:
        log(f"{file}: cannot be used, so nothing is measured: {error}; delete the file, or set PPCLS_HOME")
        return untuned
    log(f"uses {chosen}; saved in {file}")
    return config.model_copy(update=chosen.recorded_sections(settings, arch, record))


def read_execution(
    checkpoint: Path | None, *, on_cpu: bool
) -> tuple[Execution, Autotuned | None] | Literal["untuned"] | None:
    """Returns how the run of a checkpoint executed its steps.

    Args:
        checkpoint: Folder of a checkpoint; None for a new run.
        on_cpu: Whether the run continues on a CPU.

    Returns:
        The way, and what was measured or None; ``untuned`` if nothing was chosen; None if this is unknown, or
        if the run was on another kind of device. The checkpoint may be damaged, which is reported later, when
        it is loaded.
    """
    if checkpoint is None:
        return None
    try:
        # The names of these files are constants of `ppcls.engine.checkpoint.snapshot`, which imports Paddle.
        state = json.loads(read_regular(checkpoint / "state.json"))
        tree = read_yaml(checkpoint / "config.yaml")
        was_on_cpu = state["threads"] is not None
        run = tree["Global"]
        values = {name: run.get(name, "auto") for name in ("cuda_graph", "to_static", "fused_kernels")}
        data_format = tree["Arch"].get("data_format", "NCHW")
        measured = run.get("autotuned")  # None in older checkpoints
        record = None if measured is None else Autotuned.model_validate(measured)
    except (AttributeError, KeyError, OSError, TypeError, UserError, ValueError):
        return None
    if was_on_cpu != on_cpu:
        return None
    if "auto" in values.values():
        return "untuned"
    return Execution(data_format, **values, threads=record.threads if record else None), record


def choose_cpu_kernels(
    settings: EngineSettings, process: RuntimeSettings, arch: AnyArch, amp: AMP | None
) -> Execution | None:
    """Returns the way that is usually fastest on a CPU, without a measurement; None to change nothing.

    It is for short computations, such as the features of a head: EfficientNet-Lite0 computes them in a third
    of the time. Loads Paddle. Nothing changes if the config sets one of the settings, in half precision, or
    if this machine lacks a library.
    """
    open_settings = list_open_settings(settings, arch)
    fits = arch.single_network and is_tuned(settings, process) and _number_format(amp) == "float32"
    if not fits or "fused_kernels" not in open_settings:
        return None
    from ppcls.arch.kernels.errors import KernelsUnavailableError
    from ppcls.arch.onednn.library import library

    try:
        library()
    except KernelsUnavailableError:
        return None
    return Execution("NHWC", fused_kernels=True)


def _read_choice(file: Path) -> tuple[Execution, Autotuned | None]:
    """Returns the choice in a file of the cache, and what was measured; None in files of older versions."""
    try:
        content = json.loads(read_regular(file))
        chosen = Execution(**content.pop("chosen"))
        measured_inference = "inference_images_per_second" in content
        return chosen, Autotuned.model_validate(content) if measured_inference else None
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"damaged: {error!r}") from None


def first_execution(settings: ExecutionSettings, arch: AnyArch, open_settings: Sequence[str]) -> Execution:
    """Returns the way that is measured first: explicit settings, and defaults for the others."""
    values = {
        "data_format": arch.data_format,
        "cuda_graph": settings.cuda_graph,
        "to_static": settings.to_static,
        "fused_kernels": settings.fused_kernels,
    }
    fixed: dict[str, Any] = {name: value for name, value in values.items() if name not in open_settings}
    return Execution(**fixed)


def is_tuned(settings: ExecutionSettings, process: RuntimeSettings) -> bool:
    """Returns whether a run with these settings is autotuned."""
    launch = read_launch()
    if not settings.autotune or process.deterministic:
        return False
    return launch.world_size <= local_processes()  # several machines could make different choices


def _number_format(amp: AMP | None) -> str:
    """Returns the number format of products, such as ``float16``."""
    return amp.dtype if amp is not None and amp.use_amp else "float32"


def count_updates(settings: TrainingSettings, split: Split, classes: int | None) -> int:
    """Returns the number of updates of a run.

    Args:
        settings: Number of epochs, and of steps per update.
        split: Training data.
        classes: Number of classes of the labels; None if labels are identities.
    """
    index = split.dataset.read(classes)
    world = read_launch().world_size
    samples = len(split.sampler.build(index, world))  # some samplers have epochs of another size
    steps = samples / (split.sampler.rows(world) * world)
    steps = math.floor(steps) if split.sampler.drop_last else math.ceil(steps)
    return math.ceil(steps / settings.update_freq) * settings.epochs


def evaluated_share(
    settings: EngineSettings, splits: Iterable[Split], classes: int | None, trained: int
) -> float:
    """Returns the number of images that the evaluations of a run process per training image, to one digit.

    Args:
        settings: When the run is evaluated.
        splits: Evaluation data.
        classes: Number of classes of its labels; None if labels are identities.
        trained: Number of images on which the run trains, in all epochs.
    """
    if not settings.eval_during_train or not trained:
        return 0.0
    images = sum(len(split.dataset.read(classes)) for split in splits)
    evaluations = sum(map(settings.evaluates_after, range(1, settings.epochs + 1)))
    return float(f"{evaluations * images / trained:.1g}")


def list_open_settings(settings: ExecutionSettings, arch: AnyArch) -> list[str]:
    """Returns the names of the settings that a config leaves to `autotune`."""
    names = []
    launched = read_launch().world_size > 1
    if settings.cuda_graph == "auto" and not settings.recompute and not (settings.sync_bn and launched):
        names.append("cuda_graph")
    entry = ZOO.get(arch.name)  # the user's own architectures may not support NHWC
    nhwc = arch.data_format == "NHWC"
    if "data_format" not in arch.model_fields_set and entry is not None and not entry.fixed_input:
        names.append("data_format")
        nhwc = True
    if settings.to_static == "auto" and settings.fused_kernels is not True and not settings.recompute:
        names.append("to_static")
    if settings.fused_kernels == "auto" and settings.to_static is not True and nhwc:
        names.append("fused_kernels")
    return names


def _measure_on(machine: Machine, config: str, noise: float) -> Sample:
    """Measures the training of a config, given as YAML text, in a process of its own.

    Args:
        noise: Largest change of the synthetic images' pixels.
    """
    with temporary_folder("autotune") as folder:
        path = folder / "config.yaml"
        path.write_text(config, encoding="utf-8")
        task = {"config": str(path), "plan": machine.plan, "noise": noise}
        return MeasuringProcess(worker_command(_WORKER), task, _TIMEOUT, machine.environment).run()


def model_facts(
    settings: EngineSettings, arch: AnyArch, amp: AMP | None, optimizer: Optimizer
) -> dict[str, Any]:
    """Returns what can change which way is fastest: the model, its precision and the settings."""
    return {
        "arch": arch.model_dump(mode="json", exclude={"pretrained", "use_ssld"}),
        "amp": amp.model_dump(mode="json") if amp is not None else None,
        "optimizer": optimizer.kind,
        "sam": optimizer.sam_rho is not None and optimizer.sam_first_epoch == 1,  # measures the first updates
        "accumulate": settings.update_freq,
        "open": list_open_settings(settings, arch),
        "settings": [settings.cuda_graph, settings.to_static, settings.fused_kernels, settings.recompute],
    }


def users_code(modules: Iterable[str]) -> str:
    """Returns a hash of the source code of the user's own modules; an empty text if there are none.

    Args:
        modules: Names of modules. Those of ppcls and Paddle are ignored, because their versions are known.
            The hash of a package includes all of its Python files.
    """
    files: list[Path] = []
    for name in sorted({module.partition(".")[0] for module in modules} - {"ppcls", "paddle", "__main__"}):
        spec = find_spec(name)
        for folder in (spec and spec.submodule_search_locations) or ():
            files += sorted(Path(folder).rglob("*.py"))
        if spec and spec.origin:
            files.append(Path(spec.origin))
    return sha256(b"\0".join(map(Path.read_bytes, files))).hexdigest()[:16] if files else ""


def _module_of(arch: Arch) -> str:
    return ARCHITECTURES.module_of(arch.name)


def data_facts(split: Split) -> dict[str, Any]:
    """Returns what can change which way is fastest: the batches."""
    return {
        "batch": split.sampler.rows(read_launch().world_size),
        "transforms": [repr(op) for op in split.dataset.transform_ops],
    }


def cache_key(facts: Mapping[str, Any]) -> str:
    """Returns a hash of the facts and of the software's versions."""
    versions = [__version__, _version_of("paddlepaddle-gpu"), _version_of("paddlepaddle")]
    return sha256(json.dumps({**facts, "versions": versions}, sort_keys=True).encode()).hexdigest()[:16]


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
