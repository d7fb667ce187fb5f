"""The state of a large model is stored once, and needs no second copy of everything in memory."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import paddle
import pytest
from paddle import nn, optimizer
from paddle.base import core
from paths import SUPPORT
from run_checkpoints import checkpoints_of
from small_net import assert_equal, content, make_state

from ppcls.engine.checkpoint.checkpoints import LATEST
from ppcls.engine.checkpoint.resume import resume
from ppcls.engine.checkpoint.snapshot import OPTIMIZER
from ppcls.engine.core.precision import FP32
from ppcls.engine.core.state import TrainState
from ppcls.optimizer.state import optimizer_state
from ppcls.weights.files import WEIGHTS, read_arrays, write_arrays
from ppcls.weights.manifest import read_manifest, read_record, write_manifest

LAYERS = 16
TENSOR = 4 * 256 * 1024  # bytes of the weights of one layer
OUT_OF_MEMORY = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from paddle import nn, optimizer
from run_checkpoints import checkpoints_of
from small_net import make_state
from ppcls.engine.checkpoint.resume import resume
from ppcls.errors import UserError

def build():
    return make_state(model=nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]), kind=optimizer.AdamW)

folder = Path(sys.argv[1])
state = build()
checkpoints_of(folder, state.config).save(state, ["latest"])
for mebibytes in (2, 30, 58, 86, 114, 4000):
    again = build()
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (mebibytes << 20), -1))
    try:
        resume(again, folder / "latest")
        text = "resumed"
    except UserError as error:
        text = str(error)
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    print(text.replace("\\n", " "))
"""


class HalfWeights(FP32):
    """Float16 weights with master weights, as AMP O2 has on GPUs."""

    master_weights = True

    def prepare(self, model: nn.Layer, optimizer: Any | None) -> None:
        super().prepare(model, optimizer)
        for name in ("conv", "fc"):
            getattr(model, name).to(dtype="float16")


def deep(**options: Any) -> TrainState:
    return make_state(model=nn.Sequential(*[nn.Linear(256, 1024) for _ in range(LAYERS)]), **options)


def test_master_weights_are_stored_once_and_older_checkpoints_resume_with_the_same_bits(
    tmp_path: Path,
) -> None:
    state = make_state(precision=HalfWeights(), kind=optimizer.AdamW)
    masters = {
        key: value.add_(paddle.rand(value.shape) * 2e-5)  # float16 has no such numbers
        for key, value in optimizer_state(state.optimizer, state.model).items()
        if key.endswith("/master")
    }
    assert masters
    checkpoints_of(tmp_path, state.config).save(state, [LATEST])
    folder = tmp_path / LATEST
    stored = read_arrays(folder / OPTIMIZER)
    assert not masters.keys() & stored.keys()
    whole = optimizer_state(state.optimizer, state.model)
    for older in (False, True):
        if older:  # as older versions wrote it
            write_arrays(folder / OPTIMIZER, whole)
            manifest = read_manifest(folder)
            files = {name: read_record(folder / name) for name in manifest.files}
            write_manifest(folder, manifest.model_copy(update={"files": files}))
        again = make_state(precision=HalfWeights(), seed=2, kind=optimizer.AdamW)
        resume(again, folder)
        assert_equal(optimizer_state(again.optimizer, again.model), whole)
        weights = read_arrays(folder / WEIGHTS)
        for key in masters:
            name = key.removesuffix("/master")
            assert_equal({key: weights[name]}, {key: whole[key]})
            # Not NumPy's conversion: on a CPU, Paddle 2.6 cuts off the digits that float16 lacks.
            half = paddle.to_tensor(weights[name]).astype("float16")
            assert_equal({key: again.model.state_dict()[name]}, {key: half})


@pytest.mark.skipif(
    not hasattr(core, "host_memory_stat_reset_peak_value"), reason="Paddle 2.6 cannot reset memory peaks"
)
@pytest.mark.parametrize("decay", [None, 0.9], ids=["without average", "with average"])
def test_tensors_are_restored_one_by_one(tmp_path: Path, decay: float | None) -> None:
    state = deep(kind=optimizer.AdamW, decay=decay)
    checkpoints_of(tmp_path, state.config).save(state, [LATEST])
    again = deep(kind=optimizer.AdamW, decay=decay, seed=2)
    optimizer_state(again.optimizer, again.model)  # the state itself needs memory
    core.host_memory_stat_reset_peak_value("Allocated", 0)
    before = core.host_memory_stat_current_value("Allocated", 0)
    tracemalloc.start()
    try:
        resume(again, tmp_path / LATEST)
        arrays = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    tensors = core.host_memory_stat_peak_value("Allocated", 0) - before
    assert tensors < 3 * TENSOR
    assert arrays < 3 * TENSOR
    assert_equal(content(again.model), content(state.model))


def test_missing_memory_at_a_resume_is_an_error_message(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, str(tmp_path), str(SUPPORT)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    *failed, last = result.stdout.splitlines()
    assert last == "resumed"
    errors = [line for line in failed if line != "resumed"]
    assert len(errors) > 1
    assert all("there is not enough memory to re" in line for line in errors), errors
