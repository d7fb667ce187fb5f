"""Defaults and general properties of the config."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from quickstart import problems, read

from ppcls.config.base.errors import ConfigError
from ppcls.recipe.load import validate
from ppcls.recipe.schema import Config


def test_config_minimal_has_defaults() -> None:
    schedule = {"name": "Constant", "learning_rate": 1}
    config = validate({"Arch": {"name": "ResNet50"}, "Optimizer": {"name": "SGD", "lr": schedule}}, "tree")
    assert (config.AMP, config.EMA, config.Infer) == (None, None, None)
    assert (config.DataLoader.Train, config.DataLoader.Eval) == (None, None)
    assert config.Loss.Train[0].kind == "CELoss"


def test_config_empty_reports_required_sections() -> None:
    with pytest.raises(ConfigError) as caught:
        validate({}, "tree")
    missing = "missing; it has no default"
    assert caught.value.problems == (f"Arch: {missing}", f"Optimizer: {missing}")


TRAIN, EVAL = "DataLoader.Train.sampler", "DataLoader.Eval.sampler"


@pytest.mark.parametrize(
    ("overrides", "key", "expected"),
    [
        ([f"{TRAIN}.batch_size=64"], "batch_size", 128),
        ([f"{TRAIN}.batch_size=200"], "batch_size", 256),
        ([f"{TRAIN}.batch_size=512"], "batch_size", 512),
        ([f"{TRAIN}={{global_batch_size: 48}}"], "global_batch_size", 48),
        ([f"{EVAL}.batch_size=16"], "batch_size", 16),
    ],
    ids=["small", "medium", "large", "global", "given"],
)
def test_config_eval_batch_size_by_default_follows_training(
    overrides: list[str], key: str, expected: int
) -> None:
    config = read(f"{EVAL}={{shuffle: False}}", *overrides)
    assert getattr(config.DataLoader.Eval.sampler, key) == expected
    assert config.DataLoader.Eval.sampler.batch_setting == (key, expected)


def test_config_eval_batch_size_without_training_data_is_required() -> None:
    (problem,) = problems(f"{EVAL}={{shuffle: False}}", "DataLoader.Train=null")
    assert problem == f"{EVAL}.batch_size: missing; set batch_size or global_batch_size"


def test_config_assignment_raises() -> None:
    config = read()
    with pytest.raises(ValidationError):
        config.Global.epochs = 3
    with pytest.raises(ValidationError):
        config.Arch = config.Arch
    assert isinstance(config.DataLoader.Train.dataset.transform_ops, tuple)


def sections(annotation: Any) -> set[type[BaseModel]]:
    """Returns all sections below a type."""
    parts = getattr(annotation, "__args__", ())
    if not parts and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        inner = (sections(field.annotation) for field in annotation.model_fields.values())
        return {annotation}.union(*inner)
    return set().union(*(sections(part) for part in parts))


def test_config_every_section_is_frozen_and_strict() -> None:
    found = sections(Config)
    assert len(found) > 12
    for each in found:
        assert each.model_config.get("frozen"), each
        assert each.model_config.get("extra") == "forbid", each


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        ("Arch.class_num", 10**7),
        ("Global.keep_best", 1000),
        ("Global.cpu_threads", 4096),
        ("Global.image_shape[1]", 16384),
        ("DataLoader.Train.loader.num_workers", 4096),
        ("DataLoader.Train.loader.dali.num_threads", 4096),
        ("DataLoader.Train.sampler.batch_size", 10**6),
        ("DataLoader.Eval.sampler.batch_size", 10**6),
        ("Infer.batch_size", 10**6),
        ("DataLoader.Train.dataset.transform_ops[1].RandCropImage.size", 16384),
        ("Infer.transforms[1].ResizeImage.size", 16384),
    ],
)
def test_config_number_above_its_limit_is_reported(key: str, limit: int) -> None:
    assert not [each for each in problems(f"{key}={limit}") if each.startswith(f"{key}: expected")]
    (problem,) = problems(f"{key}={limit + 1}")
    assert problem.startswith(f"{key}: expected ")
    assert f"<= {limit}" in problem
    assert problem.endswith(f", got {limit + 1}")
