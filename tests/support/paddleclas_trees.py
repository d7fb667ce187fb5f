"""The content of PaddleClas's files for ImageNet, rebuilt as config trees for each family."""

from __future__ import annotations

import json
from typing import Any

import yaml

Tree = dict[str, Any]

PLAIN = """
Global: {checkpoints: null, pretrained_model: null, output_dir: ./output/, device: gpu, save_interval: 1,
         eval_during_train: True, eval_interval: 1, epochs: 360, print_batch_step: 10, use_visualdl: False,
         image_shape: [3, 224, 224], save_inference_dir: ./inference, to_static: False, use_dali: False}
AMP: {use_amp: False, use_fp16_test: False, scale_loss: 128.0, use_dynamic_loss_scaling: True,
      use_promote: False, level: O1}
Arch: {name: NAME, class_num: 1000}
Loss: {Train: [CELoss: {weight: 1.0, epsilon: 0.1}], Eval: [CELoss: {weight: 1.0}]}
Optimizer: {name: Momentum, momentum: 0.9, regularizer: {name: 'L2', coeff: 0.00004},
            lr: {name: Cosine, learning_rate: 0.8, warmup_epoch: 5}}
DataLoader:
  Train:
    dataset:
      name: ImageNetDataset
      image_root: ./images/
      cls_label_path: ./images/train_list.txt
      transform_ops:
        - DecodeImage: {to_rgb: True, channel_first: False}
        - RandCropImage: {size: 224}
        - RandFlipImage: {flip_code: 1}
        - NormalizeImage: &normal
            {scale: 1.0/255.0, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], order: ''}
    sampler: {name: DistributedBatchSampler, batch_size: 64, drop_last: False, shuffle: True}
    loader: &loader {num_workers: 4, use_shared_memory: True}
  Eval:
    dataset:
      name: ImageNetDataset
      image_root: ./images/
      cls_label_path: ./images/val_list.txt
      transform_ops: &fixed
        - DecodeImage: {to_rgb: True, channel_first: False}
        - ResizeImage: {resize_short: 256}
        - CropImage: {size: 224}
        - NormalizeImage: *normal
    sampler: {name: DistributedBatchSampler, batch_size: 64, drop_last: False, shuffle: False}
    loader: *loader
Infer:
  infer_imgs: picture.jpg
  batch_size: 10
  transforms: *fixed
  PostProcess: {name: Topk, topk: 5, class_id_map_file: names.txt}
Metric: {Train: [TopkAcc: {topk: [1, 5]}], Eval: [TopkAcc: {topk: [1, 5]}]}
"""
PIECEWISE = """
{name: Piecewise, learning_rate: 0.1, decay_epochs: [30, 60, 90], values: [0.1, 0.01, 0.001, 0.0001]}
"""
ADAMW = """
{name: AdamW, beta1: 0.9, beta2: 0.999, epsilon: 1.0e-8, weight_decay: 0.05,
 no_weight_decay_name: absolute_pos_embed relative_position_bias_table .bias norm,
 one_dim_param_no_weight_decay: True,
 lr: {name: Cosine, learning_rate: 0.001, eta_min: 1.0e-5, warmup_epoch: 20, warmup_start_lr: 1.0e-6}}
"""
RMSPROP = """
{name: RMSProp, momentum: 0.9, rho: 0.9, epsilon: 0.001, regularizer: {name: 'L2', coeff: 0.00001},
 lr: {name: Cosine, learning_rate: 0.032, warmup_epoch: 5}}
"""
STEPS = """
{name: Momentum, momentum: 0.9, weight_decay: 0.0001,
 lr: {name: MultiStepDecay, learning_rate: 0.2, milestones: [30, 60, 90], step_each_epoch: 1, gamma: 0.1}}
"""
ERASING = """
{EPSILON: 0.25, sl: 0.02, sh: 1.0/3.0, r1: 0.3, attempt: 10, use_log_aspect: True, mode: pixel}
"""
MIXED = "{MixupOperator: {alpha: 0.8, prob: 0.5}, CutmixOperator: {alpha: 1.0, prob: 0.5}}"


