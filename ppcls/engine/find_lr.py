"""``--find-lr``: raises the learning rate until the loss diverges, and suggests a rate (Smith 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
import paddle
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ppcls.data.bad_images.lists import suggest_skipping
from ppcls.data.loaders.batch import endless
from ppcls.engine.core.build import rate_scale
from ppcls.engine.core.hooks import NO_HOOKS
from ppcls.engine.loop import Run
from ppcls.engine.profiling.peak_memory import explain_out_of_memory
from ppcls.engine.setup import build_run
from ppcls.errors import counted
from ppcls.files import atomic_path
from ppcls.report.summary.environment import read_hardware
from ppcls.report.summary.facts import describe_device
from ppcls.runtime.collectives import all_reduce
from ppcls.runtime.start import Runtime

if TYPE_CHECKING:
    from ppcls.recipe.schema import Config

UPDATES = 100  # of the test, over which the rate rises from FIRST to LAST by equal factors
FIRST = 1e-6
LAST = 10.0
_SMOOTHING = 0.9  # weight of the previous average when a loss is added
_DIVERGED = 4.0  # ratio of the smoothed loss to its minimum at which the test ends
_WARM_UP = 10  # smallest number of updates before the test may end
# A quarter of the updates, 1.7 decades of rates. On noisy synthetic curves, windows of 21 and a limit of 3
# suggested rates that were wrong by up to four decades, and rates for 11 % of the curves that do not fall.
_WINDOW = 25
_SIGNIFICANCE = 4.0  # smallest ratio of a slope to its standard error
PICTURE = "find_lr.png"
_TITLE_WIDTH = 100  # characters


@dataclass(frozen=True)
class LearningRateTest:
    """Result of a learning rate range test.

    Attributes:
        rates: Learning rate of each update, [N], ascending.
        losses: Mean loss of each update over all ranks, [N].
    """

    rates: NDArray[np.float64]
    losses: NDArray[np.float64]

    @property
    def smoothed(self) -> NDArray[np.float64]:
        """Exponential moving average of the losses, corrected for its start at 0, [N]."""
        average = 0.0
        averages = []
        for number, loss in enumerate(self.losses, start=1):
            average = _SMOOTHING * average + (1.0 - _SMOOTHING) * loss
            averages.append(average / (1.0 - _SMOOTHING**number))
        return np.array(averages)

    @property
    def suggestion(self) -> float | None:
        """The rate at which the loss falls most steeply; None if no fall stands out from the noise.

        The slope at a rate is that of a line fitted to the losses of `_WINDOW` updates around it. Differences
        of smoothed losses are no substitute: an average hardly smooths its first losses, so that the noise
        between the first two batches was often the steepest slope.
        """
        if len(self.rates) < _WINDOW:
            return None
        logs = sliding_window_view(np.log(self.rates), _WINDOW)
        losses = sliding_window_view(self.losses, _WINDOW)
        steps = logs - logs.mean(1, keepdims=True)
        spread = (steps**2).sum(1)
        slopes = (steps * losses).sum(1) / spread
        residuals = losses - losses.mean(1, keepdims=True) - slopes[:, None] * steps
        falling = slice(int(losses.mean(1).argmin()) + 1)  # beyond the minimum, the loss diverges
        noise = np.median(np.sqrt((residuals[falling] ** 2).sum(1) / (_WINDOW - 2)))
        steepest = int(slopes[falling].argmin())
        if slopes[steepest] > -_SIGNIFICANCE * noise / np.sqrt(spread[steepest]):
            return None
        return float(self.rates[steepest + _WINDOW // 2])


def find_lr(config: Config, runtime: Runtime, output_dir: Path) -> str:
    """Runs the range test; rank 0 also writes a plot of the losses.

    The test trains the model with the optimizer and the data of the config, but saves no checkpoint.

    Args:
        output_dir: Existing folder for the plot.

    Returns:
        Lines of text, equal on all ranks.

    Raises:
        UserError: Training would fail as well, for example because of a bad image or too little memory.
    """
    with (
        explain_out_of_memory(runtime, config.used_splits, config.Global, config.AMP),
        suggest_skipping(config.DataLoader.splits),
    ):
        run = build_run(config, runtime, output_dir)
        try:
            test = _measure(run)
        finally:
            run.release()
    scale = rate_scale(config.Global, run.state.loader.order)
    factor = 1.0 if scale is None else scale.factor
    test = LearningRateTest(test.rates / factor, test.losses)  # rates of the config, before scaling
    if runtime.is_main:
        sampler = config.DataLoader.need_train().sampler
        size_name, size = sampler.batch_setting
        facts = [config.Arch.name, describe_device(read_hardware(runtime)), f"{size_name}: {size}"]
        title = f"Learning rate range test: {', '.join(facts)}, one run, {date.today()}"
        draw_test(test, output_dir / PICTURE, title)
    return describe_test(test, output_dir / PICTURE)


def _measure(run: Run) -> LearningRateTest:
    begin = run.state.progress.update + run.state.progress.schedule_shift
    state = replace(
        run.state, schedule=lambda update: FIRST * (LAST / FIRST) ** ((update - begin) / (UPDATES - 1))
    )
    state.network.train()
    rates = []
    losses = []
    lowest = math.inf
    sums = paddle.zeros([2], "float64")  # loss and images of the update, on this rank
    for batch in endless(state.loader):
        rate = state.learning_rate(state.update)
        loss = run.step(state, batch, NO_HOOKS)[0].astype("float64")
        sums = sums + paddle.stack([loss, paddle.to_tensor(float(batch.valid), "float64")])
        if not batch.update:
            continue
        total, images = all_reduce(sums, state.runtime.world_size).tolist()
        sums = paddle.zeros([2], "float64")
        if not math.isfinite(total):
            break
        rates.append(rate)
        losses.append(total / images)
        smoothed = LearningRateTest(np.array(rates), np.array(losses)).smoothed[-1]
        lowest = min(lowest, smoothed)
        if len(rates) == UPDATES or (len(rates) > _WARM_UP and smoothed > _DIVERGED * lowest):
            break
    return LearningRateTest(np.array(rates), np.array(losses))


def describe_test(test: LearningRateTest, picture: Path) -> str:
    """Returns the result and the suggested learning rate as lines of text."""
    suggestion = test.suggestion
    ended = f"up to {test.rates[-1]:.3g}" if len(test.rates) else "none: the first loss was non-finite"
    lines = [
        f"range test: {counted(len(test.rates), 'update')}, learning rates {ended}; plotted in {picture}"
    ]
    if suggestion is None:
        lines.append(
            "no suggestion: the loss did not fall clearly, compared with its noise between batches; look at "
            "the plot, use a larger batch size, or check data, labels and initial weights"
        )
    else:
        lines.append(f"the loss falls most steeply at {suggestion:.2g}: --lr {suggestion:.2g}")
    return "\n".join(lines) + "\n"


def draw_test(test: LearningRateTest, path: Path, title: str = "") -> None:
    """Plots the losses against the learning rates, and writes the plot to a PNG file atomically.

    Args:
        test: Result to plot.
        path: PNG file.
        title: Title of the plot.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120)
    axes = figure.add_subplot()
    axes.plot(test.rates, test.losses, linewidth=0.8, alpha=0.4, label="loss")
    axes.plot(test.rates, test.smoothed, label="smoothed")
    if (suggestion := test.suggestion) is not None:
        axes.axvline(suggestion, linestyle="--", color="#e08214", label=f"suggestion {suggestion:.2g}")
    if len(test.rates):
        axes.set_ylim(top=2.0 * float(test.smoothed[0]), bottom=min(0.0, float(test.losses.min())))
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss")
    axes.set_title(fill(title, _TITLE_WIDTH), fontsize="small", loc="left", parse_math=False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")
