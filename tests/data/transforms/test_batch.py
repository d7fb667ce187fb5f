"""Mixing of batches: ``batch_transform_ops``."""

from __future__ import annotations

import pytest
from quickstart import problems, read

from ppcls.data.transforms.batch import BatchTransform, CutmixOperator, MixupOperator, OpSampler, SampledMixup
from ppcls.registry import BATCH_TRANSFORMS

KEY = "DataLoader.Train.dataset.batch_transform_ops"


@pytest.mark.parametrize(
    ("yaml", "specs"),
    [
        ("[]", ()),
        ("[MixupOperator]", (MixupOperator(alpha=1.0),)),
        ("[{MixupOperator: {alpha: 1.0/5.0}}]", (MixupOperator(alpha=0.2),)),
        (
            "[{OpSampler: {MixupOperator: {alpha: 0.8, prob: 0.5}}}]",
            (OpSampler(MixupOperator=SampledMixup(alpha=0.8, prob=0.5)),),
        ),
        ("[{MixupOperator: {last_epoch: 1}}]", (MixupOperator(last_epoch=1),)),
        ("[{CutmixOperator: {last_epoch: null}}]", (CutmixOperator(),)),
        (
            "[{OpSampler: {last_epoch: 5, MixupOperator: {prob: 0.5}}}]",
            (OpSampler(last_epoch=5, MixupOperator=SampledMixup(prob=0.5)),),
        ),
    ],
)
def test_batch_transforms_valid_are_read(yaml: str, specs: tuple[object, ...]) -> None:
    assert read(f"{KEY}={yaml}").DataLoader.Train.dataset.batch_transform_ops == specs


@pytest.mark.parametrize(
    "yaml",
    [
        "[{CutmixOperator: {alpha: 0.2}}]",
        "[{OpSampler: {MixupOperator: {alpha: 0.8, prob: 0.5}, CutmixOperator: {alpha: 1.0, prob: 0.5}}}]",
        "[{OpSampler: {CutmixOperator: {prob: 0.1}}}]",
    ],
)
def test_batch_transforms_of_paddleclas_survive_a_dump(yaml: str) -> None:
    assert problems(f"{KEY}={yaml}") == []


@pytest.mark.parametrize(
    ("yaml", "place", "text"),
    [
        ("[MixUpOperator]", "[0].MixUpOperator", "did you mean 'MixupOperator'?"),
        ("[{MixupOperator: {alpha: 0}}]", "[0].MixupOperator.alpha", "expected a number > 0, got 0"),
        ("[{MixupOperator: {prob: 0.5}}]", "[0].MixupOperator.prob", "unknown key; known: alpha, last_epoch"),
        ("[{MixupOperator: {last_epoch: 0}}]", "[0].MixupOperator.last_epoch", "an integer > 0, got 0"),
        (
            "[{OpSampler: {MixupOperator: {prob: 0.5, last_epoch: 5}}}]",
            "[0].OpSampler.MixupOperator.last_epoch",
            "unknown key",
        ),
        ("[MixupOperator, CutmixOperator]", "", "use OpSampler to choose between them"),
        ("[OpSampler]", "[0]", "the sum of prob to be > 0 and <= 1, got 0"),
        (
            "[{OpSampler: {MixupOperator: {prob: 0.7}, CutmixOperator: {prob: 0.7}}}]",
            "[0].OpSampler",
            "got 1.4",
        ),
        ("[{OpSampler: {MixupOperator: {}}}]", "[0].OpSampler.MixupOperator.prob", "missing"),
        ("[{OpSampler: {MixupOperator: null}}]", "[0].OpSampler.MixupOperator", "expected a mapping"),
    ],
)
def test_batch_transforms_error_names_key_and_fix(yaml: str, place: str, text: str) -> None:
    (problem,) = problems(f"{KEY}={yaml}")
    assert problem.startswith(f"{KEY}{place}: ")
    assert text in problem


def test_own_batch_transform_has_a_last_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BATCH_TRANSFORMS, "_entries", dict(BATCH_TRANSFORMS._entries))

    class Own(BatchTransform):
        """A transform without keys of its own."""

    config = read(f"{KEY}=[{{Own: {{last_epoch: 3}}}}]", "Global.epochs=9")
    assert config.DataLoader.Train.dataset.batch_transform_ops == (Own(last_epoch=3),)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["Global.epochs=6"], []),
        (["Global.epochs=5"], ["(5) has no effect, because it is not less than Global.epochs (5)"]),
        (["Global.epochs=4"], ["(5) has no effect, because it is not less than Global.epochs (4)"]),
        (["Global.epochs=1", "LinearHead={}"], []),  # mixes no images, which has a warning of its own
    ],
)
def test_last_epoch_of_the_run_has_no_effect(overrides: list[str], expected: list[str]) -> None:
    config = read(f"{KEY}=[{{OpSampler: {{last_epoch: 5, MixupOperator: {{prob: 0.5}}}}}}]", *overrides)
    place = f"warning: {KEY}[0].OpSampler.last_epoch "
    found = [line.removeprefix(place) for line in config.key_warnings if line.startswith(place)]
    assert found == expected


def test_arrays_are_rgb_and_images_as_decoded() -> None:
    """Transforms of colours accept RGB only; DecodeNumpy does not change the order of channels."""
    rest = "{ColorJitter: {brightness: 0.1}}, {RandCropImage: {size: 32}}, NormalizeImage]"
    key = "DataLoader.Train.dataset.transform_ops"
    assert problems(f"{key}=[DecodeNumpy, {rest}") == []
    assert problems(f"{key}=[DecodeImage, {rest}") == []
    (problem,) = problems(f"{key}=[{{DecodeImage: {{to_rgb: False}}}}, {rest}")
    assert problem.endswith("expected an RGB image, got BGR; set to_rgb: True in DecodeImage")
