"""What was measured before a run decides the threads of training and the layers of predictions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from small_classifier import config_tree, write_config, write_image, write_weights

from ppcls.arch.fuse import InferenceLayers
from ppcls.deploy.predictor import Predictor
from ppcls.engine.autotune import record as module
from ppcls.engine.autotune.record import choose_inference, training_settings
from ppcls.engine.core.settings import Autotuned
from ppcls.recipe.load import load_config
from ppcls.recipe.settings import Global


def record_of(**changes: Any) -> dict[str, Any]:
    rates = {"a way": 1.0}
    values = {"machine": "a CPU", "data_format": "NCHW", "fused_kernels": False, "threads": 3}
    return {**values, "images_per_second": rates, "inference_images_per_second": rates, **changes}


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_cpu_model", lambda: "a CPU")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.parametrize(
    ("record", "own", "variable", "threads"),
    [
        ({}, None, None, 3),
        ({}, None, "3", 3),
        ({}, None, "2", None),  # Paddle may be imported
        ({}, 2, None, 2),
        ({"machine": "another"}, None, None, None),
        ({"threads": None}, None, None, None),
        (None, None, None, None),
    ],
)
def test_training_has_the_measured_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
    record: dict[str, Any] | None,
    own: int | None,
    variable: str | None,
    threads: int | None,
) -> None:
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    measured = None if record is None else Autotuned(**record_of(**record))
    assert training_settings(Global(cpu_threads=own), measured).cpu_threads == threads


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, (False, "NCHW")),
        ({"data_format": "NHWC", "fused_kernels": True}, ("auto", "NHWC")),
        ({"machine": "another"}, (True, None)),
        (None, (True, None)),
    ],
)
def test_predictions_use_the_fastest_inference(
    record: dict[str, Any] | None, expected: tuple[Literal["auto", False], str | None]
) -> None:
    measured = None if record is None else Autotuned(**record_of(**record))
    assert choose_inference(Global(fused_kernels=True, autotuned=measured)) == expected


@pytest.mark.parametrize(
    ("override", "kept"),
    [
        ("Global.fused_kernels=False", False),
        ("Arch.data_format=NCHW", False),
        ("Arch.name=ResNet18", False),
        ("Arch.name=PPLCNet_x0_25", True),  # the same value, as in a resumed run
        ("Global.epochs=3", True),
    ],
)
def test_overrides_are_preferred_to_the_measurement(
    make_yaml: Callable[..., Path], override: str, kept: bool
) -> None:
    config = load_config(make_yaml(Global__autotuned=record_of()), [override])
    assert (config.Global.autotuned is not None) == kept


@pytest.mark.parametrize("fused", [False, True])
def test_predictor_uses_the_measured_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    """The model was trained with the other layers."""
    chosen: list[InferenceLayers] = []
    apply = InferenceLayers.apply

    def spy(layers: InferenceLayers, *args: Any, **options: Any) -> None:
        chosen.append(layers)
        apply(layers, *args, **options)

    monkeypatch.setattr(InferenceLayers, "apply", spy)
    trained, other = ("NCHW", "NHWC") if fused else ("NHWC", "NCHW")
    tree = config_tree(write_weights(tmp_path / "weights.safetensors"), None, trained)
    tree["Global"] |= {"fused_kernels": not fused}
    image = write_image(tmp_path / "image.png", 0).read_bytes()
    before = Predictor(write_config(tmp_path / "before.yaml", tree)).predict([image])[0]
    tree["Global"]["autotuned"] = record_of(data_format=other, fused_kernels=fused)
    after = Predictor(write_config(tmp_path / "after.yaml", tree)).predict([image])[0]
    assert [layers.fuses for layers in chosen] == [not fused, fused]
    assert chosen[1].arch.data_format == other
    np.testing.assert_allclose(after.scores, before.scores, rtol=1e-4)


# Pretends that one thread is faster, on a machine with hyperthreads.
RUN = """
import json, sys
from ppcls import fit, load_config
from ppcls.engine.autotune import autotune as module

def measure(machine, text, noise):
    single = "cpu_threads: 1" in text
    return {"images_per_second": 2.0 if single else 1.0, "inference_images_per_second": 1.0,
            "step": 1.0, "losses": [1.0]}

module._measure_on = measure
module.saves_time = lambda *_: True
module.usable_cores = lambda: 2
module.physical_cores = lambda: 1
result = fit(load_config(sys.argv[1]))
print(json.dumps([str(result.latest), (result.output_dir / "train.log").read_text()]))
"""


@pytest.mark.slow
def test_resumed_run_has_the_measured_threads_and_the_same_weights(
    make_yaml: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "home"))
    weights = []
    for name, epochs in (("whole", [2]), ("resumed", [1, 2])):
        for last in epochs:
            config = make_yaml(
                name,
                Global__epochs=last,
                Global__checkpoints="auto",
                Global__use_dali=False,
                Arch__name="ResNet18",
                Optimizer__lr={"name": "Constant", "learning_rate": 0.01},
            )
            command = [sys.executable, "-c", RUN, str(config)]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            latest, log = json.loads(run.stdout.splitlines()[-1])
            assert "Paddle uses 1 thread" in log
            assert "threads of Paddle" not in log
        weights.append((Path(latest) / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
