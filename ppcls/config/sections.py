"""The sections of the YAML, field by field, in PaddleClas's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator
from typing_extensions import Self

from ppcls.config.architecture import ALL_OPTIONS, check_option, check_side, options, published_weights
from ppcls.config.dali import Dali
from ppcls.config.dataset import Dataset, FixedChain
from ppcls.config.fields import (
    Bound,
    Count,
    Decay,
    Index,
    Keyed,
    NonNegative,
    Part,
    Positive,
    Section,
    Tagged,
    show,
)
from ppcls.config.input_size import InputSize, check_sizes
from ppcls.config.objective import CELoss, LossSpec, MetricSpec, TopkAcc
from ppcls.config.postprocess import PostProcess, Topk
from ppcls.config.sampler import Sampler
from ppcls.registry import (
    ARCHITECTURES,
    DATASETS,
    INPUT_SIZES,
    LOSSES,
    METRICS,
    POSTPROCESSES,
    SAMPLERS,
    VISION_MODELS,
    nearest,
)


class Global(Section):
    """The run as a whole."""

    elsewhere: ClassVar[Mapping[str, str]] = {"class_num": "write Arch.class_num"}

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
        description="seconds in which each process must make a step; else all have ended by then, with the "
        "place and the stacks of each in the log. Three times as long to the end of the first step, and for "
        "what is no plain step, such as a checkpoint (docs/gpu.md). null for no limit",
    )
    eval_mode: Literal["classification", "retrieval"] = Field(
        "classification",
        description="retrieval: each image of DataLoader.Eval looks for its identity among all others, whose "
        "labels may be any numbers; of losses only those of identities are told (Arch.name: RecModel)",
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
        description="record a training step once and replay it, so that the host no longer starts each "
        "kernel; auto does on a GPU with Paddle 2.6, where the step is always the same work",
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


class EMA(Section):
    """Exponential moving average of the weights, evaluated and saved beside the raw ones."""

    decay: Decay = 0.9999
    warmup: bool = Field(
        False,
        description="let the decay rise to `decay`, as min(decay, (1 + updates) / (10 + updates)), so that "
        "the average soon forgets the first weights",
    )


_WITH_DROPOUT = ("MobileNetV3_", "PPLCNet_")


def _known_architecture(name: str) -> str:
    if name not in ARCHITECTURES:
        known = [*ARCHITECTURES, "DistillationModel", "RecModel"]
        raise ValueError(f"unknown architecture '{name}'{nearest(name, known)}")
    return name


class Arch(Section):
    """The model."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "return_patterns": "losses are of the logits, none of what layers give",
        "return_stages": "losses are of the logits, none of what layers give",
    }
    name: Annotated[str, AfterValidator(_known_architecture)]
    class_num: Count = Field(
        1000,
        description="auto: as many as DataLoader.Train.dataset (ImageFolderDataset) has class folders; where "
        "that is not there, as output_dir/label_list.txt has names",
    )
    data_format: Literal["NCHW", "NHWC"] = "NCHW"
    input_image_channel: Count = Field(3, validate_default=True)
    pretrained: str | bool = Field(
        False,
        description="weights to start from: .pdparams, .safetensors or a checkpoint folder. True for those "
        "that PaddleClas publishes: they are taken from ~/.paddleclas/weights, where it puts them, and never "
        "downloaded. Global.pretrained_model goes before it",
    )
    use_ssld: bool = Field(
        False, description="with pretrained: True, the weights that PaddleClas distilled (SSLD)"
    )
    img_size: Count | None = Field(
        None, description="ViT, DeiT: side of the images; by default the one in the name"
    )
    drop_path_rate: Decay | None = Field(
        None, description="how often the last block is left out, the others less; by default PaddleClas's"
    )
    drop_rate: Decay | None = Field(None, description="dropout of tokens and layers; by default 0")
    attn_drop_rate: Decay | None = Field(None, description="dropout of attention weights; by default 0")
    layer_scale_init_value: NonNegative | None = Field(
        None, description="ConvNeXt: first factor on each block's channels, 0 for none; by default 1e-6"
    )
    head_init_scale: Positive | None = Field(
        None, description="ConvNeXt: factor on the classifier's first weights; by default 1"
    )
    dropout_prob: Decay | None = Field(
        0.2, description="MobileNetV3, PP-LCNet: dropout before the classifier; null for none"
    )
    use_fused_attn: Literal[False] | None = Field(
        None, description="read for PaddleClas; attention is made of plain operators"
    )
    use_fused_linear: Literal[False] | None = Field(
        None, description="read for PaddleClas; linear layers are Paddle's own"
    )

    @property
    def margin(self) -> None:
        """What a loss asks for beyond the best logit: nothing."""
        return None

    @property
    def inferred(self) -> Arch:
        """The model that is evaluated, saved and exported: this one."""
        return self

    @property
    def weights(self) -> str | None:
        """The file or folder that it starts from by itself; None for fresh weights."""
        if self.pretrained is True:
            return published_weights(self.name, self.use_ssld)
        return self.pretrained or None

    @field_validator("pretrained", mode="before")
    @classmethod
    def _a_file(cls, value: object) -> object:
        if not isinstance(value, (str, bool)):
            raise ValueError(f"expected True, False or a file, got {show(value)}")
        return value

    def in_layout(self, data_format: Literal["NCHW", "NHWC"]) -> Self:
        """Returns the same model for images of another layout."""
        return self.model_copy(update={"data_format": data_format})

    @property
    def each(self) -> tuple[Arch, ...]:
        """All models that there are."""
        return (self,)

    @property
    def options(self) -> dict[str, float]:
        """What is set of the options that this architecture takes beside those of all."""
        values = {key: getattr(self, key) for key in options(self.name) if not key.startswith("use_fused")}
        if self.name.startswith(_WITH_DROPOUT):
            values["dropout_prob"] = self.dropout_prob or 0.0
        return {key: value for key, value in values.items() if value is not None}

    @field_validator(*ALL_OPTIONS)
    @classmethod
    def _taken(cls, value: float | None, info: ValidationInfo) -> float | None:
        name = info.data.get("name")
        if value is not None and name is not None:
            assert info.field_name is not None
            check_option(name, info.field_name)
            if info.field_name == "img_size":
                check_side(name, int(value))
        return value

    @field_validator("dropout_prob")
    @classmethod
    def _dropped(cls, value: float | None, info: ValidationInfo) -> float | None:
        name = info.data.get("name")
        if value != cls.model_fields["dropout_prob"].default and not (name or "").startswith(_WITH_DROPOUT):
            raise ValueError(f"{name} has no such option, only {'*, '.join(_WITH_DROPOUT)}*; remove it")
        return value

    @field_validator("data_format", "input_image_channel")
    @classmethod
    def _fits(cls, value: str | int, info: ValidationInfo) -> str | int:
        name = info.data.get("name")
        if name in VISION_MODELS:
            own = "NCHW" if info.field_name == "data_format" else 1 if name == "LeNet" else 3
            if value != own:
                ours = next((each for each in ARCHITECTURES if each.lower() == name and each != name), None)
                hint = f"; Arch.name={ours} takes others" if ours else ""
                raise ValueError(f"paddle.vision.models' {name} takes {own} only, got {value}{hint}")
        return value


