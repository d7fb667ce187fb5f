"""Losses with layers of their own, which learn beside the models: of what layers of two models give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.config.objectives.distillation import DistillationModel
from ppcls.config.objectives.distillation_losses import DistillationLossSpec
from ppcls.config.objectives.layer_losses import AFDLoss, DistillationPairLoss
from ppcls.config.sections.objective import LossSpec
from ppcls.loss.attention import AttentionTransfer, check_map
from ppcls.outputs import layer_output_name


def learning_losses(losses: Sequence[LossSpec]) -> dict[str, DistillationLossSpec]:
    """Returns those of ``losses`` that have layers, by the layers' names: ``loss1`` for the second loss."""
    return {
        f"loss{position}": spec
        for position, spec in enumerate(losses)
        if isinstance(spec, DistillationLossSpec) and spec.has_weights
    }


def build_learning(spec: DistillationLossSpec, arch: DistillationModel) -> nn.Layer:
    """Returns a layer that maps the outputs of a `DistillationNetwork` to the cost per image, [B] float32."""
    match spec:
        case AFDLoss():
            keys, shapes = spec.attended(arch), (spec.s_shapes, spec.t_shapes)
            names = [
                [layer_output_name(name, key) for key in each]
                for name, each in zip(spec.model_name_pair, keys, strict=True)
            ]
            return AttentionTransfer(names[0], names[1], *shapes, spec.qk_dim)
        case DistillationPairLoss():
            pairs = [
                (layer_output_name(one, spec.keys[0]), layer_output_name(other, spec.keys[1]))
                for one, other in spec.model_name_pairs
            ]
            if spec.base_loss_name == "MGDLoss":
                return MaskedGeneration(pairs, *spec.channels, spec.lambda_mgd, spec.alpha_mgd)
            return ProjectorEnsemble(pairs, *spec.channels, spec.num_projectors)
    raise TypeError(f"{spec.kind} has no layers")


class FeaturePairLoss(nn.Layer):  # type: ignore[misc]
    """The sum over pairs of what is between two layers' outputs.

    Args:
        pairs: Names of the two in the outputs.
        channels: Of the pairs' first.
        made: Of their second.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], channels: int, made: int) -> None:
        super().__init__()
        self._pairs, self._channels = tuple(pairs), (channels, made)

    def forward(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Maps outputs by name to each image's cost, [B] float32; no gradient reaches the pairs' second.

        Raises:
            UserError: An output has other channels, or the two of a pair differ in height and width.
        """
        total: Tensor | float = 0.0
        for one, other in self._pairs:
            own, taught = outputs[one], outputs[other].detach()
            for name, each, channels in zip((one, other), (own, taught), self._channels, strict=True):
                check_map(name, each, [channels, *taught.shape[2:]])
            total = total + self.cost(own, taught)
        return total

    def cost(self, own: Tensor, other: Tensor) -> Tensor:
        """Maps [B, C, H, W] and [B, C', H, W] to [B] float32."""
        raise NotImplementedError


class MaskedGeneration(FeaturePairLoss):
    """Masked generative distillation (Yang et al. 2022, equation 4).

    Two convolutions make the other's features of one's own, of which some channels are left out at random;
    the cost is the mean squared difference.

    Args:
        pairs: See `FeaturePairLoss`.
        channels: Of one's own features.
        made: Of the other's.
        left_out: Share of channels left out.
        factor: Of the cost.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        channels: int,
        made: int,
        left_out: float,
        factor: float,
    ) -> None:
        super().__init__(pairs, channels, made)
        self._left_out, self._factor = left_out, factor
        self.align = nn.Identity() if channels == made else _conv(channels, made, 1)
        first, second = _conv(made, made, 3), _conv(made, made, 3)
        self.generation = nn.Sequential(first, nn.ReLU(), second)

    def cost(self, own: Tensor, other: Tensor) -> Tensor:
        """See `FeaturePairLoss.cost`."""
        own = self.align(own)
        kept = (paddle.rand([*own.shape[:2], 1, 1]) >= self._left_out).astype(own.dtype)
        made = self.generation(own * kept)
        with paddle.amp.auto_cast(enable=False):
            difference = made.astype("float32") - other.astype("float32")
            return difference.square().mean(axis=[1, 2, 3]) * self._factor


def _conv(channels: int, made: int, kernel: int) -> nn.Conv2D:
    initializer = nn.initializer.KaimingNormal(fan_in=made * kernel**2)  # the fan out, as its authors have it
    return nn.Conv2D(channels, made, kernel, padding=kernel // 2, weight_attr=initializer)


class ProjectorEnsemble(FeaturePairLoss):
    """Projector ensemble (Chen et al. 2022, equations 5 and 6): one minus the cosine of two features.

    Args:
        pairs: See `FeaturePairLoss`.
        channels: Of one's own features.
        made: Of the other's.
        projectors: How many projections of one's own features are averaged.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], channels: int, made: int, projectors: int) -> None:
        super().__init__(pairs, channels, made)
        self.projectors = nn.LayerList([nn.Conv2D(channels, made, 1) for _ in range(projectors)])

    def cost(self, own: Tensor, other: Tensor) -> Tensor:
        """See `FeaturePairLoss.cost`."""
        projected = sum(F.relu(each(own)) for each in self.projectors) / len(self.projectors)
        with paddle.amp.auto_cast(enable=False):
            one, two = projected.astype("float32").flatten(1), other.astype("float32").flatten(1)
            return 1.0 - F.cosine_similarity(one, two, axis=1)
