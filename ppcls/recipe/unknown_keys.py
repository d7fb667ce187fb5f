"""Says where an unknown key belongs: in another section, or under another name than in other trainers.

Decisions:
    In ``Global``, in an unknown section and outside of sections, a key may belong anywhere. In any other
    section, only its own parts are suggested: ``Optimizer.epsilon`` must not lead to the epsilon of a loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pydantic import ValidationError

from ppcls.config.base.errors import describe_problems, place, split_path
from ppcls.config.base.problems import UNKNOWN_KEY
from ppcls.config.base.section import Section
from ppcls.config.base.tree import Tree, leaves, node_at

_MAX_PLACES = 3

# The key that means the same as a name of another trainer.
_OTHER_NAMES = {
    **dict.fromkeys(("lr", "base_lr", "lr0", "init_lr", "initial_lr", "max_lr"), "learning_rate"),
    **dict.fromkeys(("bs", "batchsize", "train_batch_size", "batch_size_per_card"), "batch_size"),
    **dict.fromkeys(
        ("num_epochs", "max_epochs", "n_epochs", "epoch_num", "max_epoch", "total_epochs"), "epochs"
    ),
    **dict.fromkeys(("num_classes", "classes_num", "class_nums", "n_classes", "nc"), "class_num"),
    **dict.fromkeys(("workers", "worker_num", "n_workers"), "num_workers"),
    **dict.fromkeys(
        ("save_dir", "log_dir", "out_dir", "save_path", "work_dir", "model_save_dir"), "output_dir"
    ),
    **dict.fromkeys(("pretrain", "pretrained_weights", "pretrain_weights", "load_from"), "pretrained_model"),
    **dict.fromkeys(("resume", "resume_from", "resume_path"), "checkpoints"),
    **dict.fromkeys(
        ("eval_step", "eval_freq", "val_interval", "eval_batch_step", "eval_epoch"), "eval_interval"
    ),
    **dict.fromkeys(("save_epoch", "save_freq", "save_period", "snapshot_epoch"), "save_interval"),
    **dict.fromkeys(
        ("log_interval", "print_freq", "log_freq", "log_iters", "print_step"), "print_batch_step"
    ),
    **dict.fromkeys(("warmup_epochs", "warmup"), "warmup_epoch"),
    **dict.fromkeys(("fp16", "amp", "use_fp16"), "use_amp"),
    **dict.fromkeys(("img_size", "image_size", "imgsz", "input_shape"), "image_shape"),
    **dict.fromkeys(("label_smoothing", "ls_epsilon", "smoothing"), "epsilon"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed"),
    **dict.fromkeys(("early_stop", "patience"), "early_stopping"),
}
_DEFAULT_KEYS = (
    *(f"Arch.{key}" for key in ("name", "class_num", "pretrained", "data_format", "input_image_channel")),
    *(f"Optimizer.lr.{key}" for key in ("learning_rate", "warmup_epoch")),
    *(f"DataLoader.{split}.sampler.batch_size" for split in ("Train", "Eval")),
    *(f"DataLoader.{split}.loader.num_workers" for split in ("Train", "Eval")),
)
# Names of another trainer that no single key replaces.
_ADVICE = {
    **dict.fromkeys(("use_gpu", "use_cuda", "gpu", "cuda"), "write Global.device: gpu or cpu"),
    **dict.fromkeys(("model", "model_name", "arch", "architecture", "backbone", "net"), "write Arch.name"),
    **dict.fromkeys(
        ("data", "data_dir", "data_path", "data_root", "dataset_dir", "train_dir"),
        "write DataLoader.Train.dataset.image_root (ppcls train: --data FOLDER)",
    ),
    **dict.fromkeys(("optim", "optimizer", "opt"), "write Optimizer.name"),
    "inference_model_dir": "remove it; `ppcls infer --model FOLDER IMAGES` predicts with an exported model",
    **dict.fromkeys(
        ("use_wandb", "wandb", "use_tensorboard", "tensorboard", "use_mlflow", "mlflow"),
        "write Global.loggers, such as -o Global.loggers=[tensorboard]",
    ),
    "profiler_options": "remove it, and use `ppcls train --profile 10:20`",
    **dict.fromkeys(
        ("use_xpu", "use_npu", "use_mlu"), "remove it; only GPUs of NVIDIA and CPUs are supported"
    ),
    "train_mode": "DataLoader.Train.input_size with the name Progressive changes the image size",
}

# What to write instead of values of other tools: patterns of values in lower case, for the paths of keys.
_VALUES: dict[str, dict[str, str]] = {
    "Global.device": {
        r"(cuda|gpu)(:\d+)?|\d+": "use gpu; CUDA_VISIBLE_DEVICES in front of the command chooses a GPU",
        r"(npu|xpu|mlu|mps|gcu|ascend|iluvatar_gpu)(:\d+)?": "only GPUs of NVIDIA and CPUs are supported",
        r"\[.*\]": "use gpu; `ppcls launch --gpus=0,1 train FOLDER` starts one process per GPU",
        "": "use auto",
    },
    "AMP.dtype": {"fp16|half|float": "use float16", "bf16|bfloat": "use bfloat16"},
    "AMP.level": {"o0|fp32|float32|none": "AMP.use_amp=False trains in float32", "o3|fp16|float16": "use O2"},
    "Arch.data_format": {"channels_?last": "use NHWC", "channels_?first": "use NCHW"},
    "DataLoader.Train.dataset.on_error": {"ignore|continue|warn": "use skip", "stop|error|fail": "use raise"},
    "DataLoader.Eval.dataset.on_error": {"ignore|continue|warn": "use skip", "stop|error|fail": "use raise"},
}


def describe_errors(tree: Tree, error: ValidationError, config: type[Section]) -> list[str]:
    """Returns one line for each validation error. For an unknown key, it names the place of this key.

    Args:
        tree: The config as plain data.
        error: The error of its validation.
        config: Class of the whole config.
    """
    details = error.errors(include_url=False)
    lines = describe_problems(tree, error)
    for number, each in enumerate(details):
        path = place(tree, each["loc"])
        if each["type"] != UNKNOWN_KEY and (advice := _advise_value(path, node_at(tree, path))):
            lines[number] += f"; {advice}"
    unknown = {
        place(tree, each["loc"]): number for number, each in enumerate(details) if each["type"] == UNKNOWN_KEY
    }
    known = [
        path
        for path in (*_default_keys(config), *(leaf for leaf, _ in leaves(tree)))
        if not any(_is_below(path, other) for other in unknown)
    ]
    for path, number in unknown.items():
        if advice := _advise(path, known, config):
            lines[number] = f"{path}: unknown key; {advice}"
    return lines


def _advise(path: str, known: Sequence[str], config: type[Section]) -> str | None:
    """Returns what to write instead of an unknown key; None if nothing is known.

    Args:
        path: Path of the key.
        known: Paths of known keys.
        config: Class of the whole config.
    """
    *parents, key = split_path(path)
    name = key.lower().replace("-", "_")
    anywhere = not parents or parents[0] == "Global" or parents[0] not in config.model_fields
    if anywhere and name in _ADVICE:
        return _ADVICE[name]
    same = _OTHER_NAMES.get(name, name)
    section = "" if anywhere else f"{'.'.join(parents)}."
    places = dict.fromkeys(
        each for each in known if each.rpartition(".")[2] == same and each.startswith(section)
    )
    return f"write {' or '.join(places)}" if 0 < len(places) <= _MAX_PLACES else None


def _advise_value(path: str, value: object) -> str | None:
    """Returns what to write instead of a value that a key rejects; None if nothing is known."""
    text = str(value).lower()
    return next(
        (advice for pattern, advice in _VALUES.get(path, {}).items() if re.fullmatch(pattern, text)), None
    )


def _is_below(path: str, parent: str) -> bool:
    keys = split_path(parent)
    return split_path(path)[: len(keys)] == keys


def _default_keys(config: type[Section]) -> Iterator[str]:
    """Yields the paths of keys that a file may lack, because they have defaults."""
    for name in ("Global", "AMP", "EMA"):
        yield from (f"{name}.{key}" for key in _fields(config, name))
    for path in _DEFAULT_KEYS:
        if path.partition(".")[0] in config.model_fields:
            yield path


def _fields(config: type[Section], name: str) -> Iterable[str]:
    """Returns the keys of a section of the config; none if the config has no such section."""
    annotation = config.model_fields[name].annotation if name in config.model_fields else None
    for kind in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind.model_fields
    return ()
