"""How fast a config trains in a given way, and where a step's time goes: by processes that try it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ppcls.bench.measure.children import Outcome, measure_apart, paddle_command
from ppcls.bench.train.task import Task
from ppcls.bench.train.variants import Place, Variant, hindrance, own_variant
from ppcls.config.load import load_config
from ppcls.config.schema import Config
from ppcls.errors import UserError

# A GPU that has rested is fast for a second, then slows down, and has found its pace by about 2 s:
# docs/performance.md.
_SETTLE_SECONDS = 2.0
_LOOK_SECONDS = 300.0  # the longest for a look at the machine


@dataclass(frozen=True)
class Length:
    """How long to measure.

    Attributes:
        rounds: Times that each way is measured, each time by new processes.
        warm_up: Steps that are not counted. A step is an optimizer update.
        steps: Counted; None for as many as ``seconds`` take.
        seconds: To measure for.
        split_steps: Steps, after these, in which each phase is timed; 0 for none.
        timeout: Seconds after which a measurement is ended, start included.
    """

    rounds: int = 3
    warm_up: int = 5
    steps: int | None = None
    seconds: float = 5.0
    split_steps: int = 6
    timeout: float = 900.0


@dataclass(frozen=True)
class Look:
    """What was seen before anything was measured.

    Attributes:
        place: What there is to train on.
        machine: For the results.
        versions: For the results.
        model: Its name.
        size: Height and width of its images, such as ``224x224``.
        threads: Paddle's, of one process alone.
        rgb_parameters: Of the model for images of three channels.
        multiply_adds: Of the model's forward pass on one image; None where several models train at once.
    """

    place: Place
    machine: dict[str, str]
    versions: dict[str, str]
    model: str
    size: str
    threads: int
    rgb_parameters: int
    multiply_adds: int | None


Run = Callable[[Variant], Outcome]


def look_at(config: Path, overrides: Sequence[str]) -> Look:
    """Returns what a config would train on, as a process of its own sees it: this one takes no GPU.

    Raises:
        UserError: It can't be trained here.
    """
    task = {"config": str(config), "overrides": list(overrides)}
    outcome = measure_apart(paddle_command("look"), task, {}, _LOOK_SECONDS)
    if outcome.found is None:
        raise UserError(outcome.reason + (f"\n{outcome.log}" if outcome.log else ""))
    found = outcome.found
    place = Place(**{**found["place"], "capability": tuple(found["place"]["capability"])})
    return Look(**{**found, "place": place})


def settling(device: str) -> float:
    """Returns the seconds of work after which a device keeps its pace."""
    return _SETTLE_SECONDS if device == "gpu" else 0.0


def runner(path: Path, overrides: Sequence[str], config: Config, place: Place, length: Length) -> Run:
    """Returns what measures one way of training a config once.

    Args:
        path: The config's file.
        overrides: What the user changes in it.
        config: The outcome.
        place: What there is to train on.
        length: How long to measure.
    """
    own = own_variant(config, place, "synthetic")

    def run(variant: Variant) -> Outcome:
        reason = hindrance(variant, place)
        changed = [*overrides, *variant.overrides(own), f"Global.device={place.device}"]
        if reason is None:
            try:
                load_config(str(path), changed)
            except UserError as error:
                reason = str(error)
        if reason is not None:
            return Outcome(None, reason)
        task = Task(
            config=str(path),
            overrides=tuple(changed),
            source=variant.source,
            warm_up=length.warm_up,
            settle=settling(place.device),
            steps=length.steps,
            seconds=length.seconds,
            split_steps=length.split_steps,
        )
        command = paddle_command("train", variant.processes)
        return measure_apart(command, asdict(task), variant.environment(), length.timeout)

    return run