def plain(name: str) -> Tree:
    """A convolutional network's file."""
    tree: Tree = json.loads(json.dumps(yaml.safe_load(PLAIN.replace("NAME", name))))  # shares nothing
    return tree


def mixed_up(name: str) -> Tree:
    """With Mixup, and no metric of training, which is left empty."""
    tree = plain(name)
    tree["Metric"]["Train"] = None
    tree["DataLoader"]["Train"]["dataset"]["batch_transform_ops"] = [{"MixupOperator": {"alpha": 0.2}}]
    return tree


def piecewise(name: str) -> Tree:
    tree = plain(name)
    tree["Optimizer"]["lr"] = yaml.safe_load(PIECEWISE)
    return tree


def diverse() -> Tree:
    """Branches for each convolution, and colours changed as they were for AlexNet."""
    tree = plain("ResNet18")
    tree["Arch"] |= {"layer_type": "DiverseBranchBlock", "use_first_short_conv": False}
    ops = tree["DataLoader"]["Train"]["dataset"]["transform_ops"]
    ops[1]["RandCropImage"] |= {"backend": "pil", "interpolation": "bilinear"}
    ops.insert(3, {"ColorJitter": {"brightness": 0.4, "saturation": 0.4, "hue": 0.4}})
    ops.insert(4, {"PCALighting": None})
    return tree


def automatic(name: str) -> Tree:
    tree = plain(name)
    tree["Optimizer"] = yaml.safe_load(RMSPROP)
    tree["DataLoader"]["Train"]["dataset"]["transform_ops"].insert(3, {"AutoAugment": None})
    return tree


def modern(name: str) -> Tree:
    """Augmented by timm's RandAugment and erasing, mixed, and resized by PIL's bicubic filter."""
    tree = plain(name)
    dataset, how = tree["DataLoader"]["Train"]["dataset"], {"interpolation": "bicubic", "backend": "pil"}
    ops = dataset["transform_ops"]
    ops[1]["RandCropImage"].update(how)
    tree["DataLoader"]["Eval"]["dataset"]["transform_ops"][1]["ResizeImage"].update(how)
    timm = {"config_str": "rand-m9-mstd0.5-inc1", "interpolation": "bicubic", "img_size": 224}
    ops.insert(3, {"TimmAutoAugment": timm})
    ops.append({"RandomErasing": yaml.safe_load(ERASING)})
    dataset["batch_transform_ops"] = [{"OpSampler": yaml.safe_load(MIXED)}]
    return tree


def transformer(name: str, **arch: Any) -> Tree:
    tree = modern(name)
    tree["Optimizer"] = yaml.safe_load(ADAMW)
    tree["Arch"] |= arch
    del tree["Metric"]["Train"]
    return tree


def averaged(name: str) -> Tree:
    tree = transformer(name, drop_path_rate=0.1, layer_scale_init_value=1e-6, head_init_scale=1.0)
    tree["Global"]["update_freq"] = 4
    tree["EMA"] = {"decay": 0.9999}
    return tree


def published(name: str) -> Tree:
    tree = modern(name)
    tree["Arch"]["pretrained"] = True
    tree["AMP"]["use_amp"] = True
    return tree


def half(name: str) -> Tree:
    """Pure float16 in NHWC with a fourth channel."""
    tree = plain(name)
    tree["Global"] |= {"image_channel": 4, "image_shape": [4, 224, 224], "use_dali": True}
    tree["Arch"] |= {"input_image_channel": 4, "data_format": "NHWC"}
    tree["AMP"] |= {"use_amp": True, "level": "O2"}
    tree["Optimizer"]["multi_precision"] = True
    data = [tree["DataLoader"][each]["dataset"]["transform_ops"] for each in ("Train", "Eval")]
    for position, ops in enumerate([*data, tree["Infer"]["transforms"]]):
        ops[3]["NormalizeImage"] |= {"channel_num": 4, **({} if position else {"output_fp16": True})}
    return tree


