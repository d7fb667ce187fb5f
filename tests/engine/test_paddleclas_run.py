"""A file as PaddleClas has it for its SSLD, trained on a few pictures: only places and sizes are set."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import paddle
import pytest

from ppcls import fit, load_config
from ppcls.config.model import Arch
from ppcls.config.schema import Config
from ppcls.engine.distillation import build_arch
from ppcls.errors import UserError

FILE = """
Global: {{checkpoints: null, pretrained_model: null, output_dir: {folder}/output, device: cpu, epochs: 1,
         save_interval: 1, eval_during_train: True, eval_interval: 1, print_batch_step: 1,
         use_visualdl: False, image_shape: [3, 224, 224], save_inference_dir: ./inference}}
Arch:
  name: DistillationModel
  class_num: 2
  pretrained_list:
  freeze_params_list: [True, False]
  infer_model_name: Student
  models:
    - Teacher: {{name: PPLCNet_x0_25, class_num: 2, pretrained: True, use_ssld: True}}
    - Student: {{name: MobileNetV3_small_x0_35, class_num: 2, pretrained: False, dropout_prob: null}}
Loss:
  Train: [DistillationDMLLoss: {{weight: 1.0, key: logits, model_name_pairs: [[Student, Teacher]]}}]
  Eval: [CELoss: {{weight: 1.0}}]
Optimizer:
  name: Momentum
  momentum: 0.9
  weight_decay: 1e-4
  clip_grad: 5.0
  lr: {{name: MultiStepDecay, learning_rate: 0.01, milestones: [30, 60], step_each_epoch: 1, gamma: 0.1}}
DataLoader:
  Train:
    dataset: &data
      name: ImageNetDataset
      image_root: {folder}
      cls_label_path: {folder}/list.txt
      transform_ops:
        - DecodeImage: {{to_rgb: True, channel_first: False}}
        - RandCropImage: {{size: 32, interpolation: bicubic, backend: pil}}
        - TimmAutoAugment: {{config_str: rand-m7-mstd0.5-inc1, interpolation: bicubic, img_size: 32}}
        - NormalizeImage: {{scale: 0.00392157, order: ''}}
    sampler: {{name: DistributedBatchSampler, batch_size: 4, drop_last: False, shuffle: True}}
    loader: {{num_workers: 0}}
  Eval:
    dataset: *data
    sampler: {{name: DistributedBatchSampler, batch_size: 4, drop_last: False, shuffle: False}}
    loader: {{num_workers: 0}}
Metric:
  Train: [DistillationTopkAcc: {{model_key: Student, topk: [1, 2]}}]
  Eval: [DistillationTopkAcc: {{model_key: Student, topk: [1, 2]}}]
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Of 8 pictures; the home folder is the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    chance = np.random.default_rng(0)
    for number in range(8):
        cv2.imwrite(str(tmp_path / f"{number}.png"), chance.integers(0, 256, (40, 40, 3)).astype(np.uint8))
    (tmp_path / "list.txt").write_text("".join(f"{number}.png {number % 2}\n" for number in range(8)))
    (tmp_path / "run.yaml").write_text(FILE.format(folder=tmp_path))
    return load_config(tmp_path / "run.yaml")


def test_it_trains_by_what_paddleclas_has_downloaded(config: Config, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"PPLCNet_x0_25_ssld_pretrained[.]pdparams: not there; `pretrained: True`"
    ):
        fit(config)
    published = tmp_path / ".paddleclas" / "weights" / "PPLCNet_x0_25_ssld_pretrained.pdparams"
    published.parent.mkdir(parents=True)
    teacher = next(iter(config.Arch.each))
    assert isinstance(teacher, Arch)
    paddle.save(build_arch(teacher).state_dict(), str(published))
    fit(config)
    log = (tmp_path / "output" / "train.log").read_text()
    assert "warning: Optimizer.clip_grad has no effect; clip_norm, or clip_value, is the key" in log
    assert "warning: Optimizer.lr.step_each_epoch has no effect" in log