Losses = tuple[Annotated[LossSpec, Keyed(LOSSES)], ...]
Metrics = tuple[Annotated[MetricSpec, Keyed(METRICS)], ...]


class Loss(Section):
    """Losses, added up by their weights."""

    Train: Losses = Field((CELoss(),), min_length=1)
    Eval: Losses = Field((CELoss(),), min_length=1)


class Metric(Section):
    """What is counted while training and in evaluation; the first of Eval decides which model is best."""

    Train: Metrics = ()
    Eval: Metrics = Field((TopkAcc(),), min_length=1)

    @field_validator("Train", mode="before")
    @classmethod
    def _none_at_all(cls, value: object) -> object:
        return () if value is None else value


class Loader(Section):
    """Who reads: paddle.io's workers, or DALI's threads where Global.use_dali is on."""

    num_workers: Index = Field(4, description="paddle.io's worker processes; 0 reads in the training process")
    use_shared_memory: bool = True
    dali: Dali = Dali()


class Split(Section):
    """One data set with its sampler and loader."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "Query": "each image looks among all others; give one data set",
        "Gallery": "each image looks among all others; give one data set",
    }

    dataset: Annotated[Dataset, Tagged(DATASETS)]
    sampler: Annotated[Sampler, Tagged(SAMPLERS, default="DistributedBatchSampler")] = Field(
        description="how samples make batches; without a name, DistributedBatchSampler"
    )
    loader: Loader = Loader()
    input_size: Annotated[InputSize, Tagged(INPUT_SIZES)] | None = Field(
        None, description="sizes of training images that change on the way; by default transform_ops' own"
    )

    @model_validator(mode="after")
    def _check_input_size(self) -> Self:
        if self.input_size is not None:
            check_sizes(self.dataset.transform_ops, self.input_size.sizes)
        return self


class DataLoader(Section):
    """The data to train on and to evaluate on."""

    Train: Split | None = None
    Eval: Split | None = None


class Infer(Section):
    """Prediction on files."""

    infer_imgs: str | None = Field(None, description="a file or a folder, where the command line names none")
    batch_size: Count = 10
    transforms: FixedChain = Field(description="what happens to each image, in order; nothing random")
    PostProcess: Annotated[PostProcess, Tagged(POSTPROCESSES, default="Topk")] = Field(
        Topk(), description="which classes of an image are told; without a name, Topk"
    )
