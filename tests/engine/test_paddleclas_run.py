"""Files as PaddleClas has them, trained on a few pictures: only places and sizes are set."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paddle
import pytest

from ppcls import fit, load_config
from ppcls.arch.distillation_model import DistillationModel
from ppcls.arch.section import Arch
from ppcls.config.base.yaml import read_yaml
from ppcls.data.sampling.epoch_samplers import ShuffledSampler
from ppcls.data.sampling.equal_pixels import EqualPixelsOrder
from ppcls.data.sampling.sizes import EqualPixels
from ppcls.engine.checkpoint.paddleclas import restore_paddleclas
from ppcls.engine.core.build import build_state
from ppcls.engine.core.networks import read_inferred
from ppcls.engine.core.state import TrainState
from ppcls.engine.initial_weights import InitialWeights
from ppcls.errors import UserError
from ppcls.optimizer.state import optimizer_state
from ppcls.recipe.schema import Config
from ppcls.report.jsonlines import read_records
from ppcls.report.record import StepRecord
from ppcls.runtime.start import Runtime
from ppcls.weights.files import read_arrays

Tree = dict[str, Any]

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
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Of 8 pictures; the home folder is the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    chance = np.random.default_rng(0)
    for number in range(8):
        cv2.imwrite(str(tmp_path / f"{number}.png"), chance.integers(0, 256, (40, 40, 3)).astype(np.uint8))
    (tmp_path / "list.txt").write_text("".join(f"{number}.png {number % 2}\n" for number in range(8)))
    (tmp_path / "run.yaml").write_text(FILE.format(folder=tmp_path))
    return read_yaml(tmp_path / "run.yaml")


def publish(config: Config, folder: Path) -> None:
    """Puts a teacher's weights where PaddleClas would have put them."""
    teacher = next(iter(config.Arch.architectures))
    assert isinstance(teacher, Arch)
    assert teacher.weights is not None
    file = folder / ".paddleclas" / "weights" / Path(teacher.weights).name
    file.parent.mkdir(parents=True, exist_ok=True)
    paddle.save(teacher.build().state_dict(), str(file))


def alone(tree: Tree, name: str) -> Tree:
    """The same with one model."""
    tree["Arch"] = {"name": name, "class_num": 2}
    tree["Loss"]["Train"] = [{"CELoss": {"weight": 1.0, "epsilon": 0.1}}]
    tree["Metric"] = {"Eval": [{"TopkAcc": {"topk": [1, 2]}}]}
    return tree


def test_train_uses_weights_downloaded_by_paddleclas(tree: Tree, tmp_path: Path) -> None:
    config = load_config(tree)
    with pytest.raises(UserError, match=r"PPLCNet_x0_25_ssld_pretrained[.]pdparams: file not found"):
        fit(config)
    publish(config, tmp_path)
    fit(config)
    log = (tmp_path / "output" / "train.log").read_text()
    assert "warning: Optimizer.clip_grad has no effect; clip_norm or clip_value clips gradients" in log
    assert "warning: Optimizer.lr.step_each_epoch has no effect" in log


@pytest.mark.parametrize(
    "dali", [pytest.param(True, id="dali"), pytest.param(False, id="paddle", marks=pytest.mark.slow)]
)
def test_pp_lcnet_v2_trains_on_several_sizes(tree: Tree, tmp_path: Path, dali: bool) -> None:
    alone(tree, "PPLCNetV2_small")["Global"]["use_dali"] = dali
    train = tree["DataLoader"]["Train"]
    train["dataset"]["name"] = "MultiScaleDataset"
    train["dataset"]["transform_ops"][1:3] = [{"RandCropImage": {"size": 32}}]
    sizes = {"scales": [32, 40, 64], "first_bs": 4, "divided_factor": 32, "is_training": True}
    train["sampler"] = {"name": "MultiScaleSampler", **sizes}
    tree["Global"]["epochs"] = 2
    fit(load_config(tree))
    drawn = EqualPixels(sizes=(32, 32, 64), rows=(4, 4, 1))
    steps = len(EqualPixelsOrder(sampler=ShuffledSampler(8), batch_size=4, sizes=drawn))
    assert steps > 2
    last = [
        each for each in read_records(tmp_path / "output" / "metrics.jsonl") if isinstance(each, StepRecord)
    ][-1]
    assert (last.steps_per_epoch, last.update) == (steps, 2 * steps)