def several_sizes() -> Tree:
    tree = plain("PPLCNetV2_base")
    train = tree["DataLoader"]["Train"]
    train["dataset"]["name"] = "MultiScaleDataset"
    train["sampler"] = {"name": "MultiScaleSampler", "scales": [160, 192, 224, 288, 320], "first_bs": 500}
    train["sampler"] |= {"divided_factor": 32, "is_training": True}
    return tree


def strikes_back() -> Tree:
    tree = modern("ResNet50")
    tree["Loss"]["Train"] = [{"BCELoss": {"weight": 1.0, "epsilon": 0.1}}]
    tree["Optimizer"] = yaml.safe_load(ADAMW) | {"name": "Lamb", "no_weight_decay_name": " bn norm"}
    tree["DataLoader"]["Train"]["sampler"]["name"] = "RepeatedAugSampler"
    return tree


def older_half(name: str) -> Tree:
    tree = half(name)
    tree["Global"]["class_num"] = 1000
    tree["AMP"] = {"scale_loss": 128.0, "use_dynamic_loss_scaling": True, "use_pure_fp16": True}
    return tree


def in_bfloat16() -> Tree:
    tree = half("ResNet50")
    tree["AMP_BF16"] = {"use_pure_bf16": False}
    tree["Optimizer"]["multi_precision"] = False
    del tree["AMP"]
    return tree


def distilled(teacher: str, student: str, *losses: Tree, frozen: bool = True, **arch: Any) -> Tree:
    tree = plain(student)
    first = {"name": teacher, "class_num": 1000, "pretrained": frozen, "use_ssld": frozen, **arch}
    models = [
        {"Teacher": first},
        {"Student": {"name": student, "class_num": 1000, "pretrained": False, **arch}},
    ]
    tree["Arch"] = {
        **{"name": "DistillationModel", "class_num": 1000, "pretrained_list": None, "models": models},
        **{"freeze_params_list": [frozen, False], "infer_model_name": "Student"},
    }
    tree["Loss"]["Train"] = list(losses)
    counted = [{"DistillationTopkAcc": {"model_key": "Student", "topk": [1, 5]}}]
    tree["Metric"] = {"Train": counted, "Eval": counted}
    tree["Infer"]["PostProcess"] |= {"name": "DistillationPostProcess", "func": "Topk"}
    return tree


PAIRS = {"weight": 1.0, "model_name_pairs": [["Student", "Teacher"]]}
LABELS = {"DistillationGTCELoss": {"weight": 1.0, "key": "logits", "model_names": ["Student"]}}
BOTH = {"DistillationGTCELoss": {"weight": 1.0, "model_names": ["Student", "Teacher"]}}


def compiled() -> Tree:
    tree = distilled("ResNet50_vd", "PPLCNet_x1_0", {"DistillationDMLLoss": PAIRS})
    tree["Arch"]["models"][1]["Student"]["dropout_prob"] = 0.0
    tree["Global"]["to_static"] = True
    return tree


def retrieving() -> Tree:
    """Embeddings, trained by classes and triplets, and evaluated by queries in a gallery."""
    tree = plain("ResNet50_vd")
    tree["Global"] |= {"eval_mode": "retrieval", "eval_during_train": False}
    tree["Arch"] = {
        "name": "RecModel",
        "infer_output_key": "features",
        "infer_add_softmax": False,
        "Backbone": {"name": "ResNet50_vd", "pretrained": False},
        "BackboneStopLayer": {"name": "flatten"},
        "Neck": {"name": "FC", "embedding_size": 2048, "class_num": 512},
        "Head": {"name": "ArcMargin", "embedding_size": 512, "class_num": 3997, "margin": 0.15, "scale": 30},
    }
    tree["Loss"]["Train"].append({"TripletLossV2": {"weight": 1.0, "margin": 0.5}})
    tree["Metric"] = {"Eval": [{"Recallk": {"topk": [1, 5]}}]}
    both = tree["DataLoader"]["Eval"]
    tree["DataLoader"]["Eval"] = {"Query": both, "Gallery": json.loads(json.dumps(both))}
    del tree["Infer"]["PostProcess"]
    return tree


