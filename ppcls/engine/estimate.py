"""What a dry run found, and the whole run's time that follows from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ppcls.report.text import clock


@dataclass(frozen=True)
class Measured:
    """A dry run's figures. A step is an optimizer update; images are those of all ranks, times the slowest's.

    Attributes:
        fed: Seconds of a step, fed by the loader.
        waited: Seconds thereof spent waiting for data.
        fed_images: Images of such a step, in the mean.
        alone: Seconds of a step on one batch again and again.
        alone_images: Images of such a step.
        loader: Images a second of the loader alone.
        evaluation: Seconds of a whole evaluation; None where the run does not evaluate.
        steps: Left to train.
        full_steps: What they come to, for the last one of an epoch may have fewer batches than others.
        evaluations: Left to do.
    """

    fed: float
    waited: float
    fed_images: float
    alone: float
    alone_images: float
    loader: float
    evaluation: float | None
    steps: int
    full_steps: float
    evaluations: int

    @property
    def seconds(self) -> float:
        """Estimates the rest of the run, checkpoints and start not counted."""
        # Batches in stock may hide how slow the loader is from the few steps that were fed.
        step = max(self.fed, self.fed_images / self.loader)
        return self.full_steps * step + self.evaluations * (self.evaluation or 0.0)


def describe(measured: Measured) -> list[str]:
    """Returns the figures as lines."""
    m = measured
    whole = f"{clock(m.seconds)} (h:mm:ss) for {m.steps} steps"
    if m.evaluation is not None:
        whole += f" and {m.evaluations} evaluations of {_seconds(m.evaluation)}"
    return [
        f"speed         {_rate(m.fed_images / m.fed)}, fed by the loader: "
        f"{_seconds(m.fed)} a step of {m.fed_images:g} images",
        f"data wait     {m.waited / m.fed:.0%} of a step",
        f"step alone    {_rate(m.alone_images / m.alone)}, on one batch again and again",
        f"loader alone  {_rate(m.loader)}",
        f"whole run     {whole}; checkpoints not counted",
    ]


def _rate(images_per_second: float) -> str:
    return f"{images_per_second:.{0 if images_per_second >= 100 else 1}f} img/s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
