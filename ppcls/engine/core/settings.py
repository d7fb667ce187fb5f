"""The sections ``AMP`` and ``EMA``, and the keys of ``Global`` that the engine uses.

``Global`` has the keys of all owners, because PaddleClas's files do. Here they are grouped by what uses them.
A function takes the group that it needs, so its signature shows which keys can change its result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import InitErrorDetails

from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import MODULE_NAME, Bound, Count, Decay, Index, Number, Positive, Workers
from ppcls.config.base.problems import problem, show
from ppcls.config.base.section import Section
from ppcls.files.urls import is_url
from ppcls.registry import suggest

ENTRY_POINT = re.compile(r"\w[\w.-]*")


def _check_hook(value: Any) -> Any:
    name, parameters = split_hook(value)
    module, colon, attribute = name.partition(":")
    valid = (
        MODULE_NAME.fullmatch(module) and attribute.isidentifier() if colon else ENTRY_POINT.fullmatch(name)
    )
    if not valid or not isinstance(parameters, dict) or not all(isinstance(key, str) for key in parameters):
        raise ValueError(
            "expected module:Class such as my_parts:MyHook, the name of an installed hook, or one of these "
            f"with parameters such as {{my_parts:MyHook: {{limit: 3}}}}, got {show(value)}"
        )
    return value


def split_hook(value: Any) -> tuple[str, Any]:
    """Returns the name and the parameters of an item of ``Global.hooks``.

    If the item has no valid name, the name is empty.
    """
    if isinstance(value, dict) and len(value) == 1:
        ((value, parameters),) = value.items()
    else:
        parameters = None
    return value if isinstance(value, str) else "", {} if parameters is None else parameters


_FALSE_IS_NONE = BeforeValidator(lambda value: None if value is False else value)
Hook = Annotated[Any, AfterValidator(_check_hook)]


class TrainingSettings(Section):
    """Seed, length and updates of a run, and the user's hooks."""

    seed: Annotated[int, Bound(ge=0, lt=2**32)] = 0
    """Seed of the initial weights, the order of samples and all random transforms."""
    epochs: Count = 120
    """Number of epochs of the run."""
    time_limit: Positive | None = None
    """Number of seconds within which the process ends, counted from its start, or from the start of the run
    in a program or a notebook. If not all updates fit, the learning rate schedule becomes shorter, and the
    run ends after the last update after which the evaluation and the report still fit. Default: no limit."""
    update_freq: Count = 1
    """Number of steps per optimizer update (gradient accumulation)."""
    auto_scale_lr: bool = False
    """Multiply all learning rates by the images per update (batch_size x processes x `update_freq`) divided
    by `base_batch_size`."""
    base_batch_size: Count = 256
    """Number of images per update for which the learning rates of Optimizer.lr were chosen, for
    `auto_scale_lr`."""
    max_bad_steps: Index = 20
    """Maximum number of consecutive updates with a non-finite loss or gradient. If there are more, the run
    ends."""
    print_batch_step: Count = 10
    """Number of optimizer updates between two log lines."""
    hooks: tuple[Hook, ...] = ()
    """Your own classes whose methods are called after updates, evaluations and checkpoints, such as
    `[my_parts:MyHook]`, or with parameters `[{my_parts:MyHook: {limit: 3}}]`. Hooks of installed packages are
    selected by name (docs/python.md)."""


