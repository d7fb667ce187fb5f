"""Settings of the loaders: ``DataLoader.<split>.loader``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import Bound, Count, Fraction, Index, Part, Workers
from ppcls.config.base.section import Section

_AUTO = BeforeValidator(lambda value: None if value == "auto" else value)


class Dali(Section):
    """Settings of DALI. The default null means ``auto``."""

    num_threads: Annotated[Workers | None, _AUTO] = None
    """Number of CPU threads per process; `auto`: the number of cores that the process may use, divided by the
    processes that share them. With at least 4 cores, a run on a GPU leaves one of them to the training
    thread."""
    prefetch_queue_depth: Annotated[Count | None, _AUTO] = None
    """Number of batches to prepare in advance; `auto`: 2 on a GPU; on a CPU 2 per thread, limited
    to 32 and to the number that fits into 2 GiB, but at least 4."""
    exec_dynamic: bool = True
    """Use DALI's dynamic executor, which returns batches without copying them."""
    affinity: Annotated[bool | None, _AUTO] = None
    """Run DALI's threads only on this process's share of the cores near its GPU, without one core that is
    kept for the training thread; `auto`: True."""
    decode: Literal["auto", "window", "whole"] = "auto"
    """Part of an image to decode: `window`: only the part that a random crop needs; `whole`: the whole image,
    which is then cropped on the device; `auto`: `whole` if the decoder caches images, else `window`."""
    decode_on: Literal["auto", "gpu", "cpu", "both"] = "auto"
    """Device that decodes images if the GPU transforms them. `cpu` reduces the load on the GPU, but needs
    enough cores. `both`: the GPU decodes the share `gpu_share` of the batches, the CPU the others. `auto`: a
    training run of at least 10,000 updates measures which is fastest, unless `Global.autotune` is False or
    an option of the GPU's decoder is set; otherwise `cpu` with at least 12 cores (or `num_threads`) per
    process, `both` in training with 6 to 11 and at least 32 GiB of GPU memory, else `gpu`."""
    gpu_share: Annotated[Part | None, _AUTO] = None
    """Share of the batches that the GPU decodes with `decode_on: both`, between 0 and 1, rounded to a
    fraction with a denominator of at most 6, but not to 0 or 1; `auto`: 3/5 with fewer than 12 cores, else
    1/6. Which batches these are depends only on their positions in the run."""
    hw_decoder_load: Annotated[Fraction | None, _AUTO] = None
    """Share of the JPEGs that the GPU's hardware decoder decodes, 0 to 1; `auto`: 0.9, and 1 with
    `decode_on: both`."""
    device_memory_padding: Annotated[Index | None, _AUTO] = None
    """Initial size, in bytes, of the GPU buffer of each decoding thread; `auto`: DALI's default, 16 MiB."""
    host_memory_padding: Annotated[Index | None, _AUTO] = None
    """Initial size, in bytes, of each of the two pinned host buffers of a decoding thread; `auto`: DALI's
    default, 8 MiB."""
    preallocate_width_hint: Annotated[Count | None, _AUTO] = None
    """Width of the largest image in pixels, for which DALI allocates memory in advance; `auto`: allocate no
    memory in advance."""
    preallocate_height_hint: Annotated[Count | None, _AUTO] = None
    """Height of the largest image in pixels, for which DALI allocates memory in advance; `auto`: allocate no
    memory in advance."""
    jpeg_fancy_upsampling: bool = False
    """On a GPU, upsample chroma with the method of CPU decoders. The pixels are then closer to those of a CPU
    decoder, but decoding is slightly slower."""
    jpeg_fast_idct: bool = False
    """Decode JPEGs on a CPU with a less exact transform. Decoding is a few percent faster, but pixels differ
    by 1 or 2 of 255 levels."""
    cache_size: Index = 0
    """GPU memory for a cache of decoded images, in MB; 0 for no cache. Only the GPU's decoder supports it."""
    cache_type: Literal["threshold", "largest"] = "largest"
    """Images to cache: `threshold`: those of at least `cache_threshold` bytes, in the order of reading;
    `largest`: the largest images."""
    cache_threshold: Index = 0
    """Minimum size of a decoded image to cache, in bytes, with `cache_type: threshold`."""

    @property
    def sets_gpu_decoder(self) -> bool:
        """Whether an option of the GPU's decoder is set."""
        options = (
            self.hw_decoder_load,
            self.device_memory_padding,
            self.host_memory_padding,
            self.preallocate_width_hint,
            self.preallocate_height_hint,
        )
        return bool(self.cache_size or self.jpeg_fancy_upsampling or any(options))

    @model_validator(mode="after")
    def _check_cache(self) -> Self:
        if self.cache_size and self.decode == "window":
            raise ValueError("the cache needs whole images; set decode: whole, or cache_size: 0")
        if self.cache_size and self.decode_on in ("cpu", "both"):
            raise ValueError("only the GPU's decoder has a cache; set decode_on: gpu, or cache_size: 0")
        if self.gpu_share is not None and self.decode_on != "both":
            raise ValueError("gpu_share is only used with decode_on: both; set it, or remove gpu_share")
        return self


class LoaderSettings(Section):
    """Settings of the loader: paddle.io by default, or DALI with Global.use_dali."""

    num_workers: Annotated[int, Bound(ge=0, le=4096)] = 4
    """Number of worker processes of paddle.io per training process. With 0, the training process itself reads
    the images."""
    use_shared_memory: bool = True
    """Transfer batches from the workers of paddle.io through shared memory."""
    dali: Dali = Dali()
    """Settings of DALI, for `Global.use_dali: True`."""
