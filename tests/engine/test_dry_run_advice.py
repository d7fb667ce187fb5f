"""`advise`: the setting to change, for each kind of measured bottleneck."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.data.loaders.section import Dali
from ppcls.engine.advice import DiskSpeed, LoadingSpeed, advise

SLOW = LoadingSpeed(
    loader=500.0,
    step=1000.0,
    waiting=0.5,
    by_dali=True,
    dali_can=True,
    on_gpu=True,
    cores=16,
    workers=4,
    threads=16,
    decoding="gpu",
    can_share=True,
    dali=Dali(),
    picture=187_500.0,
    pixels_used=224 * 224,
)


def with_dali(**settings: Any) -> dict[str, Any]:
    return {"dali": Dali(**settings)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"waiting": 0.05, "loader": 2000.0}, "none: the loader is fast enough (alone, it is 2.0 times"),
        ({"by_dali": False}, "set Global.use_dali=True"),
        ({"disk": DiskSpeed(700.0, 70.0, fits=True), "by_dali": False}, "set Global.use_dali=True"),
        ({"disk": DiskSpeed(1100.0, 110.0, fits=False), "by_dali": False}, "set Global.use_dali=True"),
        (
            {"disk": DiskSpeed(700.0, 70.0, fits=False), "waiting": 0.0},
            "use a faster disk, containers (ppcls dataset convert) or smaller images (ppcls dataset resize): "
            "the data set is larger than the memory, and its disk reads 700 images/s, but training could use "
            "1000",
        ),
        (
            {"by_dali": False, "dali_can": False},
            "raise DataLoader.Train.loader.num_workers from 4 to 16: the process has 16 cores",
        ),
        ({"by_dali": False, "dali_can": False, "workers": 16}, "use more CPU cores per process"),
        (
            {"threads": 2, **with_dali(num_threads=2)},
            "set DataLoader.Train.loader.dali.num_threads=auto: it is 2",
        ),
        ({"threads": 15}, "use more CPU cores per process"),
        (with_dali(prefetch_queue_depth=1), "set DataLoader.Train.loader.dali.prefetch_queue_depth=auto"),
        (with_dali(exec_dynamic=False), "set DataLoader.Train.loader.dali.exec_dynamic=True"),
        (with_dali(decode="whole"), "set DataLoader.Train.loader.dali.decode=auto"),
        (with_dali(decode="whole", cache_size=100), "use more CPU cores per process"),
        (with_dali(hw_decoder_load=0.2), "set DataLoader.Train.loader.dali.hw_decoder_load=auto: it is 0.2"),
        (
            with_dali(jpeg_fancy_upsampling=True),
            "set DataLoader.Train.loader.dali.jpeg_fancy_upsampling=False",
        ),
        ({"loader": 3000.0}, "set DataLoader.Train.loader.dali.decode_on=cpu: a GPU decodes slowly"),
        (
            {"loader": 3000.0, "cores": 8, "threads": 7},
            "set DataLoader.Train.loader.dali.decode_on=both: a GPU decodes slowly",
        ),
        (
            {"loader": 3000.0, "cores": 8, "threads": 7, "can_share": False},
            "use more CPU cores per process",
        ),
        ({"loader": 3000.0, "cores": 4, "threads": 4}, "use more CPU cores per process"),
        ({"loader": 3000.0, "decoding": "both"}, "use more CPU cores per process"),
        (
            {"decoding": "cpu"},
            "set DataLoader.Train.loader.dali.decode_on=both: the GPU can decode a part of the batches",
        ),
        ({"decoding": "cpu", "can_share": False}, "use more CPU cores per process"),
        ({"decoding": "cpu", "cores": 4, "threads": 4}, "use more CPU cores per process"),
        ({"picture": 12e6}, "store smaller images (DataLoader.Train.dataset): they have 12.0 million pixels"),
        ({"picture": None}, "use more CPU cores per process"),
        ({"on_gpu": False}, "set DataLoader.Train.loader.dali.jpeg_fast_idct=True"),
        ({"on_gpu": False, **with_dali(jpeg_fast_idct=True)}, "use more CPU cores per process"),
        (
            {"on_gpu": False, **with_dali(hw_decoder_load=0.2)},
            "set DataLoader.Train.loader.dali.jpeg_fast_idct",
        ),
    ],
)
def test_advise_names_the_setting_to_change(changes: dict[str, Any], said: str) -> None:
    assert advise(replace(SLOW, **changes)).startswith(said)


def test_advise_states_the_speed_of_the_loader() -> None:
    assert advise(SLOW).endswith("(alone, the loader is 0.50 times as fast as training)")


@given(
    waiting=st.floats(0.0, 1.0),
    by_dali=st.booleans(),
    dali_can=st.booleans(),
    on_gpu=st.booleans(),
    workers=st.integers(0, 32),
    threads=st.integers(1, 32),
    picture=st.none() | st.floats(1.0, 1e9),
)
def test_advise_answers_for_any_measurement(**facts: Any) -> None:
    assert advise(replace(SLOW, **facts))
