"""Temperature scaling: the number that is found, where it is stored, and what uses it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from ppcls.cli.eval import calibrate
from ppcls.cli.export import export
from ppcls.deploy.models.description import describe_model
from ppcls.deploy.models.source import find_source
from ppcls.deploy.models.temperature import (
    TemperatureScaling,
    describe_limit,
    expected_calibration_error,
    read_temperature,
    scaling_for,
)
from ppcls.errors import UserError
from ppcls.metric.functional.single_label import calibration_counts, calibration_error
from ppcls.postprocess.methods import MultiLabelThreshOutput, Topk
from ppcls.postprocess.section import Infer
from ppcls.recipe.load import dump_config

RANDOM = np.random.default_rng(0)


def draw_labels(logits):
    return (logits + RANDOM.gumbel(size=logits.shape)).argmax(axis=1).astype(float)


def test_fit_temperature_of_overconfident_softmax_recovers_it() -> None:
    logits = RANDOM.standard_normal((20_000, 5)) * 2
    values = dict(zip(TemperatureScaling().names, _compute(3 * logits, draw_labels(logits)), strict=True))
    assert values["temperature"] == pytest.approx(3, rel=0.05)
    assert values["ece_scaled"] < 0.02 < 0.1 < values["ece"]
    assert values["nll_scaled"] < values["nll"]


def test_fit_temperature_of_overconfident_sigmoids_recovers_it() -> None:
    logits = RANDOM.standard_normal((5_000, 6))
    labels = (RANDOM.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
    assert _compute(2 * logits, labels)[0] == pytest.approx(2, rel=0.05)


def test_fit_temperature_of_a_single_class_is_that_of_a_sigmoid() -> None:
    logits = RANDOM.standard_normal((5_000, 1))
    labels = (RANDOM.random(5_000) < 1 / (1 + np.exp(-logits[:, 0]))).astype(float)
    assert _compute(2 * logits, labels)[0] == pytest.approx(2, rel=0.1)


def _compute(logits, labels):
    return TemperatureScaling().compute(logits.astype(np.float32), labels)


def test_temperature_at_the_end_of_its_range_is_reported() -> None:
    logits = np.random.default_rng(0).normal(0, 5, (300, 4))
    right, wrong = logits.argmax(axis=1), logits.argmin(axis=1)
    assert "don't fit the predictions" in describe_limit(TemperatureScaling().compute(logits, wrong)[0], 300)
    assert "lower limit" in describe_limit(TemperatureScaling().compute(logits, right)[0], 300)
    noisy = np.where(np.arange(300) % 3 == 0, wrong, right)
    assert not describe_limit(TemperatureScaling().compute(logits, noisy)[0], 300)


def test_lower_limit_of_the_temperature_keeps_decisions_with_thresholds() -> None:
    logits = np.random.default_rng(0).normal(0, 5, (300, 4))
    scaling = scaling_for(MultiLabelThreshOutput(threshold=0.95))
    assert 0.2 < scaling.lowest < 0.3
    temperature = scaling.compute(logits, (logits > 0).astype(float))[0]
    assert temperature == pytest.approx(scaling.lowest, rel=1e-3)
    assert "threshold could no longer separate" in describe_limit(temperature, 300, scaling.lowest)
    assert scaling_for(Topk()) == scaling_for(None) == TemperatureScaling()


def test_fit_temperature_of_non_finite_logits_is_nan() -> None:
    assert np.isnan(_compute(np.full((2, 3), np.inf), np.zeros(2))).all()


def test_calibration_error_equals_the_metric(cpu) -> None:
    import paddle

    logits = RANDOM.standard_normal((300, 4)).astype(np.float32)
    labels = draw_labels(logits)
    counts = calibration_counts(paddle.to_tensor(logits), paddle.to_tensor(labels.astype("int64")), 15)
    expected = calibration_error(counts.numpy().astype(float))
    assert expected_calibration_error(logits.astype(float), labels) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("text", ["{}", '{"temperature": 0}', "no JSON"])
def test_invalid_temperature_file_is_an_error(tmp_path: Path, text: str) -> None:
    assert read_temperature(tmp_path) == 1.0
    (tmp_path / "temperature.json").write_text(text)
    with pytest.raises(UserError, match=r"temperature\.json: expected .* run ppcls calibrate again"):
        read_temperature(tmp_path)


@pytest.mark.slow
def test_calibrated_checkpoint_is_exported_with_its_temperature(make_config, tmp_path, capsys) -> None:
    from ppcls import fit
    from ppcls.deploy.models.paddle_inference import PaddleInferenceModel
    from ppcls.deploy.predictor import Predictor
    from ppcls.runtime.start import Runtime

    transforms = [{"DecodeImage": None}, {"ResizeImage": {"size": 16}}, {"NormalizeImage": None}]
    config = make_config(
        Global__use_dali=False,
        Global__epochs=1,
        Infer={"transforms": transforms, "PostProcess": {"name": "Topk", "topk": 2}},
    )
    best = fit(config).best_model
    assert best is not None
    source = find_source(best)
    images = RANDOM.standard_normal((3, *source.description.Input.shape[1:])).astype(np.float32)
    plain = Predictor(source, runtime=Runtime()).model.run(images)

    assert calibrate(["--model", config.Global.output_dir, "--trust"]) == 0
    said = capsys.readouterr().out
    assert f"[Calibrate] {best / 'temperature.json'}: temperature " in said
    (best / "temperature.json").write_text(json.dumps({"temperature": 2.0}))  # whatever was found

    source = find_source(best)
    scaled = Predictor(source, runtime=Runtime()).model.run(images)
    expected = np.sqrt(plain) / np.sqrt(plain).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(scaled, expected, rtol=1e-5)
    folder = tmp_path / "exported"
    assert export(["--model", str(best), "-o", f"Global.save_inference_dir={folder}"]) == 0
    assert yaml.safe_load((folder / "inference.yml").read_text())["Output"]["temperature"] == 2.0
    source = find_source(folder)
    exported = PaddleInferenceModel(source.file, source.description, Runtime()).run(images)
    np.testing.assert_allclose(exported, expected, rtol=1e-3)
    assert "temperature" not in dump_config(config)


@pytest.mark.hostile
@pytest.mark.parametrize("text", ["1e-300", "1e300", "0", "-1", "NaN", "Infinity", '"1"' * 2, "[" * 5000, ""])
def test_other_temperature_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "temperature.json").write_text(f'{{"temperature": {text}}}')
    with pytest.raises(UserError, match=r"temperature\.json: expected"):
        read_temperature(tmp_path)


@pytest.mark.parametrize("threshold", [0.8, [0.8, 0.5, 0.2, 0.9]])
def test_thresholds_are_calibrated_with_the_scores(make_config, tmp_path, threshold) -> None:
    """The description has the calibrated threshold, and ``-o`` refers to scores without the temperature."""
    method = {"name": "MultiLabelThreshOutput", "threshold": threshold}
    transforms = [{"DecodeImage": None}, {"ResizeImage": {"size": 16}}, {"NormalizeImage": None}]
    arch = make_config().Arch
    infer = Infer.model_validate({"transforms": transforms, "PostProcess": method})
    (tmp_path / "inference.yml").write_text(describe_model(arch, infer, None, 2.0).as_yaml())
    (tmp_path / "inference.onnx").write_bytes(b"not read")

    def found(*overrides: str) -> object:
        postprocess = find_source(tmp_path, overrides).description.postprocess
        assert isinstance(postprocess, MultiLabelThreshOutput)
        return postprocess.threshold

    expected = infer.PostProcess.calibrated(2.0).threshold
    assert np.ravel(expected)[0] == pytest.approx(2 / 3)
    assert found() == expected
    assert found("Infer.PostProcess.threshold=0.9") == pytest.approx(0.75)
