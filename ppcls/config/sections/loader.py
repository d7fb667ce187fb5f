"""The section ``DataLoader``: data sets, batches, and how paddle.io or DALI reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, field_validator, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import Bound, Count, Fraction, Index, Section, Tagged, Workers, error_at
from ppcls.config.sections.dataset import Chain, Dataset
from ppcls.config.sections.sampler import InputSize, SamplerSpec, check_sizes
from ppcls.config.sections.transform import check_chain
from ppcls.errors import UserError
from ppcls.registry import DATASETS, INPUT_SIZES, SAMPLERS

_AUTO = BeforeValidator(lambda value: None if value == "auto" else value)


class Dali(Section):
    """Settings of DALI. ``auto``, the default where it is null, leaves the choice to ppcls and DALI."""

    num_threads: Annotated[Workers | None, _AUTO] = None
    """CPU threads; `auto`: the cores of this process, shared by the processes of the node."""
    prefetch_queue_depth: Annotated[Count | None, _AUTO] = None
    """Batches prepared in advance; `auto`: 2 on a GPU, 2 per thread on a CPU, at least 4 and at most 32."""
    exec_dynamic: bool = True
    """Use DALI's dynamic executor, which passes batches on without a copy."""
    affinity: Annotated[bool | None, _AUTO] = None
    """Keep DALI's threads on the cores next to the GPU; `auto`: if the driver reports them."""
    decode: Literal["auto", "window", "whole"] = "auto"
    """`window`: decode only the part that a random crop needs; `whole`: decode everything and crop on the
    device; `auto`: `window`, unless the decoder caches images."""
    decode_on: Literal["auto", "gpu", "cpu"] = "auto"
    """Device that decodes images if the GPU transforms them. `cpu` leaves the GPU to training if there are
    enough cores; `auto`: the CPU with 12 threads or more, else the GPU."""
    hw_decoder_load: Annotated[Fraction | None, _AUTO] = None
    """Share of the JPEGs for the GPU's hardware decoder; `auto`: 0.9."""
    device_memory_padding: Annotated[Index | None, _AUTO] = None
    """Bytes of GPU memory that each decoding thread allocates at first; `auto`: DALI's 16 MiB."""
    host_memory_padding: Annotated[Index | None, _AUTO] = None
    """Bytes of pinned memory, in two buffers, that each decoding thread allocates at first; `auto`: DALI's 8
    MiB."""
    preallocate_width_hint: Annotated[Count | None, _AUTO] = None
    """Width of the largest image, to allocate memory for; `auto`: allocate nothing in advance."""
    preallocate_height_hint: Annotated[Count | None, _AUTO] = None
    """Height of the largest image, to allocate memory for; `auto`: allocate nothing in advance."""
    jpeg_fancy_upsampling: bool = False
    """On a GPU, upsample chroma as CPU decoders do: pixels are closer to theirs, and decoding is
    slightly slower."""
    jpeg_fast_idct: bool = False
    """On a CPU, decode JPEGs with a less exact transform: grey levels differ by 1 or 2, and decoding is a few
    percent faster."""
    cache_size: Index = 0
    """GPU memory for a cache of decoded images, in MB; 0: no cache. Supported only if the GPU decodes."""
    cache_type: Literal["threshold", "largest"] = "largest"
    """`threshold`: cache images of at least `cache_threshold` bytes in the order of arrival; `largest`: cache
    the largest images."""
    cache_threshold: Index = 0
    """Smallest decoded image to cache, in bytes."""

    @model_validator(mode="after")
    def _check_cache(self) -> Self:
        if self.cache_size and self.decode == "window":
            raise ValueError("the decoder caches whole images; set decode: whole, or cache_size: 0")
        if self.cache_size and self.decode_on == "cpu":
            raise ValueError("only the GPU's decoder caches; set decode_on: gpu, or cache_size: 0")
        return self


class LoaderSettings(Section):
    """Who reads the samples: the workers of paddle.io, or the threads of DALI with Global.use_dali."""

    num_workers: Annotated[int, Bound(ge=0, le=4096)] = 4
    """Worker processes of paddle.io; 0: the training process reads."""
    use_shared_memory: bool = True
    """Pass batches from the workers of paddle.io through shared memory."""
    dali: Dali = Dali()
    """Settings of DALI."""


