"""``python benchmarks/run.py limits``: finds what limits a training run that is fed by DALI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ppcls.cli.arguments.options import option
from ppcls.cli.command import command, write_output
from ppcls.cli.shared_options import RequiredConfigOptions, read_config
from ppcls.errors import UserError

_COLUMNS = (
    *("setting", "images/s", "busy cores", "data wait", "CPU ms per image: threads of DALI", "executors"),
    *(
        "training thread, data",
        "its step",
        "others",
        "ms per update without a core",
        "lock, median ms",
        "99 %",
    ),
)


@dataclass(frozen=True, kw_only=True)
class LimitsOptions(RequiredConfigOptions):
    """Find what limits a training run: the device, the CPU cores, or the thread that launches the steps.

    Trains the config's model in this process: first on one batch that stays on the device, then on the images
    of the config, with the settings of the config and, on a GPU, with other ways to decode. For each of them,
    the table shows the CPU time per image of DALI's threads (reading, decoding, transforms), of its executors
    (hand-over between operators), and of the training thread, for data (decisions, external sources,
    hand-over to Paddle) and for the step. The last columns show how long the training thread waited for a
    core per update, and how long a thread waits for the interpreter lock. With taskset, the run gets fewer
    cores.
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py limits -c configs/ResNet50_photos.yaml",
        "python benchmarks/run.py limits -c configs/ResNet50_photos.yaml --seconds 5",
    )

    seconds: float = option(3.0, "duration of the measurement of each setting in seconds", gt=0)
    warm_up: int = option(8, "number of updates before each measurement", ge=1)


@command("limits", LimitsOptions)
def measure_limits(options: LimitsOptions) -> None:
    """Prints a table with one row per setting."""
    config = read_config(options)
    if config is None:
        return
    if not config.Global.use_dali:
        raise UserError(
            "Global.use_dali: expected True: this command measures the threads of DALI; set it with -o"
        )
    from ppcls.runtime import start as runtime

    run = runtime.start(config.Global)  # imports Paddle, so nothing before may import it
    from benchmarks.limits.steps import Steps

    steps = Steps(config, run, options.warm_up, options.seconds)
    write_output(f"{run.describe()}\n{steps.execution}\n")
    write_output(f"| {' | '.join(_COLUMNS)} |\n| {' | '.join(['---'] * len(_COLUMNS))} |\n")
    write_output(f"| one batch on the device | {' | '.join(steps.measure(None).cells())} |\n")
    for name, changes in list_settings(on_gpu=run.device == "gpu"):
        write_output(f"| {name} | {' | '.join(steps.measure(changes).cells())} |\n")


def list_settings(*, on_gpu: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields names and changes of ``DataLoader.Train.loader.dali`` to measure; none without a GPU."""
    yield "the config", {}
    if not on_gpu:
        return
    yield "decoding on the CPU", {"decode_on": "cpu"}
    for load in (0.65, 0.9, 1.0):
        yield f"decoding on the GPU, hw_decoder_load {load:g}", {"decode_on": "gpu", "hw_decoder_load": load}
    for share, text in ((1 / 3, "1/3"), (1 / 2, "1/2"), (2 / 3, "2/3")):
        yield f"decoding {text} on the GPU", {"decode_on": "both", "gpu_share": share}
