"""The section ``DataLoader``: data sets, their samplers and their loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.config.base.choices import Tagged
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.problems import error_at, located, problem
from ppcls.config.base.section import Section
from ppcls.data.index.base import Dataset
from ppcls.data.loaders.section import Dali, LoaderSettings
from ppcls.data.sampling.base import Sampler
from ppcls.data.sampling.sizes import InputSize, check_sizes
from ppcls.data.transforms.base import Chain, check_chain
from ppcls.errors import UserError
from ppcls.registry import DATASETS, INPUT_SIZES, SAMPLERS

_SAMPLER = "DistributedBatchSampler"  # the sampler without a name
_EVALUATED = 256  # largest default batch size of evaluations; larger batches are hardly faster


class Split(Section):
    """A data set with its sampler and loader."""

    key_hints: ClassVar[Mapping[str, str]] = {
        "Query": "only DataLoader.Eval may have two data sets",
        "Gallery": "only DataLoader.Eval may have two data sets",
    }

    dataset: Annotated[Dataset, Tagged(DATASETS)]
    """Labelled images and their transforms."""
    sampler: Annotated[Sampler, Tagged(SAMPLERS, default=_SAMPLER)]
    """Sampler, which defines the batches. Without `name` it is a DistributedBatchSampler."""
    loader: LoaderSettings = LoaderSettings()
    """Settings of the loader, which reads the samples."""
    cache: Literal["memory", "disk"] | None = None
    """Decode each image once, and keep its pixels for all epochs and for all processes of the machine. The
    samples do not change. `memory`: in shared memory (/dev/shm), until the last run that uses them ends;
    `disk`: in `$PPCLS_HOME/images`, also for later runs. Random crops need whole images; of other chains, the
    result of the first resizes and crops is kept. Default: decode images when they are used."""
    input_size: Annotated[InputSize, Tagged(INPUT_SIZES)] | None = None
    """Image sizes that change during training; default: all images have the size that `transform_ops`
    produces."""

    @model_validator(mode="after")
    def _check_input_size(self) -> Self:
        kind = self.sampler.kind
        if self.sampler.input_size is not None:
            if self.input_size is not None:
                raise error_at(
                    f"{kind} sets the sizes; remove input_size, or use another sampler", "input_size"
                )
            if self.loader.dali.cache_size:
                text = f"expected 0: the cache needs batches of one size, and {kind} has several"
                raise error_at(text, "loader", "dali", "cache_size")
        if self.sizes is not None:
            check_sizes(self.dataset.transform_ops, self.sizes.sizes)
        return self

    @model_validator(mode="after")
    def _check_cache(self) -> Self:
        if self.cache is None:
            return self
        decoder = self.dataset.transform_ops[0]
        if not decoder.decodes_images:
            raise error_at(f"expected null: {decoder.kind} decodes no images", "cache")
        if self.loader.dali.cache_size:
            raise error_at("expected 0, because cache keeps the images", "loader", "dali", "cache_size")
        if self.loader.dali.decode_on in ("gpu", "both"):
            text = "expected auto or cpu, because cache keeps images that the CPU has decoded"
            raise error_at(text, "loader", "dali", "decode_on")
        return self

    @property
    def sizes(self) -> InputSize | None:
        """Changing image sizes, from ``input_size`` or the sampler; None if all images have one size."""
        return self.input_size or self.sampler.input_size


class Unlabelled(Split):
    """Unlabelled images for semi-supervised training. The labels in their list file are ignored."""

    transform_ops_strong: Chain
    """Transforms of the strongly augmented view of each image. `dataset.transform_ops` contains the
    transforms of the weakly augmented view."""

    @model_validator(mode="after")
    def _check_views(self) -> Self:
        weak, strong = (
            check_chain(chain) for chain in (self.dataset.transform_ops, self.transform_ops_strong)
        )
        if weak != strong:
            text = f"expected images of the size from dataset.transform_ops, {weak.size}, got {strong.size}"
            raise error_at(text, "transform_ops_strong")
        if not self.sampler.drop_last:
            text = "expected True, because all batches must have the same size"
            raise error_at(text, "sampler", "drop_last")
        if self.sizes is not None or self.dataset.batch_transform_ops or self.dataset.on_error == "skip":
            raise ValueError(
                "unlabelled data does not support input_size, batch_transform_ops and on_error: skip; remove "
                "these keys"
            )
        return self

    @property
    def strong(self) -> Split:
        """This data set with the transforms of the strongly augmented view."""
        dataset = self.dataset.model_copy(update={"transform_ops": self.transform_ops_strong})
        return self.model_copy(update={"dataset": dataset})


class QueryAndGallery(Section):
    """Two data sets for retrieval. For each query image, the gallery is searched for the same identity."""

    Query: Split
    """Query images."""
    Gallery: Split
    """Gallery images, which are searched for the identity of each query image."""


def _with_batch_size(split: Any, default: tuple[str, int] | None) -> Any:
    """Adds the default batch size to evaluation data without a batch size.

    Args:
        split: Evaluation data as plain data.
        default: Key and value of the default; None if there is none.
    """
    sampler = split.get("sampler") if isinstance(split, dict) else None
    if default is None or not isinstance(sampler, dict) or not _lacks_batch_size(sampler):
        return split
    name, size = default
    return {**split, "sampler": {**sampler, name: size}}


def _evaluation_batch_size(data: dict[str, Any]) -> tuple[str, int] | None:
    """Returns the key and the value of the default batch size for evaluation; None without training data.

    The default is up to twice the batch size of training, because an evaluation needs less memory.

    Args:
        data: Validated keys of `DataLoader`.
    """
    if "Train" not in data:
        # Train is invalid, and reported. Any number avoids a second error, about a key that nobody set.
        return "batch_size", 1
    train = data["Train"]
    if train is None:
        return None
    name, size = train.sampler.batch_setting
    if name == "global_batch_size":
        return name, size
    return "batch_size", min(2 * size, max(size, _EVALUATED))


def _lacks_batch_size(sampler: dict[str, Any]) -> bool:
    keys = ("batch_size", "global_batch_size")
    return sampler.get("name", _SAMPLER) == _SAMPLER and not any(key in sampler for key in keys)


class DataLoader(Section):
    """Data for training and evaluation."""

    Train: Split | None = None
    """Training data. Required for training."""
    UnLabelTrain: Unlabelled | None = None
    """Unlabelled images for semi-supervised training with the section SSL; default: none."""
    Eval: Split | QueryAndGallery | None = None
    """Evaluation data: one data set, or, with `Global.eval_mode: retrieval`, Query and Gallery. Required for
    evaluation. The default batch size is twice the batch size of Train, but at most 256, or the batch size of
    Train if it is larger than 256."""

    @field_validator("Eval", mode="before")
    @classmethod
    def _choose_eval(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None or isinstance(value, Section):
            return value
        if not isinstance(value, dict):
            return Split.model_validate(value)
        default = _evaluation_batch_size(info.data)
        if not value.keys() & QueryAndGallery.model_fields:
            return Split.model_validate(_with_batch_size(value, default))
        splits = {name: _with_batch_size(split, default) for name, split in value.items()}
        return QueryAndGallery.model_validate(splits)

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts between data sets, and of image sizes with the model."""
        yield from super().problems(facts, part)
        if self.has_gallery and not facts.retrieval:
            text = "Query and Gallery are only for retrieval; set Global.eval_mode: retrieval"
            yield problem(text, "Eval")
        for place, split in self.evaluated.items():
            keys = place.split(".")
            if split.input_size is not None:
                yield problem("evaluation uses one size; remove this key", *keys, "input_size")
            if self.Train is not None:
                shared = split.dataset.overlap_problems(self.Train.dataset)
                yield from located(shared, *keys, "dataset")
        if self.Train is not None and self.Train.sizes is not None:
            where = ("sampler", "scales") if self.Train.input_size is None else ("input_size", "sizes")
            for side in self.Train.sizes.sizes:
                for text in facts.size_problems((side, side)):
                    yield problem(text, "Train", *where)
        yield from self._unlabelled_problems(facts)

    def _unlabelled_problems(self, facts: RunFacts) -> Iterator[InitErrorDetails]:
        unlabelled = self.UnLabelTrain
        train = self.Train
        if facts.semi_supervised != (unlabelled is not None):
            state = "missing" if facts.semi_supervised else "the section SSL is missing"
            text = f"{state}; semi-supervised training needs SSL and DataLoader.UnLabelTrain"
            yield problem(text, "UnLabelTrain")
        if unlabelled is None or train is None:
            return
        if not train.sampler.drop_last:
            text = "expected True with DataLoader.UnLabelTrain: all batches have the same size"
            yield problem(text, "Train", "sampler", "drop_last")
        if train.sizes is not None:
            yield problem("not supported with DataLoader.UnLabelTrain; remove it", "Train", "input_size")
        elif check_chain(train.dataset.transform_ops) != check_chain(unlabelled.dataset.transform_ops):
            text = "expected transforms that produce images of the same size and type as in DataLoader.Train"
            yield problem(text, "UnLabelTrain", "dataset", "transform_ops")

    def need_train(self) -> Split:
        """Returns the training data.

        Raises:
            UserError: The config has no ``DataLoader.Train``.
        """
        if self.Train is None:
            raise UserError("DataLoader.Train: missing; add a data set for training to the config")
        return self.Train

    @property
    def has_gallery(self) -> bool:
        """Whether the evaluation data has two data sets, Query and Gallery."""
        return isinstance(self.Eval, QueryAndGallery)

    @property
    def mixed_by(self) -> str:
        """Batch transform that mixes the training images; "" without mixing."""
        mixing = () if self.Train is None else self.Train.dataset.batch_transform_ops
        return mixing[0].kind if mixing else ""

    @property
    def rebalanced_by(self) -> str:
        """Sampler that draws the training classes with other frequencies; "" for none."""
        return self.Train.sampler.kind if self.Train is not None and self.Train.sampler.rebalances else ""

    @property
    def varying_batches(self) -> str:
        """Sampler whose training batches have different numbers of images; "" for none."""
        if self.Train is None or self.Train.sampler.input_size is None:
            return ""
        return self.Train.sampler.kind

    @property
    def evaluated(self) -> dict[str, Split]:
        """Evaluation data sets, keyed by ``Eval``, or ``Eval.Query`` and ``Eval.Gallery``; may be empty."""
        if isinstance(self.Eval, QueryAndGallery):
            return {"Eval.Query": self.Eval.Query, "Eval.Gallery": self.Eval.Gallery}
        return {} if self.Eval is None else {"Eval": self.Eval}

    @property
    def evaluation_dali(self) -> Dali:
        """Settings of DALI for evaluation and prediction; the defaults without evaluation data."""
        split = next(iter(self.evaluated.values()), None)
        return split.loader.dali if split is not None else Dali()

    @property
    def splits(self) -> dict[str, Split]:
        """All data sets with labels, keyed by ``Train`` and the keys of ``evaluated``."""
        return {**({} if self.Train is None else {"Train": self.Train}), **self.evaluated}