class Split(Section):
    """A data set with its sampler and loader."""

    key_hints: ClassVar[Mapping[str, str]] = {
        "Query": "only DataLoader.Eval may have two data sets",
        "Gallery": "only DataLoader.Eval may have two data sets",
    }

    dataset: Annotated[Dataset, Tagged(DATASETS)]
    """Labelled images and their transforms."""
    sampler: Annotated[SamplerSpec, Tagged(SAMPLERS, default="DistributedBatchSampler")]
    """How samples form batches; DistributedBatchSampler if it has no `name`."""
    loader: LoaderSettings = LoaderSettings()
    """How samples are read."""
    input_size: Annotated[InputSize, Tagged(INPUT_SIZES)] | None = None
    """Sizes of training images that change during training; by default the size that `transform_ops`
    produces."""

    @model_validator(mode="after")
    def _check_input_size(self) -> Self:
        kind = self.sampler.kind
        if self.sampler.input_size is not None:
            if self.input_size is not None:
                raise error_at(f"{kind} sets the sizes; remove it, or choose another sampler", "input_size")
            if self.loader.dali.cache_size:
                text = f"expected 0: the cache needs batches of one size, and {kind} has several"
                raise error_at(text, "loader", "dali", "cache_size")
        if self.sizes is not None:
            check_sizes(self.dataset.transform_ops, self.sizes.sizes)
        return self

    @property
    def sizes(self) -> InputSize | None:
        """Changing image sizes, from ``input_size`` or the sampler; None if all images have one size."""
        return self.input_size or self.sampler.input_size


class Unlabelled(Split):
    """Unlabelled images for semi-supervised training; the labels of their list have no effect."""

    transform_ops_strong: Chain
    """Transforms of the strong view; `transform_ops` of `dataset` are those of the weak view."""

    @model_validator(mode="after")
    def _check_views(self) -> Self:
        weak, strong = (
            check_chain(chain) for chain in (self.dataset.transform_ops, self.transform_ops_strong)
        )
        if weak != strong:
            text = f"expected images of {weak.size}, as from dataset.transform_ops, got {strong.size}"
            raise error_at(text, "transform_ops_strong")
        if not self.sampler.drop_last:
            raise error_at("expected True: all batches have the same size", "sampler", "drop_last")
        if self.sizes is not None or self.dataset.batch_transform_ops or self.dataset.on_error == "skip":
            raise ValueError("input_size, batch_transform_ops and on_error: skip are not supported here")
        return self

    @property
    def strong(self) -> Split:
        """The same images with the transforms of the strong view."""
        dataset = self.dataset.model_copy(update={"transform_ops": self.transform_ops_strong})
        return self.model_copy(update={"dataset": dataset})


class QueryAndGallery(Section):
    """Two data sets for retrieval: each query image searches for its identity in the gallery."""

    Query: Split
    """Images whose identity is searched for."""
    Gallery: Split
    """Images that are searched."""


class DataLoader(Section):
    """The data for training and evaluation."""

    Train: Split | None = None
    """Training data."""
    UnLabelTrain: Unlabelled | None = None
    """Unlabelled images for the section SSL."""
    Eval: Split | QueryAndGallery | None = None
    """Evaluation data: one data set, or Query and Gallery with Global.eval_mode: retrieval."""

    @field_validator("Eval", mode="before")
    @classmethod
    def _choose_eval(cls, value: Any) -> Any:
        if value is None or isinstance(value, Section):
            return value
        two = isinstance(value, dict) and bool(value.keys() & QueryAndGallery.model_fields)
        return (QueryAndGallery if two else Split).model_validate(value)

    def need_train(self) -> Split:
        """Returns ``Train``.

        Raises:
            UserError: The config has none.
        """
        if self.Train is None:
            raise UserError("DataLoader.Train: missing; training needs it in the config")
        return self.Train

    @property
    def evaluated(self) -> dict[str, Split]:
        """Evaluation data by key: ``Eval``, or ``Eval.Query`` and ``Eval.Gallery``; may be empty."""
        if isinstance(self.Eval, QueryAndGallery):
            return {"Eval.Query": self.Eval.Query, "Eval.Gallery": self.Eval.Gallery}
        return {} if self.Eval is None else {"Eval": self.Eval}

    @property
    def splits(self) -> dict[str, Split]:
        """All data sets by key."""
        return {**({} if self.Train is None else {"Train": self.Train}), **self.evaluated}
