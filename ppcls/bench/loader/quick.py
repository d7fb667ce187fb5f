"""Quick loader benchmark: compares ppcls's DALI and paddle.io loaders with a bare DALI pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ppcls.bench.loader.advice import dali_setting
from ppcls.bench.loader.bare import check_bare
from ppcls.bench.loader.runners import BatchTimer, Loaders, loader_candidate
from ppcls.bench.loader.settings import LoaderSetting
from ppcls.bench.loader.workload import LoaderWorkload

_BARE, _OURS = "bare DALI pipeline", "ppcls, DALI"


def quick_candidates(
    workload: LoaderWorkload, workers: Sequence[int], timer: BatchTimer, *, mixup: bool = False
) -> Loaders:
    """Returns the bare pipeline, ppcls's DALI loader, and its paddle.io loader with each number of workers.

    Raises:
        UserError: The images or the transforms are not supported; see `check_bare`.
    """
    check_bare(workload)
    dali = dali_setting(workload)
    settings = {_BARE: replace(dali, backend="bare DALI"), _OURS: dali}
    if mixup:
        settings["ppcls, DALI + Mixup"] = replace(dali, mixup=True)
    for count in workers:
        settings[f"ppcls, paddle.io, {count} workers"] = LoaderSetting("paddle.io", count)
    loaders = [
        loader_candidate(setting, workload, timer, name, {"loader": name})
        for name, setting in settings.items()
    ]
    for loader in loaders:
        loader.base = (f"of {_BARE}", loaders[0])
    return loaders


def compare_loaders(loaders: Loaders) -> Iterator[str]:
    """Yields sentences that compare the speed of ppcls's DALI loader with that of its other loaders."""
    ours = next(each for each in loaders if each.name == _OURS)
    for each in loaders[2:]:
        if ours.samples and each.samples:
            yield f"{_OURS} is {ours.ratio(each).median:.2f} times as fast as {each.name}"
