"""Chooses which device decodes the images of a run on a GPU: ``decode_on: auto``.

Before a long run, each way to decode is measured: one separate process trains the run's model on its
images, with each of the ways in turn. Which way is fastest depends on the model, the cores, the GPU and the
images.

Decisions:
- A resumed run repeats the choice of its checkpoint, whose config contains it, because CPUs and GPUs decode
  to slightly different pixels.
- Of several processes on a machine, one measures with its share of the cores, and all use its choice.
- Without a measurement, `ppcls.data.loaders.dali.settings` chooses one of the devices. On an H200 with 8
  cores, a prototype trained ResNet-50 at 7,020 images/s with both, 6,290 with the GPU and 4,360 with the CPU;
  with 16 cores 7,750, 6,770 and 8,310. On other hosts, `both` was faster than the CPU with 16 cores, or
  slower than the GPU with 8, so it is not used unmeasured.
- On a GPU with less than 32 GiB, only one device decodes, because each pipeline needs GPU memory.
- Only the images of training may be decoded by both. Results of evaluations would otherwise depend on the
  number of processes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppcls.config.base.yaml import dump_yaml, read_yaml
from ppcls.data.loaders.dali.settings import has_memory_for_pipelines
from ppcls.data.loaders.section import Dali
from ppcls.data.section import DataLoader, Split
from ppcls.engine.autotune.autotune import (
    Machine,
    cache_key,
    count_updates,
    data_facts,
    is_tuned,
    model_facts,
)
from ppcls.engine.autotune.processes import MeasurementFailed, MeasuringProcess, Sample, worker_command
from ppcls.engine.autotune.ways import log
from ppcls.engine.autotune.worthwhile import fits_limit
from ppcls.engine.core.settings import EngineSettings
from ppcls.errors import UserError, counted
from ppcls.files import read_regular, write_text
from ppcls.files.temporary import temporary_folder
from ppcls.runtime.hardware import Card, divide_cores, usable_cores
from ppcls.runtime.launch import local_processes
from ppcls.runtime.start import expects_gpu, selected_card
from ppcls.weights.download import lock_file
from ppcls.zoo import cache_folder

if TYPE_CHECKING:  # the engine is below the recipe
    from ppcls.recipe.schema import Config

Way = Mapping[str, Any]  # values of keys of ``DataLoader.Train.loader.dali``

_MEASUREMENT = 30.0  # usual duration of a measurement in seconds
MIN_UPDATES = 10_000  # updates of a run from which a measurement of about half a minute is worthwhile
_WORKER = Path(__file__).with_name("worker.py")
_WAYS: Sequence[Way] = (
    {"decode_on": "cpu", "gpu_share": None},
    # On two H200 whose host had 16 slow cores for each: 15,195 images/s, with 1/3 14,599, on the CPU 13,537.
    {"decode_on": "both", "gpu_share": 1 / 6},
    {"decode_on": "both", "gpu_share": 1 / 3},
    {"decode_on": "both", "gpu_share": 1 / 2},
    # On an H200 whose host had 8 slow cores: 6,485 images/s, with 1/2 5,049, on the GPU alone 5,877.
    {"decode_on": "both", "gpu_share": 3 / 5},
    {"decode_on": "gpu", "gpu_share": None},
)
_PLAN = {"warm_up": 8, "settle": 1.0, "seconds": 3.0}  # fields of `TimingPlan`, for each way
_TIMEOUT = 240.0  # seconds for all ways
_USED_FROM = 1.02  # a way is used if its speed, relative to the best way so far, is above this value


def choose_decoder(config: Config, checkpoint: Path | None = None) -> Config:
    """Returns the config with the fastest way to decode, if it leaves this open.

    Nothing is chosen for runs on a CPU, deterministic runs, runs on several machines, ``Global.autotune:
    False``, and configs that set an option of the GPU's decoder or cache decoded images. Short runs do not
    measure, but use an earlier measurement of the same model, images and machine.

    Args:
        config: Config of the run, after `ppcls.engine.autotune.autotune.autotune`.
        checkpoint: Checkpoint from which the run is resumed; its way is used if it is known.

    Raises:
        UserError: The GPU to measure on is unknown, because the driver and CUDA may number GPUs differently.
    """
    settings = config.Global
    data = config.DataLoader
    split = data.Train
    if split is None or not settings.use_dali or settings.device == "cpu" or not _is_open(split):
        return config
    if not is_tuned(settings, settings) or not config.Arch.single_network:
        return config
    card = selected_card()
    if card is None or not expects_gpu(settings, card):
        return config
    if (saved := read_decoder(checkpoint)) is not None:
        known = saved["decode_on"] != "auto"
        return config.model_copy(update=_with_decoder(data, split, saved)) if known else config
    machine = Machine.of_card(card)
    cores = _own_cores(card)
    count = min(len(cores), max(1, usable_cores() // local_processes()))
    facts = {
        **model_facts(settings, config.Arch, config.AMP, config.Optimizer),
        **data_facts(split),
        "card": machine.facts,
        "cores": count,
        "images": split.dataset.model_dump(mode="json"),
        "dali": split.loader.dali.model_dump(mode="json"),
    }
    several = has_memory_for_pipelines(card)
    possible = [way for way in _WAYS if several or way["decode_on"] != "both"]
    file = cache_folder("autotune") / f"{cache_key(facts)}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with lock_file(file.with_suffix(".lock")):  # of several ranks, the first one measures
            if file.is_file():
                chosen = dict(json.loads(read_regular(file))["chosen"])
            elif (
                not fits_limit(_MEASUREMENT, settings.time_limit)
                or count_updates(settings, split, config.class_count(training=True)) < MIN_UPDATES
            ):
                return config
            else:
                yaml = dump_yaml(config.model_dump(mode="json"))
                chosen, rates = choose(possible, lambda ways: _measure(machine, cores, yaml, ways))
                write_text(file, json.dumps({"chosen": chosen, "images_per_second": rates}, indent=1))
        tuned = config.model_copy(update=_with_decoder(data, split, chosen))
    except (KeyError, OSError, TypeError, ValueError) as error:
        log(f"{file}: cannot be used, so nothing is measured: {error}; delete the file, or set PPCLS_HOME")
        return config
    if chosen["decode_on"] != "auto":
        log(f"decodes images on {describe(chosen)} (DataLoader.Train.loader.dali.decode_on)")
    return tuned


def _is_long(settings: EngineSettings, split: Split, classes: int | None) -> bool:
    """Returns whether a run is long enough to measure."""
    enough = count_updates(settings, split, classes) >= MIN_UPDATES
    return enough and fits_limit(_MEASUREMENT, settings.time_limit)


def describe(way: Way) -> str:
    """Returns a description of a way to decode, such as ``the CPU``."""
    if way["decode_on"] == "both":
        share = way["gpu_share"]
        return "both devices" if share is None else f"both devices, {share:.0%} of the batches on the GPU"
    return f"the {way['decode_on'].upper()}"


def choose(
    ways: Sequence[Way], measure: Callable[[Sequence[Way]], Sample]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Returns the fastest way to decode, and the images per second of all ways that work.

    An earlier way is preferred if a later one is not 2 % faster. If no way works, this returns
    ``decode_on: auto``, and the run then shows the error.

    Args:
        ways: Ways to decode.
        measure: Function that measures the ways, and returns ``rates``: images per second of each, or the
            reason of a failure.
    """
    log(
        f"measuring {counted(len(ways), 'way')} to decode images, once for this model, data set and machine "
        "(Global.autotune=False or another DataLoader.Train.loader.dali.decode_on than auto skips this)"
    )
    best: Way = {"decode_on": "auto", "gpu_share": None}
    best_rate = 0.0
    rates: dict[str, float] = {}
    try:
        results = measure(ways)["rates"]
    except MeasurementFailed as error:
        results = [str(error)] * len(ways)
    for way, rate in zip(ways, results, strict=True):
        if isinstance(rate, str):
            log(f"  decoding on {describe(way)}: skipped: {rate}")
            continue
        log(f"  decoding on {describe(way)}: {rate:,.0f} images/s")
        rates[describe(way)] = rate
        if rate > _USED_FROM * best_rate:
            best = way
            best_rate = rate
    return dict(best), rates