def test_resnet_strikes_back_trains(tree: Tree, tmp_path: Path) -> None:
    alone(tree, "ResNet18")["Loss"]["Train"] = [{"BCELoss": {"weight": 1.0, "epsilon": 0.1}}]
    decay = {"weight_decay": 0.01, "no_weight_decay_name": "bn norm", "one_dim_param_no_weight_decay": True}
    rate = {"name": "Cosine", "learning_rate": 5e-3, "warmup_epoch": 0}
    tree["Optimizer"] = {"name": "Lamb", "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, **decay, "lr": rate}
    both = {"MixupOperator": {"alpha": 0.2, "prob": 0.5}, "CutmixOperator": {"alpha": 1.0, "prob": 0.5}}
    tree["DataLoader"]["Train"]["dataset"]["batch_transform_ops"] = [{"OpSampler": both}]
    tree["DataLoader"]["Train"]["sampler"]["name"] = "RepeatedAugSampler"
    fit(load_config(tree))
    assert "done: 1 epoch," in (tmp_path / "output" / "train.log").read_text()


@pytest.mark.slow  # test_diverse_branch.py compares these layers with those of PaddleClas
@pytest.mark.parametrize("dali", [True, False], ids=["dali", "paddle"])
def test_resnet18_of_diverse_branches_trains(tree: Tree, tmp_path: Path, dali: bool) -> None:
    alone(tree, "ResNet18")["Global"]["use_dali"] = dali
    tree["Arch"] |= {"layer_type": "DiverseBranchBlock", "use_first_short_conv": False}
    tree["DataLoader"]["Train"]["dataset"]["transform_ops"][1:3] = [
        {"RandCropImage": {"size": 32, "backend": "pil", "interpolation": "bilinear"}},
        {"RandFlipImage": {"flip_code": 1}},
        {"ColorJitter": {"brightness": 0.4, "saturation": 0.4, "hue": 0.4}},
        {"PCALighting": None},
    ]
    fit(load_config(tree))
    weights = read_arrays(tmp_path / "output" / "latest" / "model.safetensors")
    learnt = [value for key, value in weights.items() if key.endswith(".idconv1.weight")]
    assert len(learnt) == 16
    assert all(value.any() for value in learnt)


LAYERS = ["blocks4", "blocks5", "blocks6"]
SHAPES = [[32, 4, 4], [64, 2, 2], [128, 1, 1]]
PAIRS = {"model_name_pairs": [["Student", "Teacher"]]}
OF_LAYERS: dict[str, Tree] = {
    "distance": {"DistillationDistanceLoss": {"key": "blocks5", **PAIRS}},
    "RKD": {"DistillationRKDLoss": {"student_keepkeys": LAYERS, "teacher_keepkeys": LAYERS, **PAIRS}},
    "WSL": {"DistillationWSLLoss": PAIRS},
    "SKD": {"DistillationSKDLoss": PAIRS},
    "DIST": {"DistillationDISTLoss": PAIRS},
    "MGD": {
        "DistillationPairLoss": {
            **{"base_loss_name": "MGDLoss", "s_keys": ["blocks5"], "t_keys": ["blocks5"]},
            **{"student_channels": 64, "teacher_channels": 64, **PAIRS},
        }
    },
    "PEFD": {
        "DistillationPairLoss": {
            **{"base_loss_name": "PEFDLoss", "s_key": "avg_pool", "t_key": "avg_pool"},
            **{"student_channel": 128, "teacher_channel": 128, **PAIRS},
        }
    },
    "AFD": {"AFDLoss": {"weight": 50.0, "s_shapes": SHAPES, "t_shapes": SHAPES, "qk_dim": 16}},
}
WITH_LAYERS = ("MGD", "PEFD", "AFD")
BESIDE = ("Teacher.", "loss1.")


def distilled(tree: Tree, loss: str, frozen: bool = True) -> Tree:
    """A PP-LCNet that learns from one of its kind, at once from the labels."""
    plain = {"name": "PPLCNet_x0_25", "class_num": 2, "return_patterns": [*LAYERS, "avg_pool"]}
    models = {"Teacher": {**plain, "pretrained": frozen}, "Student": {**plain, "pretrained": False}}
    if loss == "AFD":
        for name, keys in models.items():
            transform = {"name": f"LinearTransform{name}", "qk_dim": 16, "keys": LAYERS, "t_shapes": SHAPES}
            within = [{"Backbone": keys}, {"Transform": transform}]
            flags = [frozen and name == "Teacher", False]
            models[name] = {"name": "AttentionModel", "freeze_params_list": flags, "models": within}
    tree["Arch"] |= {"models": [{name: keys} for name, keys in models.items()]}
    tree["Arch"]["freeze_params_list"] = [frozen, False]
    names = ["Student"] if frozen else ["Student", "Teacher"]
    tree["Loss"]["Train"] = [{"DistillationGTCELoss": {"model_names": names}}, OF_LAYERS[loss]]
    tree["Global"]["epochs"] = 2
    return tree


# These losses have no weights, like "distance", so that they are saved and resumed like it.
ALIKE = ("RKD", "WSL", "SKD", "DIST")


@pytest.mark.parametrize(
    ("loss", "frozen"),
    [
        *((loss, True) for loss in OF_LAYERS if loss not in (*ALIKE, "distance")),
        *(pytest.param(loss, True, marks=pytest.mark.slow) for loss in (*ALIKE, "distance")),
        ("distance", False),
        pytest.param("MGD", False, marks=pytest.mark.slow),
    ],
)
def test_paddleclas_distillation_learns_and_resumes(
    tree: Tree, tmp_path: Path, loss: str, frozen: bool
) -> None:
    """And what learns beside it is kept with it, and is no part of what is handed on."""
    config = load_config(distilled(tree, loss, frozen))
    if frozen:
        publish(config, tmp_path)
    fit(config)
    latest = tmp_path / "output" / "latest" / "model.safetensors"
    weights, first = read_arrays(latest), read_arrays(tmp_path / "output" / "epoch_1" / "model.safetensors")
    kinds = {name.partition(".")[0] for name in weights}
    assert ("loss1" in kinds, "Teacher" in kinds) == (loss in WITH_LAYERS, not frozen)
    learns = [name for name in weights if name.startswith("loss1.") and name.endswith("weight")]
    assert all((weights[name] != first[name]).any() for name in learns)
    assert (weights["fc.weight"] != first["fc.weight"]).any()
    assert isinstance(config.Arch, DistillationModel)
    assert set(read_inferred(config.Arch, config.Loss.Train, latest.parent)) == set(
        config.Arch.exported.build().state_dict()
    )
    tree["Global"] |= {
        "checkpoints": str(tmp_path / "output" / "epoch_1"),
        "output_dir": str(tmp_path / "on"),
    }
    fit(load_config(tree))
    for name, value in read_arrays(tmp_path / "on" / "latest" / "model.safetensors").items():
        np.testing.assert_array_equal(value, weights[name], err_msg=name)


def names_of_paddleclas(own: str, attention: bool) -> str:
    """The name that PaddleClas gives to a weight of a distilled model."""
    if own.startswith("Teacher."):
        return own
    if not own.startswith("loss1."):
        return f"Student.{'Backbone.' * attention}{own}"
    layer = own.removeprefix("loss1.")
    if layer.startswith("query_layer."):
        return f"Teacher.LinearTransformTeacher.{layer}"
    if layer.startswith(("key_layer.", "bilinear.")):
        return f"Student.LinearTransformStudent.{layer}"
    if layer in ("p_t", "p_s"):
        return f"loss_func.1.attention.{layer}"
    return "loss_func.1.loss_func." + re.sub(r"(projectors\.\d)\.", r"\1.conv.", layer)


def write_files(prefix: Path, weights: Tree, optimizers: list[Tree]) -> None:
    files = {"pdparams": weights, "pdopt": optimizers, "pdstates": {"epoch": 1, "metric": 0.5}}
    for ending, content in files.items():
        prefix.with_name(f"{prefix.name}.{ending}").write_bytes(pickle.dumps(content, protocol=2))


def save_as_paddleclas(state: TrainState, prefix: Path, attention: bool, frozen: bool) -> None:
    """Writes what PaddleClas writes for several models: one file with all weights, also of losses."""

    def stored(name: str, tensor: paddle.Tensor) -> np.ndarray:
        array = tensor.numpy()
        return array[:, :, 0, 0].T.copy() if "projectors" in name and array.ndim == 4 else array

    own = state.model.state_dict()
    weights: dict[str, Any] = {
        names_of_paddleclas(name, attention): stored(name, tensor) for name, tensor in own.items()
    }
    if frozen:  # a teacher, whose optimizer has no state
        of_student = [name for name in weights if name.startswith("Student.") and "Linear" not in name]
        weights |= {name.replace("Student", "Teacher"): weights[name] * 3 for name in of_student}
    weights["StructuredToParameterName@@"] = {
        names_of_paddleclas(name, attention): tensor.name for name, tensor in own.items()
    }
    optimizer = {}
    for key, tensor in optimizer_state(state.optimizer, state.model).items():
        name, _, kind = key.rpartition("/")
        optimizer[f"{own[name].name}_{kind}_0"] = stored(name, tensor)
    write_files(prefix, weights, [optimizer])


def random_state(config: Config, seed: int) -> TrainState:
    state = build_state(config, Runtime(cores=1, threads=1), lambda *_: None)
    random = np.random.default_rng(seed)
    for tensors in (state.model.state_dict(), optimizer_state(state.optimizer, state.model)):
        for tensor in tensors.values():
            tensor.set_value(random.normal(size=tensor.shape).astype("float32"))
    return state


def assert_equal_states(saved: TrainState, resumed: TrainState) -> None:
    for contents in (
        [state.model.state_dict() for state in (saved, resumed)],
        [optimizer_state(state.optimizer, state.model) for state in (saved, resumed)],
    ):
        assert contents[0].keys() == contents[1].keys()
        for name, tensor in contents[0].items():
            if not name.startswith("loss1.centers/"):
                np.testing.assert_array_equal(contents[1][name].numpy(), tensor.numpy(), err_msg=name)


@pytest.mark.parametrize("optimizer", ["Adam", pytest.param("Momentum", marks=pytest.mark.slow)])
def test_checkpoint_with_two_optimizers_is_read(tree: Tree, tmp_path: Path, optimizer: str) -> None:
    tree["Arch"] = {
        **{"name": "RecModel", "infer_output_key": "features", "infer_add_softmax": False},
        **{"Backbone": {"name": "MobileNetV1_x0_25"}, "BackboneStopLayer": {"name": "flatten"}},
        "Head": {"name": "FC", "embedding_size": 256, "class_num": 2},
    }
    center = {"num_classes": 2, "feat_dim": 256, "weight": 0.0005, "feature_from": "backbone"}
    tree["Loss"]["Train"] = [{"CELoss": {"weight": 1.0}}, {"CenterLoss": center}]
    lr = {"name": "Cosine", "learning_rate": 0.001}
    sgd = {"scope": "CenterLoss", "lr": {"name": "ConstLR", "learning_rate": 1000.0}}
    tree["Optimizer"] = [{optimizer: {"scope": "RecModel", "lr": lr}}, {"SGD": sgd}]
    tree["Global"]["eval_mode"] = "retrieval"
    tree["Metric"] = {"Eval": [{"Recallk": {"topk": [1]}}]}
    config = load_config(tree)
    saved, resumed = (random_state(config, seed) for seed in (1, 2))
    own = saved.model.state_dict()
    names = {name: name.replace("loss1.", "loss_func.1.") for name in own}
    weights: Tree = {names[name]: tensor.numpy() for name, tensor in own.items()}
    weights["StructuredToParameterName@@"] = {names[name]: tensor.name for name, tensor in own.items()}
    state = optimizer_state(saved.optimizer, saved.model)
    of_model = {
        f"{own[key.rpartition('/')[0]].name}_{key.rpartition('/')[2]}_0": tensor.numpy()
        for key, tensor in state.items()
        if not key.startswith("loss1.")
    }
    schedule = {"LR_Scheduler": {"last_epoch": 1}}
    write_files(tmp_path / "epoch_1", weights, [{**of_model, **schedule}, schedule])
    restore_paddleclas(resumed, tmp_path / "epoch_1")
    assert_equal_states(saved, resumed)


@pytest.mark.parametrize(
    ("loss", "frozen"), [("PEFD", True), ("AFD", True), ("MGD", False), ("distance", False)]
)
def test_checkpoint_of_several_models_and_learnt_losses_is_read(
    tree: Tree, tmp_path: Path, loss: str, frozen: bool
) -> None:
    config = load_config(distilled(tree, loss, frozen))
    if frozen:
        publish(config, tmp_path)
    saved, resumed = (random_state(config, seed) for seed in (1, 2))
    save_as_paddleclas(saved, tmp_path / "epoch_1", loss == "AFD", frozen)
    restore_paddleclas(resumed, tmp_path / "epoch_1")
    assert_equal_states(saved, resumed)
    weights = InitialWeights(config.Arch, str(tmp_path / "epoch_1"), {}, frozen=False, beside=BESIDE)
    started = build_state(config, Runtime(cores=1, threads=1), weights.load, load_beside=weights.load_beside)
    for name, tensor in saved.model.state_dict().items():
        np.testing.assert_array_equal(started.model.state_dict()[name].numpy(), tensor.numpy(), err_msg=name)


@pytest.mark.parametrize(
    ("loss", "level"), [("AFD", "O1"), ("MGD", "O2"), pytest.param("RKD", "O2", marks=pytest.mark.slow)]
)
def test_layers_are_learnt_from_in_half_precision(tree: Tree, tmp_path: Path, loss: str, level: str) -> None:
    distilled(tree, loss, frozen=False)["AMP"] = {"level": level, "dtype": "bfloat16"}
    fit(load_config(tree))
    losses = [each.loss for each in read_records(tmp_path / "output" / "metrics.jsonl")]
    assert len(losses) == 6
    assert np.isfinite(losses).all()


def test_missing_layer_stops_the_run_at_the_start(tree: Tree, tmp_path: Path) -> None:
    distilled(tree, "distance", frozen=False)
    for model in tree["Arch"]["models"]:
        for keys in model.values():
            keys["return_patterns"] = ["blocks9"]
    tree["Loss"]["Train"][1]["DistillationDistanceLoss"] = {"key": "blocks9", **PAIRS}
    with pytest.raises(UserError, match=r"Arch.models: Student: PPLCNet has no layer 'blocks9'; known: "):
        fit(load_config(tree))
    assert not (tmp_path / "output" / "latest").exists()


@pytest.mark.parametrize(
    ("loss", "shape", "says"),
    [
        (
            "MGD",
            [128, 128],
            r"Student.blocks5 has the shape \[64, 2, 2\], channels first, .* expects \[128, 2, 2\]",
        ),
        (
            "AFD",
            [[32, 4, 4], [64, 2, 2], [128, 7, 7]],
            r"Student.blocks6 has the shape \[128, 1, 1\], .*\[128, 7, 7\]",
        ),
    ],
)
def test_shapes_that_do_not_fit_a_loss_are_reported(tree: Tree, loss: str, shape: Any, says: str) -> None:
    distilled(tree, loss, frozen=False)
    ((name, spec),) = tree["Loss"]["Train"][1].items()
    if name == "AFDLoss":
        spec = {**spec, "s_shapes": shape}
    else:
        spec = {**spec, "student_channels": shape[0], "teacher_channels": shape[1]}
    tree["Loss"]["Train"][1] = {name: spec}
    with pytest.raises(UserError, match=says):
        fit(load_config(tree))
