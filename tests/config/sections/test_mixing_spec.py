"""``batch_transform_ops``: what it takes, and what the rest of the config must then be."""

from __future__ import annotations

import copy

import pytest
from paths import ROOT

from ppcls.config.base.errors import ConfigError
from ppcls.config.load import apply_override, read_tree, validate
from ppcls.config.schema import Config
from ppcls.config.sections.transform import MixupOperator, OpSampler, SampledMixup

TREE = read_tree(ROOT / "configs/quickstart.yaml")
TRAIN = "DataLoader.Train.dataset.batch_transform_ops"
EVEN = "DataLoader.Train.sampler.batch_size=32"


def read(*overrides: str) -> Config:
    tree = copy.deepcopy(TREE)
    for each in overrides:
        apply_override(tree, each)
    return validate(tree, "tree")


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(*overrides)
    return list(caught.value.problems)


def test_none_by_default() -> None:
    train = read().DataLoader.Train
    assert train is not None
    assert train.dataset.batch_transform_ops == ()


@pytest.mark.parametrize(
    "yaml",
    [
        "[{MixupOperator: {alpha: 0.2}}]",
        "[{CutmixOperator: {alpha: 0.2}}]",
        "[MixupOperator]",
        "[]",
        "[{OpSampler: {MixupOperator: {alpha: 0.8, prob: 0.5}, CutmixOperator: {alpha: 1.0, prob: 0.5}}}]",
        "[{OpSampler: {CutmixOperator: {prob: 0.1}}}]",
    ],
)
def test_paddleclas_configs_are_read_and_written_back(yaml: str) -> None:
    config = read(f"{TRAIN}={yaml}", EVEN)
    assert validate(config.model_dump(mode="json"), "again") == config


def test_what_is_read() -> None:
    def specs(yaml: str) -> tuple[object, ...]:
        train = read(f"{TRAIN}={yaml}").DataLoader.Train
        assert train is not None
        return train.dataset.batch_transform_ops

    assert specs("[{MixupOperator: {alpha: 1.0/5.0}}]") == (MixupOperator(alpha=0.2),)
    sampler = OpSampler(MixupOperator=SampledMixup(alpha=0.8, prob=0.5))
    assert specs("[{OpSampler: {MixupOperator: {alpha: 0.8, prob: 0.5}}}]") == (sampler,)
    assert sampler.CutmixOperator.prob == 0


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("[MixUpOperator]", "[0].MixUpOperator: unknown batch transform; did you mean 'MixupOperator'?"),
        ("[{MixupOperator: {alpha: 0}}]", "[0].MixupOperator.alpha: expected a number > 0, got 0"),
        (
            "[{MixupOperator: {alpha: 0.2, prob: 0.5}}]",
            "[0].MixupOperator.prob: unknown key; known: alpha",
        ),
        (
            "[MixupOperator, CutmixOperator]",
            ": expected at most one, got MixupOperator, CutmixOperator; "
            "OpSampler takes one of several for each batch",
        ),
        (
            "[{OpSampler: {MixupOperator: {prob: 0.7}, CutmixOperator: {prob: 0.7}}}]",
            "[0].OpSampler: expected prob to add up to a share > 0 and <= 1, got 1.4",
        ),
        ("[OpSampler]", "[0]: expected prob to add up to a share > 0 and <= 1, got 0"),
        (
            "[{OpSampler: {MixupOperator: {alpha: 0.8}}}]",
            "[0].OpSampler.MixupOperator.prob: missing; it has no default",
        ),
        (
            "[{OpSampler: {MixupOperator: null, CutmixOperator: {prob: 1}}}]",
            "[0].OpSampler.MixupOperator: expected a mapping, got None",
        ),
        (
            "[{OpSampler: {CutMixOperator: {prob: 1}}}]",
            "[0].OpSampler.CutMixOperator: unknown key; did you mean 'CutmixOperator'?",
        ),
    ],
)
def test_what_is_wrong_is_told(yaml: str, expected: str) -> None:
    assert problems(f"{TRAIN}={yaml}", EVEN) == [TRAIN + expected]


def test_evaluation_is_not_mixed() -> None:
    assert problems("DataLoader.Eval.dataset.batch_transform_ops=[MixupOperator]") == [
        "DataLoader.Eval.dataset.batch_transform_ops: evaluation takes the images as they are; remove it"
    ]


def test_pairs_need_an_even_batch() -> None:
    assert problems(f"{TRAIN}=[CutmixOperator]", "DataLoader.Train.sampler.batch_size=33") == [
        "DataLoader.Train.sampler.batch_size: expected an even number, "
        "for CutmixOperator mixes neighbours two by two, got 33"
    ]
    sampler = "{shuffle: True, global_batch_size: 33}"
    assert problems(f"{TRAIN}=[CutmixOperator]", f"DataLoader.Train.sampler={sampler}") == [
        "DataLoader.Train.sampler.global_batch_size: expected an even number, "
        "for CutmixOperator mixes neighbours two by two, got 33"
    ]


def test_neighbours_of_a_list_are_not_mixed() -> None:
    assert problems(f"{TRAIN}=[MixupOperator]", "DataLoader.Train.sampler.shuffle=False") == [
        "DataLoader.Train.sampler.shuffle: expected True: MixupOperator mixes neighbours, "
        "and those of a list are often of one class"
    ]


def test_identities_need_an_even_number_of_images() -> None:
    def sampler(images: int) -> str:
        return f"DataLoader.Train.sampler={{name: PKSampler, batch_size: 30, sample_per_id: {images}}}"

    assert problems(f"{TRAIN}=[MixupOperator]", sampler(5)) == [
        "DataLoader.Train.sampler.sample_per_id: expected an even number, "
        "for MixupOperator mixes neighbours two by two, got 5"
    ]
    read(f"{TRAIN}=[MixupOperator]", sampler(6))
    read(sampler(5))