class CheckpointSettings(Section):
    """Initial weights, and what is saved where and when."""

    output_dir: str = "./output"
    """Folder for the log, the curves and the checkpoints of the run, or an address in object storage such as
    `s3://bucket/runs/pets` (docs/cluster.md). For compatibility with PaddleClas, the default `./output` means
    `./output/ARCHITECTURE`."""
    pretrained_model: str | None = None
    """Initial weights: a .pdparams, .safetensors or .pth file, a checkpoint folder, the name of an
    architecture with published weights, such as `ResNet50`, or `hf-hub:OWNER/MODEL`, or an address
    in object storage. Default: the weights of Arch.pretrained."""
    checkpoints: str | None = None
    """Checkpoint folder from which the run resumes; `auto`: the latest checkpoint in `output_dir`, or a new
    run if there is no checkpoint. Default: a new run."""
    save_interval: Count = 1
    """Number of epochs between checkpoints that are kept as `epoch_N`."""
    keep_best: Annotated[int, Bound(gt=0, le=1000)] = 1
    """Number of best models to keep: `best_model`, `best_model_2` and so on."""
    checkpoint_fallback_dir: str | None = None
    """Folder for checkpoints while `output_dir` can't be written, for example because its disk is full.
    Default: none; the run then ends with an error."""
    save_minutes: Positive | None = None
    """Number of minutes between additional saves of the checkpoint `latest` within an epoch. Default: no such
    saves."""
    save_steps: Count | None = None
    """Number of optimizer updates between additional saves of the checkpoint `latest` within an epoch.
    Default: no such saves."""

    @field_validator("output_dir")
    @classmethod
    def _check_output_dir(cls, value: str) -> str:
        if not value.strip():
            raise ValueError(f"expected a folder such as ./output, got {show(value)}")
        return value

    @field_validator("checkpoints", "checkpoint_fallback_dir")
    @classmethod
    def _check_local(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None or not is_url(value):
            return value
        advice = "a run in object storage writes its checkpoints to this machine first"
        if info.field_name == "checkpoints":
            advice = f"to resume a run in object storage, use --resume {value}"
        raise ValueError(f"expected a folder on this machine, got the address {show(value)}; {advice}")


class EvaluationSettings(Section):
    """When and how the model is evaluated during training."""

    eval_during_train: bool = True
    """Evaluate the model on DataLoader.Eval during training."""
    precise_batch_norm: Index = 0
    """Number of training images with which the statistics of BatchNorm are estimated again before each
    evaluation (precise BatchNorm, Wu & Johnson 2021), on all processes together; 0 for never. The running
    statistics lag behind the weights if the run is short or the momentum of BatchNorm is high. 1,000 to
    10,000 images suffice. The checkpoints contain the new statistics."""
    eval_interval: Count = 1
    """Number of epochs between evaluations."""
    start_eval_epoch: Index = 0
    """First epoch that is evaluated. The last epoch is always evaluated."""
    early_stopping: Count | None = None
    """Number of consecutive evaluations without an improvement after which the run ends. The learning rate
    schedule still assumes the full number of `epochs`. Default: no early stopping."""
    target: Annotated[dict[str, Number] | None, Field(min_length=1)] = None
    """Required results of the last evaluation, such as `{top1: 0.94}`. If a metric is worse, the run ends
    with an error (exit code 4). Default: no requirement."""
    eval_mode: Literal["classification", "retrieval"] = "classification"
    """Kind of evaluation. `retrieval` needs Arch.name: RecModel. For each image of DataLoader.Eval, it
    searches all other images for the same identity. With Query and Gallery, it searches Gallery for the
    identity of each Query image. Labels may be any integers. The reported loss is the sum of those losses in
    Loss.Eval that use embeddings."""


class RetrievalSettings(Section):
    """How retrieval compares embeddings."""

    feature_normalize: bool = True
    """In retrieval, compare embeddings by cosine (True) or by inner product (False)."""
    feature_binarize: Annotated[Literal["sign", "round"] | None, _FALSE_IS_NONE] = None
    """In retrieval, convert embeddings to hash codes before they are compared: `sign` uses the sign of each
    number; `round` rounds numbers from 0 to 1. Default: no hash codes."""
    retrieval_feature_from: Literal["features", "backbone"] = "features"
    """Embedding that retrieval compares: the output of the Neck (`features`), or its input (`backbone`)."""
    re_ranking: bool = False
    """In retrieval, rank images by the nearest neighbors that they share (k-reciprocal re-ranking,
    arXiv:1701.08398)."""


class Autotuned(Section):
    """What `Global.autotune` measured before a run. The run writes this section into its configs."""

    machine: str
    """Model of the GPU or CPU that was measured. Commands on other models ignore this section."""
    images_per_second: dict[str, Positive]
    """Training speed of each way to execute steps that was measured and accepted."""
    inference_images_per_second: dict[str, Positive]
    """Speed of evaluation batches of the same ways."""
    data_format: Literal["NCHW", "NHWC"]
    """Layout of the way with the fastest inference. Predictions on a CPU in float32 use it."""
    fused_kernels: bool
    """Whether the way with the fastest inference has the fused kernels. Predictions on a CPU in float32 use
    them accordingly."""
    threads: Workers | None = None
    """Number of CPU threads of Paddle with which the run was fastest, which a resumed run uses again; null:
    the default of `cpu_threads`."""


class ExecutionSettings(Section):
    """How training steps are executed, on one or several processes."""

    to_static: Literal["auto", True, False] = "auto"
    """Compile the model for training. `auto`: the choice of `autotune`; without `autotune`, True for AMP with
    float16 and NHWC on a GPU with Paddle 2.6, else False."""
    cuda_graph: Literal["auto", True, False] = "auto"
    """Capture training steps as CUDA graphs and replay them, which saves the time to launch each kernel.
    Evaluations of the run are captured, too. `auto`: the choice of `autotune`; without `autotune`, True on
    GPUs of one node with Paddle 2.6, if the step can be captured. With Paddle 2.6, commands that predict
    with a trained model capture the first four batch sizes that are used repeatedly, unless this is False."""
    fused_kernels: Literal["auto", True, False] = "auto"
    """Train and evaluate an NHWC model with faster kernels. On a GPU, these are the kernels of ppcls for
    BatchNorm, addition and ReLU, and convolutions in NHWC; they need NVRTC and a GPU of compute capability
    8.0 or later. In half precision, evaluations and predictions approximate GELU by the hyperbolic tangent,
    with an error of at most 0.0005. On a CPU, they are the convolutions, BatchNorm, max pooling, products of
    matrices and activations of oneDNN, which is part of Paddle's package. `to_static` is then ignored.
    `auto`: the choice of `autotune`; without `autotune`, False. On a CPU in float32, `ppcls infer`, `eval`,
    `serve` and `train` with `--head` use them with checkpoints, also of NCHW models, unless this is False, or
    `autotune` measured on a CPU of the same model that inference is faster without them; their scores differ
    in the last digits. Models exported with `--format ppcls` use them on GPUs, too."""
    recompute: bool = False
    """Keep only the inputs of the model's blocks during the forward pass, and compute their activations again
    in the backward pass (gradient checkpointing). Training needs less memory and a third to a half more time,
    and the losses stay the same. Steps are then neither compiled nor captured as a CUDA graph."""
    autotune: bool = True
    """Before a run of at least 2,000 updates on a GPU, measure which values of `to_static`, `cuda_graph`,
    `fused_kernels` and Arch.data_format are fastest. Before a run in float32 on a CPU that takes more than
    about a minute, measure whether `fused_kernels` in NHWC are faster and, if `cpu_threads` and
    OMP_NUM_THREADS are not set, whether one thread per physical core or per two cores is faster. The fastest
    values are those with the shortest training and evaluations together. Values that change the losses of the
    first updates by more than 1 % (float16: 5 %, bfloat16: 10 %) are not used. The run uses the fastest
    values for settings that are `auto` or absent, and a resumed run those of its checkpoint. This takes about
    a minute on a GPU and ten to twenty seconds on a CPU, once for each combination of model, batch size,
    precision, share of the evaluations, machine and version. The duration of a run on a CPU is estimated from
    the speed of the architecture in docs/models.md; runs of architectures without a speed there are measured
    from 300 updates. Shorter runs with float16 use NHWC if Arch.data_format is not set. Nothing is measured
    on a GPU if `time_limit` is below 20 minutes."""
    autotuned: Autotuned | None = None
    """What `autotune` measured. The configs of checkpoints contain it; do not set it yourself. It is ignored
    if an override changes `fused_kernels`, Arch.name or Arch.data_format."""
    sync_bn: bool = False
    """Compute the statistics of BatchNorm over the batches of all processes (Paddle's SyncBatchNorm). Needs
    GPUs. Useful if each process has few images."""
    fuse_grad_size_in_MB: Count = 25  # noqa: N815 - Paddle's spelling
    """Size in MB of the groups of gradients that processes exchange during the backward pass. Larger groups
    need fewer exchanges; smaller groups are exchanged earlier. With a CUDA graph on one machine, all
    gradients are exchanged after the backward pass."""
    find_unused_parameters: bool = False
    """Allow parameters that a forward pass does not use, in a run with several processes. Slower."""


class EngineSettings(
    ExecutionSettings, RetrievalSettings, EvaluationSettings, TrainingSettings, CheckpointSettings
):
    """All keys of ``Global`` that the engine uses."""

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts with the model, the data and the evaluation."""
        yield from super().problems(facts, part)
        if self.recompute:
            for name in ("to_static", "cuda_graph"):
                if getattr(self, name) is True:
                    yield problem("Global.recompute needs other steps; set one of the two to False", name)
            if facts.models:
                text = "the losses of DistillationModel read layers, which would be computed twice; remove it"
                yield problem(text, "recompute")
        if self.early_stopping is not None and not self.eval_during_train:
            yield problem("needs evaluations; set Global.eval_during_train: True", "early_stopping")
        if self.target is not None and not self.eval_during_train:
            yield problem("needs evaluations; set Global.eval_during_train: True", "target")
        for name, target in (self.target or {}).items():
            if name not in facts.metrics:
                text = f"Metric.Eval does not report it{suggest(name, list(facts.metrics))}"
                yield problem(text, "target", name)
            elif (maximum := facts.metrics[name]) is not None and target > maximum:
                yield problem(f"expected at most {maximum:g}, got {target:g}", "target", name)
        if self.eval_mode == "retrieval" and not facts.embeds:
            yield problem("retrieval needs embeddings; expected Arch.name: RecModel", "eval_mode")
        if self.auto_scale_lr and facts.varying_batches:
            text = f"expected False: batches of {facts.varying_batches} have different sizes"
            yield problem(text, "auto_scale_lr")

    def evaluates_after(self, epoch: int) -> bool:
        """Returns whether the model is evaluated at the end of ``epoch``, counted from 1."""
        due = epoch % self.eval_interval == 0 and epoch >= self.start_eval_epoch
        return due or epoch == self.epochs


class EMA(Section):
    """Exponential moving average of the weights.

    Evaluations use the average. Checkpoints contain both the average and the raw weights.
    """

    decay: Decay = 0.9999
    """Weight of the previous average in each update."""
    warmup: bool = False
    """Start with a smaller decay, min(`decay`, (1 + updates) / (10 + updates)), which reduces the influence
    of the initial weights."""


class AMP(Section):
    """Settings of mixed precision."""

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
    """Train in mixed precision."""
    level: Literal["O1", "O2"] = "O1"
    """Level of mixed precision: `O1` runs operators that benefit from it in half precision; `O2` also stores
    the weights in half precision, with float32 master weights in the optimizer."""
    dtype: Literal["float16", "bfloat16"] = "float16"
    """Half-precision type."""
    scale_loss: Positive = 2.0**15
    """Initial loss scale, for float16."""
    use_dynamic_loss_scaling: bool = True
    """Halve the loss scale after each overflow, and double it after 2,000 consecutive updates without an
    overflow."""
    min_loss_scaling: Annotated[float, Bound(ge=1)] = 1.0
    """Minimum of the loss scale. If the loss scale would fall below it, the run ends."""
    use_promote: bool = True
    """Accepted for compatibility with PaddleClas; has no effect."""
    use_fp16_test: bool | None = None
    """Evaluate in mixed precision too; default: True for float16, False for bfloat16. `O2` always evaluates
    in mixed precision. Batches that overflow in float16 are evaluated again in float32."""

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts of float16 with the device and the loss scale."""
        yield from super().problems(facts, part)
        if not self.use_amp or self.dtype != "float16":
            return
        if facts.device == "cpu":
            text = "float16 needs a GPU, but Global.device is cpu; use bfloat16, or train on a GPU"
            yield problem(text, "dtype")
        if self.use_dynamic_loss_scaling and self.scale_loss < self.min_loss_scaling:
            text = (
                f"expected at least AMP.min_loss_scaling ({self.min_loss_scaling:g}), got {self.scale_loss:g}"
            )
            yield problem(text, "scale_loss")
