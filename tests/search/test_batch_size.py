"""The search for the largest batch size that fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ppcls.cli import train as cli
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.search import batch_size as module
from ppcls.search.batch_size import find_batch_size, largest_fitting, try_batch


def find(config: Config, report: Callable[[str], None]) -> str:
    sampler = config.DataLoader.need_train().sampler
    return find_batch_size(config.model_dump(mode="json"), sampler, config.Global.update_freq, report)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 5, 6, 11, 12, 99])
def test_bisection_finds_the_largest_size_with_few_trials(limit: int) -> None:
    sizes, tried = [12, 6, 4, 3, 2, 1], []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    assert largest_fitting(sizes, fits) == max((size for size in sizes if size <= limit), default=None)
    assert len(tried) <= 4


def test_accumulation_keeps_the_images_per_update(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    def try_small(_config: Path, overrides: list[str]) -> tuple[bool, str]:
        return int(overrides[0].rpartition("=")[2]) <= 5, "tried"

    monkeypatch.setattr(module, "try_batch", try_small)
    config, lines = make_config(Global__update_freq=2), []
    text = find(config, lines.append)
    assert text.endswith("-o DataLoader.Train.sampler.batch_size=4 Global.update_freq=4")
    assert "to keep 16 images per update" in text
    assert "batch_size 16: tried" in lines


def test_nothing_fits_is_an_error(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "try_batch", lambda *_: (False, "out of memory"))
    with pytest.raises(UserError, match="even batch_size 1 does not fit"):
        find(make_config(), lambda _: None)


@pytest.mark.slow
def test_dry_run_of_each_size_is_reported(make_yaml, capsys) -> None:
    config = make_yaml(Global__use_dali=False)
    assert cli.train(["-c", str(config), "--find-batch-size"]) == 0
    text = capsys.readouterr().out
    assert "batch_size 8: fits; " in text
    assert "images/s" in text
    assert "MiB" in text
    assert text.endswith("batch_size=8 Global.update_freq=1\n")


NET = """
from ppcls.config.custom import register_architecture

register_architecture("HungryNet5", "hungry_net_5:build")

def build(class_num, data_format, input_image_channel):
    import paddle

    class Net(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.fc = paddle.nn.Linear(3, class_num)

        def forward(self, image):
            if len(image) > 5:
                paddle.zeros([1 << 45])
            return self.fc(image.mean([2, 3]))

    return Net()
"""


@pytest.mark.slow
def test_batches_that_exceed_the_memory_are_halved(make_yaml, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "hungry_net_5.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    config = make_yaml(
        Global__use_dali=False,
        Global__import_modules=["hungry_net_5"],
        Arch={"name": "HungryNet5", "class_num": 4},
        DataLoader__Eval__sampler__batch_size=4,
    )
    assert cli.train(["-c", str(config), "--find-batch-size"]) == 0
    text = capsys.readouterr().out
    assert "batch_size 8: out of memory: could not allocate " in text
    assert text.endswith("batch_size=4 Global.update_freq=2\n")


def test_other_errors_end_the_search(make_yaml) -> None:
    with pytest.raises(UserError, match=r"--find-batch-size: .*no such list file"):
        try_batch(make_yaml(), ["DataLoader.Train.dataset.cls_label_path=gone.txt"])
