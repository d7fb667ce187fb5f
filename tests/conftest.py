"""Photographs in every format that users bring, made once for all tests."""

from __future__ import annotations

import atexit
import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import settings
from omitted_pictures import ADD_HEAT_MAPS, DRAW_CURVES, omit_curves, omit_heat_maps
from PIL import Image
from skimage import data
from small_config import cpu, images, make_config, make_yaml

from ppcls import registry
from ppcls.report.charts import CurvesPicture
from ppcls.report.html import HtmlReport

__all__ = ["cpu", "images", "make_config", "make_yaml"]  # fixtures

settings.register_profile("ppcls", deadline=None, derandomize=True, database=None)
settings.load_profile("ppcls")


def pytest_configure() -> None:
    """Restores default signal handling, which background shells and nohup switch off for all children.

    Also forbids downloads; tests of downloads use a local server. Garbage is not collected until all tests
    are imported, nor when the process ends: the objects of modules are not garbage, but visiting them takes
    seconds.
    """
    gc.disable()
    atexit.register(gc.freeze)
    os.environ["PPCLS_OFFLINE"] = "1"
    # Processes of xdist and of tests keep all cores busy. If NumPy used several threads, they would wait for
    # each other in a loop, and a training would take up to three times the CPU time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


# The longest files run first. At the end, one of them would keep only one of the processes busy.
LONGEST = {
    *("test_architectures.py", "test_distributed.py", "test_doc_commands.py", "test_examples.py"),
    *("test_timm_names.py", "test_watchdog.py"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the tests of the longest files to the front, and spreads those of servers among the others.

    Tests of servers wait most of the time. If all processes ran them at the same time, no core would be busy.
    """
    files = list(dict.fromkeys(item.path for item in items))
    waiting = [file for file in files if file.parent.name == "serve"]
    others = [file for file in files if file.parent.name != "serve"]
    places: dict[Path, float] = {file: number for number, file in enumerate(others)}
    places |= {file: number * len(others) / len(waiting) for number, file in enumerate(waiting)}
    items.sort(key=lambda item: (item.path.name not in LONGEST, places[item.path]))


def pytest_collection_finish() -> None:
    """Exempts all imported modules and collected tests from garbage collection.

    Loaders and tests collect garbage explicitly, which otherwise takes a second of each. The little garbage
    of the imports stays: finding it takes two seconds of each process. Besides, garbage is collected less
    often than by default, because tests create little.
    """
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Exempts what remains after the tests of a file, mostly imported modules, from garbage collection.

    Loaders and tests collect garbage explicitly, which would visit a million objects each time.
    """
    result = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


def _exit_process(process: subprocess.Popen[Any], kind: Any, error: Any, trace: Any) -> None:
    """Ends the block of ``with subprocess.Popen``. If it failed, its process is killed, not awaited."""
    if kind is not None:
        process.kill()
    _await_process(process, kind, error, trace)


_await_process = subprocess.Popen.__exit__
subprocess.Popen.__exit__ = _exit_process  # type: ignore[method-assign]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Ends the processes that failed tests left behind, such as those that pytest-timeout ended."""
    if session.config.pluginmanager.hasplugin("dsession"):
        return  # the controller of xdist, whose workers end their own processes
    gc.collect()  # Paddle raises an error if a worker of a loader that still exists is killed
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not _has_gpu():
        pytest.skip("no NVIDIA GPU that this Paddle can use")
    several = item.get_closest_marker("several_gpus")
    if several is not None and _gpu_count() < several.args[0]:
        pytest.skip(f"fewer than {several.args[0]} NVIDIA GPUs that this Paddle can use")


@pytest.fixture(autouse=True)
def _random_numbers() -> None:
    """Seeds all generators, so that a test does not depend on the tests before it in its process."""
    random.seed(0)
    np.random.seed(0)
    if (paddle := sys.modules.get("paddle")) is not None:
        paddle.seed(0)


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked ``gpu`` begin on the first GPU, all others wherever Paddle is; each puts it back."""
    if not request.node.get_closest_marker("gpu"):
        yield
        return
    import paddle

    before = paddle.device.get_device()
    paddle.set_device("gpu:0")
    yield
    paddle.set_device(before)


REGISTRIES = [entry for entry in vars(registry).values() if isinstance(entry, registry.Registry)]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """Removes the components that a test defines, which register themselves, from the registries."""
    before = [set(entries._entries) for entries in REGISTRIES]
    yield
    for entries, names in zip(REGISTRIES, before, strict=True):
        for name, entry in list(entries._entries.items()):
            # Built-in components stay: the registry imports their modules only once.
            if name not in names and not getattr(entry, "__module__", "ppcls.").startswith("ppcls."):
                del entries._entries[name]


# Pictures of trainings, which would take half of the time of a small one. Tests that look at them draw them.
omit_curves()
omit_heat_maps()


@pytest.fixture
def drawn_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the test draw ``curves.png``."""
    monkeypatch.setattr(CurvesPicture, "close", DRAW_CURVES)


@pytest.fixture
def drawn_heat_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of the test's runs have heat maps."""
    monkeypatch.setattr(HtmlReport, "_add_heat_maps", ADD_HEAT_MAPS)


@pytest.fixture(autouse=True)
def _brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the pause of a second in which ``paddle.io`` waits for the thread of an abandoned iterator."""
    iterators = sys.modules.get("paddle.io.dataloader.dataloader_iter")
    if iterators is not None:
        monkeypatch.setattr(
            iterators, "time", SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 50))
        )


def _has_gpu() -> bool:
    return _gpu_count() > 0


@cache
def _gpu_count() -> int:
    import paddle

    return paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0


Save = Callable[[Image.Image, Path], None]


def _turn_by_exif(image: Image.Image, path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to see it upright
    image.transpose(Image.Transpose.ROTATE_90).save(path, quality=95, subsampling=0, exif=exif)


def _save_with_alpha(image: Image.Image, path: Path) -> None:
    alpha = np.linspace(0, 255, image.width, dtype=np.uint8)[None].repeat(image.height, axis=0)
    image.putalpha(Image.fromarray(alpha))
    image.save(path)


FORMATS: dict[str, tuple[str, Save]] = {
    "jpeg420": ("jpg", lambda image, path: image.save(path, quality=92, subsampling=2)),
    "jpeg444": ("jpg", lambda image, path: image.save(path, quality=92, subsampling=0)),
    "progressive": ("jpg", lambda image, path: image.save(path, quality=92, progressive=True)),
    "grey": ("jpg", lambda image, path: image.convert("L").save(path, quality=92)),
    "cmyk": ("jpg", lambda image, path: image.convert("CMYK").save(path, quality=95)),
    "turned": ("jpg", _turn_by_exif),
    "png": ("png", lambda image, path: image.save(path)),
    "alpha": ("png", _save_with_alpha),
    "palette": ("png", lambda image, path: image.quantize(64).save(path)),
    "greypng": ("png", lambda image, path: image.convert("L").save(path)),
    "bmp": ("bmp", lambda image, path: image.save(path)),
    "webp": ("webp", lambda image, path: image.save(path, lossless=True)),
    "jpeg2000": ("jp2", lambda image, path: image.save(path)),  # lossless by default
    "tiff": ("tif", lambda image, path: image.save(path, compression="tiff_lzw")),
}


@pytest.fixture(scope="session")
def scenes() -> dict[str, Image.Image]:
    """Three photographs: landscape, portrait, and one with odd sides."""
    astronaut, chelsea, coffee = (
        Image.fromarray(getattr(data, name)()) for name in ("astronaut", "chelsea", "coffee")
    )
    return {
        "landscape": coffee.resize((320, 214), Image.Resampling.LANCZOS),
        "portrait": astronaut.crop((80, 0, 432, 512)).resize((176, 256), Image.Resampling.LANCZOS),
        "odd": chelsea.crop((7, 5, 440, 294)).resize((217, 145), Image.Resampling.LANCZOS),
    }


@pytest.fixture(scope="session")
def photos(scenes: dict[str, Image.Image], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``"jpeg420-portrait"`` and so on, each scene in each format of `FORMATS`, to its file."""
    folder = tmp_path_factory.mktemp("photos")
    made = {}
    for scene, image in scenes.items():
        for name, (suffix, save) in FORMATS.items():
            path = made[f"{name}-{scene}"] = folder / f"{name}-{scene}.{suffix}"
            save(image.copy(), path)
    return made