def attributes() -> Tree:
    """Attributes of people: several labels an image, the rarer ones of more weight."""
    tree = plain("PPLCNet_x1_0")
    tree["Global"]["use_multilabel"] = True
    tree["Arch"] |= {"pretrained": True, "use_ssld": True, "class_num": 26}
    loss = {"MultiLabelLoss": {"weight": 1.0, "weight_ratio": True, "size_sum": True}}
    tree["Loss"] = {"Train": [loss], "Eval": [loss]}
    for split in tree["DataLoader"].values():
        split["dataset"] |= {"name": "MultiLabelDataset", "label_ratio": True}
    tree["Metric"] = {"Eval": [{"ATTRMetric": None}]}
    del tree["Infer"]
    return tree


def by_steps() -> Tree:
    factors = {"temperature": 1, "alpha": 1.0, "beta": 1.0}
    tree = distilled("ResNet34", "ResNet18", LABELS, {"DistillationDKDLoss": PAIRS | factors})
    tree["Optimizer"] = yaml.safe_load(STEPS)
    tree["DataLoader"]["Train"]["dataset"]["transform_ops"][3]["NormalizeImage"]["scale"] = 0.00392157
    return tree


def patterned(layers: dict[str, list[str]], *losses: Tree, frozen: bool = True) -> Tree:
    """ResNet34 teaching ResNet18 by what layers give."""
    tree = distilled("ResNet34", "ResNet18", *losses, frozen=frozen)
    for model in tree["Arch"]["models"]:
        for name, keys in model.items():
            keys["return_patterns"] = layers[name]
    return tree


STAGES = {
    "Teacher": [f"blocks[{each}]" for each in (2, 6, 12, 15)],
    "Student": [f"blocks[{each}]" for each in (1, 3, 5, 7)],
}
POOLED = {"Teacher": ["avg_pool"], "Student": ["avg_pool"]}
MGD = {"base_loss_name": "MGDLoss", "s_keys": ["blocks[7]"], "t_keys": ["blocks[15]"], "name": "loss_mgd"}
PEFD = {"base_loss_name": "PEFDLoss", "s_key": "avg_pool", "t_key": "avg_pool", "name": "loss_pefd"}
RKD = {"student_keepkeys": ["blocks[7]"], "teacher_keepkeys": ["blocks[15]"], "avgpool": False}


def attentive() -> Tree:
    """A ResNet18 that attends to a ResNet34: models within models."""
    sides, deep, models = (56, 28, 14, 7), {"Teacher": (3, 4, 6, 3), "Student": (2, 2, 2, 2)}, []
    shapes = {
        name: [[64 << stage, side, side] for stage, side in enumerate(sides) for _ in range(depths[stage])]
        for name, depths in deep.items()
    }
    for name, backbone in (("Teacher", "ResNet34"), ("Student", "ResNet18")):
        keys = [f"blocks[{each}]" for each in range(len(shapes[name]))]
        transform = {"name": f"LinearTransform{name}", "qk_dim": 128, "keys": keys}
        transform["t_shapes"] = shapes["Teacher"]
        if name == "Student":
            transform["s_shapes"] = shapes["Student"]
        frozen = name == "Teacher"
        within = [
            {backbone: {"name": backbone, "pretrained": frozen, "return_patterns": keys}},
            {transform["name"]: transform},
        ]
        plain = {"pretrained_list": None, "freeze_params_list": [frozen, False], "models": within}
        models.append({name: {"name": "AttentionModel", **plain}})
    both = {"student_keys": ["bilinear_key", "value"], "teacher_keys": ["query", "value"]}
    tree = distilled("ResNet34", "ResNet18", LABELS)
    tree["Arch"] = {"name": "DistillationModel", "pretrained_list": None, "freeze_params_list": None}
    tree["Arch"] |= {"models": models, "infer_model_name": "Student"}
    afd = {"weight": 50.0, "model_name_pair": ["Student", "Teacher"], **both}
    afd |= {"s_shapes": shapes["Student"], "t_shapes": shapes["Teacher"]}
    soft = {"weight": 0.9, "model_name_pairs": [["Student", "Teacher"]], "temperature": 4, "key": "logits"}
    tree["Loss"]["Train"] += [{"DistillationKLDivLoss": soft}, {"AFDLoss": afd}]
    return tree
