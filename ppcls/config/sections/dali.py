"""How DALI reads, decodes and runs: ``DataLoader.<split>.loader.dali``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import Count, Fraction, Index, Section


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
