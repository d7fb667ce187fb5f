"""Sections of the YAML in PaddleClas's vocabulary: the run, what it is judged by, its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import (
    Bound,
    Count,
    Decay,
    Index,
    Keyed,
    Part,
    Positive,
    Section,
    Tagged,
    problem,
    show,
)
from ppcls.config.sections.dali import Dali
from ppcls.config.sections.dataset import Dataset, FixedChain
from ppcls.config.sections.objective import CELoss, LossSpec, MetricSpec, TopkAcc
from ppcls.config.sections.postprocess import PostProcess, Topk
from ppcls.config.sections.sampler import InputSize, Sampler, check_sizes
from ppcls.registry import DATASETS, INPUT_SIZES, LOSSES, METRICS, POSTPROCESSES, SAMPLERS


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
        "Query": "only DataLoader.Eval has two sets",
        "Gallery": "only DataLoader.Eval has two sets",
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
        if self.sampler.input_size is not None:
            if self.input_size is not None:
                text = f"{self.sampler.kind} has the sizes; remove it, or choose another sampler"
                raise ValidationError.from_exception_data("split", [problem(text, "input_size")])
            if self.loader.dali.cache_size:
                text = f"expected 0: the cache needs batches of one size, and {self.sampler.kind} has several"
                where = ("loader", "dali", "cache_size")
                raise ValidationError.from_exception_data("split", [problem(text, *where)])
        if self.sizes is not None:
            check_sizes(self.dataset.transform_ops, self.sizes.sizes)
        return self

    @property
    def sizes(self) -> InputSize | None:
        """How the images' size changes, as ``input_size`` or the sampler says; None where it does not."""
        return self.input_size or self.sampler.input_size


class QueryAndGallery(Section):
    """Two data sets to evaluate retrieval on: each image of one looks for its identity in the other."""

    Query: Split = Field(description="the images that look for theirs")
    Gallery: Split = Field(description="the images that they look among")


class DataLoader(Section):
    """The data to train on and to evaluate on."""

    Train: Split | None = None
    Eval: Split | QueryAndGallery | None = Field(
        None, description="one data set; or, for Global.eval_mode: retrieval, Query and Gallery"
    )

    @field_validator("Eval", mode="before")
    @classmethod
    def _one_or_two(cls, value: object) -> object:
        if value is None or isinstance(value, Section):
            return value
        two = isinstance(value, dict) and bool(value.keys() & QueryAndGallery.model_fields)
        return (QueryAndGallery if two else Split).model_validate(value)

    @property
    def evaluated(self) -> dict[str, Split]:
        """What is evaluated on: ``Eval``, or ``Eval.Query`` and ``Eval.Gallery``; perhaps nothing."""
        if isinstance(self.Eval, QueryAndGallery):
            return {"Eval.Query": self.Eval.Query, "Eval.Gallery": self.Eval.Gallery}
        return {} if self.Eval is None else {"Eval": self.Eval}

    @property
    def splits(self) -> dict[str, Split]:
        """All data sets that there are, by their places."""
        return {**({} if self.Train is None else {"Train": self.Train}), **self.evaluated}


class Infer(Section):
    """Prediction on files."""

    infer_imgs: str | None = Field(None, description="a file or a folder, where the command line names none")
    batch_size: Count = 10
    transforms: FixedChain = Field(description="what happens to each image, in order; nothing random")
    PostProcess: Annotated[PostProcess, Tagged(POSTPROCESSES, default="Topk")] = Field(
        Topk(),
        description="which classes of an image are told; without a name, Topk. A RecModel tells embeddings, "
        "whatever stands here",
    )
