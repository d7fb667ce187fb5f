"""How samples reach the model: ``DataLoader``, and how DALI reads, decodes and runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import Count, Fraction, Index, Section, Tagged, problem
from ppcls.config.sections.dataset import Dataset
from ppcls.config.sections.sampler import InputSize, SamplerSpec, check_sizes
from ppcls.registry import DATASETS, INPUT_SIZES, SAMPLERS


def _auto(value: Any) -> Any:
    return None if value == "auto" else value


class Dali(Section):
    """DALI's own settings; ``auto``, or nothing, leaves the choice to ppcls and DALI."""

    num_threads: Annotated[Count | None, BeforeValidator(_auto)] = Field(
        None, description="CPU threads; auto: the cores of this process, shared by the node's processes"
    )
    prefetch_queue_depth: Annotated[Count | None, BeforeValidator(_auto)] = Field(
        None, description="batches made ahead; auto: 2 on a GPU, 4 on a CPU, 8 with 4 threads or more there"
    )
    exec_dynamic: bool = Field(True, description="DALI's dynamic executor, which hands batches over uncopied")
    affinity: Annotated[bool | None, BeforeValidator(_auto)] = Field(
        None,
        description="keep DALI's threads on the cores next to the GPU; auto: where the driver knows them",
    )
    decode: Literal["auto", "window", "whole"] = Field(
        "auto",
        description="window: decode only what a random crop cuts; whole: decode all and cut on the device; "
        "auto: window, unless the decoder caches",
    )
    decode_on: Literal["auto", "gpu", "cpu"] = Field(
        "auto",
        description="where images are decoded that the GPU then transforms; cpu leaves the GPU to training, "
        "where there are cores enough; auto: gpu, where there is one",
    )
    hw_decoder_load: Annotated[Fraction | None, BeforeValidator(_auto)] = Field(
        None, description="share of the JPEGs for the GPU's hardware decoder; auto: 0.9"
    )
    device_memory_padding: Annotated[Index | None, BeforeValidator(_auto)] = Field(
        None, description="GPU bytes a thread that decoding begins with; auto: DALI's 16 MiB"
    )
    host_memory_padding: Annotated[Index | None, BeforeValidator(_auto)] = Field(
        None, description="pinned bytes a thread that decoding begins with, twice; auto: DALI's 8 MiB"
    )
    preallocate_width_hint: Annotated[Count | None, BeforeValidator(_auto)] = Field(
        None, description="width of the largest image, to allocate for; auto: nothing beforehand"
    )
    preallocate_height_hint: Annotated[Count | None, BeforeValidator(_auto)] = Field(
        None, description="height of the largest image, to allocate for; auto: nothing beforehand"
    )
    jpeg_fancy_upsampling: bool = Field(
        False, description="on a GPU, scale chroma as the CPU decoders do: closer pixels, a little slower"
    )
    jpeg_fast_idct: bool = Field(
        False,
        description="on a CPU, decode JPEG by a rougher transform: a grey level or two off, some % faster",
    )
    cache_size: Index = Field(
        0, description="GPU memory for decoded images, in MB; 0: no cache; a CPU has none"
    )
    cache_type: Literal["threshold", "largest"] = Field(
        "largest", description="keep images from cache_threshold on as they come, or the largest"
    )
    cache_threshold: Index = Field(0, description="bytes of a decoded image from which it is kept")

    @model_validator(mode="after")
    def _check_cache(self) -> Self:
        if self.cache_size and self.decode == "window":
            raise ValueError("the decoder caches whole images; set decode: whole, or cache_size: 0")
        if self.cache_size and self.decode_on == "cpu":
            raise ValueError("only the GPU's decoder caches; set decode_on: gpu, or cache_size: 0")
        return self


class LoaderSettings(Section):
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
    sampler: Annotated[SamplerSpec, Tagged(SAMPLERS, default="DistributedBatchSampler")] = Field(
        description="how samples make batches; without a name, DistributedBatchSampler"
    )
    loader: LoaderSettings = LoaderSettings()
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