def read_decoder(checkpoint: Path | None) -> dict[str, Any] | None:
    """Returns how the run of a checkpoint decoded its training images.

    Args:
        checkpoint: Folder of a checkpoint; None for a new run.

    Returns:
        ``decode_on`` and ``gpu_share``; None if they are unknown. The checkpoint may be damaged, which is
        reported later, when it is loaded.
    """
    if checkpoint is None:
        return None
    try:
        dali = read_yaml(checkpoint / "config.yaml")["DataLoader"]["Train"]["loader"]["dali"]
        return {"decode_on": dali["decode_on"], "gpu_share": dali.get("gpu_share")}
    except (AttributeError, KeyError, OSError, TypeError, UserError, ValueError):
        return None


def _is_open(split: Split) -> bool:
    dali = split.loader.dali
    return split.cache is None and dali.decode_on == "auto" and not dali.sets_gpu_decoder


def _with_decoder(data: DataLoader, split: Split, way: Way) -> dict[str, DataLoader]:
    """Returns the section ``DataLoader`` with a way to decode the images of training, by its name."""
    dali = Dali.model_validate({**split.loader.dali.model_dump(exclude_unset=True), **way})
    loader = split.loader.model_copy(update={"dali": dali})
    train = split.model_copy(update={"loader": loader})
    return {"DataLoader": data.model_copy(update={"Train": train})}


def _own_cores(card: Card) -> frozenset[int]:
    """Returns a share of the cores as large as that of each process of the run on this machine."""
    near = [card.near_cores()] * local_processes()
    return divide_cores(near, frozenset(os.sched_getaffinity(0)))[0]


def _measure(machine: Machine, cores: frozenset[int], yaml: str, ways: Sequence[Way]) -> Sample:
    """Measures the training of a config, given as YAML text, with several ways to decode."""
    with temporary_folder("autotune") as folder, _limited_to(cores):
        path = folder / "config.yaml"
        path.write_text(yaml, encoding="utf-8")
        task = {"config": str(path), "plan": _PLAN, "ways": [dict(way) for way in ways]}
        return MeasuringProcess(worker_command(_WORKER), task, _TIMEOUT, machine.environment).run()


@contextmanager
def _limited_to(cores: frozenset[int]) -> Iterator[None]:
    """Returns a context in which new processes run only on these cores; on all if there are none."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
