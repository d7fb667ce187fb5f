"""Sections of the YAML in PaddleClas's vocabulary: the run, what it is judged by, its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from ppcls.config.base.fields import Bound, Count, Decay, Index, Part, Positive, Section, show


class Global(Section):
    """The run as a whole."""

    without_effect: ClassVar[Mapping[str, str]] = {"class_num": "Arch.class_num is the key"}

    output_dir: str = Field("./output", description="folder of the run: log, curves, checkpoints")
    device: Literal["auto", "gpu", "cpu"] = Field("auto", description="auto takes a GPU where there is one")
    seed: Annotated[int, Bound(ge=0, lt=2**32)] = Field(
        0, description="of weights, order and every random transform"
    )
    deterministic: bool = Field(
        False, description="the same bits in each run on the same machine; slower on a GPU"
    )
    epochs: Count = 120
    cpu_threads: Count | None = Field(
        None, description="Paddle's CPU threads a process; by default the cores that it really has"
    )
    gpu_memory_fraction: Part | None = Field(
        None,
        description="the most of the GPU's memory that Paddle may take, a process; by default 0.8 with DALI "
        "on a GPU, else all. Before FLAGS_fraction_of_gpu_memory_to_use",
    )
    use_dali: bool = Field(False, description="feed by NVIDIA DALI; otherwise by paddle.io")
    pretrained_model: str | None = Field(
        None, description="weights to start from: .pdparams, .safetensors or a checkpoint folder"
    )
    checkpoints: str | None = Field(
        None, description="resume from this checkpoint folder; auto takes the latest in output_dir, if any"
    )
    save_interval: Count = Field(1, description="keep a checkpoint every so many epochs, as epoch_N")
    keep_best: Count = Field(
        1, description="keep so many of the best models: best_model, best_model_2 and so on"
    )
    checkpoint_fallback_dir: str | None = Field(
        None, description="where checkpoints go while output_dir takes none, such as on a full disk"
    )
    save_minutes: Positive | None = Field(None, description="also save `latest` every so many minutes")
    save_steps: Count | None = Field(None, description="also save `latest` every so many optimizer updates")
    eval_during_train: bool = True
    eval_interval: Count = Field(1, description="epochs between evaluations")
    early_stopping: Count | None = Field(
        None,
        description="end the run after so many evaluations in a row without a better one; the learning "
        "rate's schedule stays that of all `epochs`",
    )
    print_batch_step: Count = Field(10, description="optimizer updates between log lines")
    max_bad_steps: Index = Field(
        20, description="the most updates in a row whose loss or gradient is not finite; more end the run"
    )
    use_visualdl: bool = Field(
        False,
        description="write scalars, images, weights and PR curves for VisualDL below output_dir/visualdl",
    )
    update_freq: Count = Field(1, description="batches an optimizer update (gradient accumulation)")
    auto_scale_lr: bool = Field(
        False,
        description="multiply all learning rates by the images of an update (batch_size x processes x "
        "update_freq) over base_batch_size",
    )
    base_batch_size: Count = Field(
        256, description="images of an update that Optimizer.lr is meant for, for auto_scale_lr"
    )
    sync_bn: bool = Field(
        False,
        description="BatchNorm over the batches of all processes, on GPUs; worth its time where a process "
        "has few images (Paddle's SyncBatchNorm)",
    )
    fuse_grad_size_in_MB: Count = Field(  # noqa: N815 - Paddle's spelling
        25,
        description="gradients that processes exchange at once while backward still runs: larger has fewer "
        "exchanges, smaller begins earlier",
    )
    find_unused_parameters: bool = Field(
        False,
        description="for models whose forward leaves out some of their parameters, with several processes; "
        "costs time",
    )
    hang_timeout: Positive | None = Field(
        1800,
        description="seconds in which each process must make a step, or evaluate a batch, also in "
        "tools/eval.py; else all have ended by then, with the place and the stacks of each in the log. Three "
        "times as long to the end of the first step, and for what is no plain step, such as a checkpoint "
        "(docs/gpu.md). null for no limit; tools that predict, export or measure have none",
    )
    eval_mode: Literal["classification", "retrieval"] = Field(
        "classification",
        description="retrieval: each image of DataLoader.Eval looks for its identity among all others, or "
        "each of its Query in its Gallery; labels may be any numbers; of losses only those of identities "
        "are told (Arch.name: RecModel)",
    )
    use_multilabel: bool = Field(
        False, description="read for PaddleClas; MultiLabelDataset says it of its images"
    )
    image_channel: Count | None = Field(
        None, description="Arch.input_image_channel again, where PaddleClas's files have their anchor"
    )
    image_shape: tuple[Count, Count, Count] = Field(
        (3, 224, 224), description="[channels, height, width] of the exported model's input"
    )
    save_inference_dir: str = Field("./inference", description="folder of the exported model")
    to_static: Literal["auto", True, False] = Field(
        "auto",
        description="compile the model that trains; auto does where that is faster: AMP O2 in float16 and "
        "NHWC on a GPU, with Paddle 2.6",
    )
    cuda_graph: Literal["auto", True, False] = Field(
        "auto",
        description="record a training step once, on a GPU, and replay it, so that the host no longer starts "
        "each kernel; auto does with Paddle 2.6 on one machine",
    )

    @field_validator("output_dir")
    @classmethod
    def _a_folder(cls, value: str) -> str:
        if not value.strip():
            raise ValueError(f"expected a folder, such as ./output, got {show(value)}; . is the current one")
        return value


class EMA(Section):
    """Exponential moving average of the weights, evaluated and saved beside the raw ones."""

    decay: Decay = 0.9999
    warmup: bool = Field(
        False,
        description="let the decay rise to `decay`, as min(decay, (1 + updates) / (10 + updates)), so that "
        "the average soon forgets the first weights",
    )


class AMP(Section):
    """Mixed precision."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "init_loss_scaling": "scale_loss is the first scale",
        "use_pure_fp16": "write level: O2",
        "use_pure_bf16": "write level: O2 and dtype: bfloat16",
        "master_weight": "level O2 always keeps float32 master weights",
        "multi_precision": "level O2 always keeps float32 master weights",
        "custom_white_list": "which operators are cast is Paddle's own choice",
        "custom_black_list": "which operators are cast is Paddle's own choice",
        "incr_every_n_steps": "the scale doubles after 2,000 updates without an overflow",
        "decr_every_n_nan_or_inf": "the scale halves at each overflow",
        "incr_ratio": "the scale doubles after 2,000 updates without an overflow",
        "decr_ratio": "the scale halves at each overflow",
    }
    use_amp: bool = True
    level: Literal["O1", "O2"] = Field("O1", description="O1 casts operators, O2 also keeps weights in half")
    dtype: Literal["float16", "bfloat16"] = "float16"
    scale_loss: Positive = Field(2.0**15, description="first loss scale of float16")
    use_dynamic_loss_scaling: bool = Field(
        True, description="halve the scale at each overflow, double it after 2,000 updates without one"
    )
    min_loss_scaling: Annotated[float, Bound(ge=1)] = Field(
        1.0, description="a loss scale that would fall below this ends the run"
    )
    use_promote: bool = Field(
        True, description="read for PaddleClas; under O2 nothing is promoted, as all is in half precision"
    )
    use_fp16_test: bool = Field(False, description="evaluate in mixed precision too (O2 always does)")
