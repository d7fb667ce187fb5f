"""The sections ``Global``, ``AMP`` and ``EMA``: the run as a whole, mixed precision, averaged weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, field_validator, model_validator

from ppcls.config.base.fields import (
    Bound,
    Count,
    Decay,
    Index,
    Keyed,
    Part,
    Positive,
    Section,
    Side,
    Workers,
    show,
)
from ppcls.config.sections.logger import LoggerSpec
from ppcls.registry import LOGGERS

ENTRY_POINT = re.compile(r"\w[\w.-]*")
MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def _check_module(value: str) -> str:
    if not MODULE_NAME.fullmatch(value):
        raise ValueError(f"expected the name of a Python module such as my_parts, got {show(value)}")
    return value


def _check_hook(value: Any) -> Any:
    name, parameters = split_hook(value)
    module, colon, attribute = name.partition(":")
    valid = (
        MODULE_NAME.fullmatch(module) and attribute.isidentifier() if colon else ENTRY_POINT.fullmatch(name)
    )
    if not valid or not isinstance(parameters, dict) or not all(isinstance(key, str) for key in parameters):
        raise ValueError(
            "expected module:Class such as my_parts:MyHook, the name of an installed hook, or one of them "
            f"with its parameters such as {{my_parts:MyHook: {{limit: 3}}}}, got {show(value)}"
        )
    return value


def split_hook(value: Any) -> tuple[str, Any]:
    """Returns the name and the parameters of an item of ``Global.hooks``; an empty name if it is invalid."""
    if isinstance(value, dict) and len(value) == 1:
        ((value, parameters),) = value.items()
    else:
        parameters = None
    return value if isinstance(value, str) else "", {} if parameters is None else parameters


_FALSE_IS_NONE = BeforeValidator(lambda value: None if value is False else value)
ModuleName = Annotated[str, AfterValidator(_check_module)]
Hook = Annotated[Any, AfterValidator(_check_hook)]


class Global(Section):
    """The run as a whole."""

    ignored: ClassVar[Mapping[str, str]] = {
        "class_num": "Arch.class_num is the key",
        "infer_imgs": "Infer.infer_imgs is the key",
        "iter_per_epoch": "samples of ClassBalancedSampler sets the length of an epoch",
    }

    output_dir: str = "./output"
    """Folder of the run: log, curves, checkpoints. As in PaddleClas, `./output` means
    `./output/ARCHITECTURE`."""
    device: Literal["auto", "gpu", "cpu"] = "auto"
    """Where the model runs; `auto`: on a GPU if there is one."""
    seed: Annotated[int, Bound(ge=0, lt=2**32)] = 0
    """Seed of the initial weights, the order of samples and all random transforms."""
    deterministic: bool = False
    """Produce the same bits in each run on the same machine. Slower on a GPU."""
    epochs: Count = 120
    """Length of the run in epochs."""
    cpu_threads: Workers | None = None
    """CPU threads of Paddle per process; by default the cores that the process may use."""
    gpu_memory_fraction: Part | None = None
    """Largest share of the GPU's memory that Paddle may allocate per process; by default 0.8 with DALI on a
    GPU, else all of it. Takes precedence over FLAGS_fraction_of_gpu_memory_to_use."""
    use_dali: bool = False
    """Load images with NVIDIA DALI instead of paddle.io."""
    pretrained_model: str | None = None
    """Initial weights: a .pdparams, .safetensors or .pth file, a checkpoint folder, the name of an
    architecture, such as `ResNet50`, whose published weights are downloaded, or `hf-hub:OWNER/MODEL`."""
    checkpoints: str | None = None
    """Checkpoint folder to resume from; `auto`: the latest one in `output_dir`, or a new run if there is
    none."""
    save_interval: Count = 1
    """Interval in epochs at which a checkpoint is kept as `epoch_N`."""
    keep_best: Annotated[int, Bound(gt=0, le=1000)] = 1
    """Number of best models to keep: `best_model`, `best_model_2` and so on."""
    checkpoint_fallback_dir: str | None = None
    """Folder for checkpoints while `output_dir` can't be written, such as on a full disk."""
    save_minutes: Positive | None = None
    """Interval in minutes at which `latest` is saved in addition."""
    save_steps: Count | None = None
    """Interval in optimizer updates at which `latest` is saved in addition."""
    eval_during_train: bool = True
    """Evaluate on DataLoader.Eval during training."""
    eval_interval: Count = 1
    """Epochs between evaluations."""
    start_eval_epoch: Index = 0
    """First epoch that is evaluated; the last one is always evaluated."""
    early_stopping: Count | None = None
    """End the run after this many evaluations in a row without an improvement. The learning-rate schedule
    remains that of all `epochs`."""
    print_batch_step: Count = 10
    """Optimizer updates between log lines."""
    max_bad_steps: Index = 20
    """Largest number of consecutive updates with a non-finite loss or gradient; more of them end the run."""
    use_visualdl: bool = False
    """Write scalars, images, weights and PR curves for VisualDL to `output_dir`/visualdl."""
    loggers: tuple[Annotated[LoggerSpec, Keyed(LOGGERS)], ...] = ()
    """Experiment trackers that receive scalars and the config, such as `[tensorboard, {mlflow: {experiment:
    digits}}]`. Each needs its own package (docs/recipes.md)."""
    import_modules: tuple[ModuleName, ...] = ()
    """Python modules that are imported before the config is checked, such as `[my_parts]` for a file
    my_parts.py in the current folder or on PYTHONPATH. They register the user's architectures, losses,
    metrics, optimizers and transforms (docs/python.md)."""
    hooks: tuple[Hook, ...] = ()
    """Classes of the user that training calls after updates, evaluations and checkpoints, such as
    `[my_parts:MyHook]`, with parameters `[{my_parts:MyHook: {limit: 3}}]`, or by the name under which a
    package installed them (docs/python.md)."""
    update_freq: Count = 1
    """Steps per optimizer update (gradient accumulation)."""
    auto_scale_lr: bool = False
    """Multiply all learning rates by images per update (batch_size x processes x `update_freq`) divided by
    `base_batch_size`."""
    base_batch_size: Count = 256
    """Images per update that Optimizer.lr was chosen for; used by `auto_scale_lr`."""
    sync_bn: bool = False
    """Compute BatchNorm statistics over the batches of all processes, on GPUs (Paddle's SyncBatchNorm).
    Useful when each process has few images."""
    fuse_grad_size_in_MB: Count = 25  # noqa: N815 - Paddle's spelling
    """Size of the gradient groups that processes exchange during the backward pass: larger groups need fewer
    exchanges, smaller ones start earlier."""
    find_unused_parameters: bool = False
    """Allow a forward pass that leaves some parameters unused, with several processes. Costs time."""
    hang_timeout: Positive | None = 1800
    """Seconds within which each process must finish a step or an evaluation batch, also in tools/eval.py.
    Otherwise all processes end, and the log shows the stack of each. The limit is tripled until the first
    step is done and for other work such as checkpoints (docs/gpu.md). null: no limit. Tools that predict,
    export or measure have no limit."""
    eval_mode: Literal["classification", "retrieval"] = "classification"
    """`retrieval`: find the identity of each image of DataLoader.Eval among all others, or of each Query
    image in the Gallery (Arch.name: RecModel). Labels may be any numbers. Only identity losses are
    reported."""
    feature_normalize: bool = True
    """In retrieval, compare embeddings by their cosines; False: by their inner products."""
    feature_binarize: Annotated[Literal["sign", "round"] | None, _FALSE_IS_NONE] = None
    """In retrieval, compare hash codes. `sign`: the signs of the numbers; `round`: the numbers, from 0 to
    1, rounded."""
    retrieval_feature_from: Literal["features", "backbone"] = "features"
    """Embedding that retrieval evaluates: the output of the Neck, or its input."""
    re_ranking: bool = False
    """Compare images by the nearest neighbors that they share (k-reciprocal re-ranking, arXiv:1701.08398),
    in evaluation with `eval_mode: retrieval`."""
    use_multilabel: bool = False
    """Accepted for compatibility with PaddleClas; MultiLabelDataset already implies it."""
    image_channel: Count | None = None
    """Must equal Arch.input_image_channel; PaddleClas's files set both by a YAML anchor."""
    image_shape: tuple[Count, Side, Side] = (3, 224, 224)
    """[channels, height, width] of the exported model's input. `Infer.transforms` takes precedence."""
    save_inference_dir: str = "./inference"
    """Folder of the exported model; by default `inference` in `output_dir`, if that is set."""
    to_static: Literal["auto", True, False] = "auto"
    """Compile the model for training; `auto`: what `autotune` chooses; without it, True only for AMP in
    float16 and NHWC on a GPU with Paddle 2.6."""
    cuda_graph: Literal["auto", True, False] = "auto"
    """Capture a training step as a CUDA graph and replay it, so that the host no longer launches each kernel;
    `auto`: what `autotune` chooses; without it, True only with Paddle 2.6 on one node."""
    fused_kernels: Literal["auto", True, False] = "auto"
    """Train an NHWC model with ppcls's own kernels for BatchNorm, addition and ReLU, and with convolutions
    that stay in NHWC; `auto`: what `autotune` chooses; without it, False. Needs a GPU of compute capability
    8.0 or later and NVRTC. Replaces `to_static`."""
    autotune: bool = True
    """Before a run of at least 2,000 updates on a GPU, measure which values of `to_static`, `cuda_graph`,
    `fused_kernels` and Arch.data_format are fastest with equal losses, and use them where these settings are
    `auto` or absent.
    Takes about a minute, once for each model, batch size, precision, card and version. Shorter runs in
    float16 use NHWC unless Arch.data_format is set."""

    def evaluates_after(self, epoch: int) -> bool:
        """Returns whether an evaluation is due at the end of an epoch, counted from 1."""
        due = epoch % self.eval_interval == 0 and epoch >= self.start_eval_epoch
        return due or epoch == self.epochs

    @model_validator(mode="before")
    @classmethod
    def _export_to_output_dir(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "save_inference_dir" in data:
            return data
        folder = data.get("output_dir")
        if not isinstance(folder, str) or not folder.strip():
            return data
        return {**data, "save_inference_dir": f"{folder.rstrip('/')}/inference"}

    @field_validator("output_dir")
    @classmethod
    def _check_output_dir(cls, value: str) -> str:
        if not value.strip():
            raise ValueError(f"expected a folder such as ./output, got {show(value)}")
        return value


class EMA(Section):
    """Exponential moving average of the weights. It is evaluated and saved together with the raw weights."""

    decay: Decay = 0.9999
    """Weight of the old average in each update."""
    warmup: bool = False
    """Start with a smaller decay, min(`decay`, (1 + updates) / (10 + updates)), so that the average soon
    forgets the initial weights."""


class AMP(Section):
    """Mixed precision."""

    key_hints: ClassVar[Mapping[str, str]] = {
        "init_loss_scaling": "write scale_loss, the initial scale",
        "use_pure_fp16": "write level: O2",
        "use_pure_bf16": "write level: O2 and dtype: bfloat16",
        "master_weight": "level O2 always keeps float32 master weights",
        "multi_precision": "level O2 always keeps float32 master weights",
        "custom_white_list": "Paddle chooses which operators are cast",
        "custom_black_list": "Paddle chooses which operators are cast",
        "incr_every_n_steps": "the scale doubles after 2,000 updates without an overflow",
        "decr_every_n_nan_or_inf": "the scale halves at each overflow",
        "incr_ratio": "the scale doubles after 2,000 updates without an overflow",
        "decr_ratio": "the scale halves at each overflow",
    }
    use_amp: bool = True
    """Turn mixed precision on."""
    level: Literal["O1", "O2"] = "O1"
    """`O1` casts operators; `O2` also keeps the weights in half precision."""
    dtype: Literal["float16", "bfloat16"] = "float16"
    """Half-precision type."""
    scale_loss: Positive = 2.0**15
    """Initial loss scale of float16."""
    use_dynamic_loss_scaling: bool = True
    """Halve the loss scale at each overflow and double it after 2,000 updates without one."""
    min_loss_scaling: Annotated[float, Bound(ge=1)] = 1.0
    """Smallest loss scale; the run ends if it would become smaller."""
    use_promote: bool = True
    """Accepted for compatibility with PaddleClas; O2 has nothing to promote, because everything is in half
    precision."""
    use_fp16_test: bool | None = None
    """Evaluate in mixed precision too; default: with float16. O2 always does. Batches that overflow in
    float16 are evaluated again in float32."""
