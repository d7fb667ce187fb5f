"""Makes a model use the fused kernels of its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paddle import nn

from ppcls.arch.distillation_model import AnyArch
from ppcls.arch.fused import layers
from ppcls.arch.fused.blocks.appending import fuse_appending
from ppcls.arch.fused.blocks.excitation import fuse_excitations
from ppcls.arch.kernels.errors import KernelsUnavailableError
from ppcls.arch.onednn import layers as cpu_layers
from ppcls.arch.onednn.library import library
from ppcls.files import print_error
from ppcls.zoo import ZOO


def fuse(model: nn.Layer, device: Literal["cpu", "gpu"]) -> int:
    """Makes a model use the fused kernels of a device, in place.

    Returns:
        Number of layers that were changed.

    Raises:
        KernelsUnavailableError: This machine lacks a library, or its GPU is not supported.
    """
    if device == "cpu":
        library()
        return cpu_layers.fuse(model)
    layers.check_available()
    count = layers.fuse(model)
    fuse_appending(model)
    fuse_excitations(model)
    return count


@dataclass(frozen=True)
class InferenceLayers:
    """How a network that is not trained is built, and which layers it uses.

    On a CPU in float32, it uses oneDNN's layers, which are several times as fast as Paddle's (see
    docs/measurements/cpu.md), unless a measurement before the training found Paddle's layers faster.
    Convolutions of oneDNN need images in NHWC. So the network is built for the faster layout, and converts
    its input, which is small. Its parameters and outputs do not depend on the layout.

    Attributes:
        arch: Section of the model to build.
        fuses: Whether to use oneDNN's layers.
        converts: Whether the network is built for the other layout than that of its images.
    """

    arch: AnyArch
    fuses: bool
    converts: bool

    @classmethod
    def choose(
        cls,
        arch: AnyArch,
        fused_kernels: Literal["auto", True, False],
        device: Literal["cpu", "gpu"],
        number_format: str,
        data_format: Literal["NCHW", "NHWC"] | None = None,
    ) -> InferenceLayers:
        """Returns the layers for a model.

        Args:
            arch: Section of the model.
            fused_kernels: ``Global.fused_kernels``; False for Paddle's layers.
            device: Device of the model.
            number_format: Name of its `Precision`.
            data_format: Layout in which Paddle's layers are faster; None to keep that of the model.
        """
        unchanged = cls(arch, False, False)
        if device != "cpu" or number_format != "float32":
            return unchanged
        if fused_kernels is False:
            if data_format in (None, arch.data_format):
                return unchanged
            return cls(arch.with_data_format(data_format), False, True)
        try:
            library()
        except KernelsUnavailableError as error:
            if fused_kernels is True:
                print_error(f"warning: Global.fused_kernels: runs without the fused kernels: {error}")
            return unchanged
        entries = [ZOO.get(model.name) for model in arch.architectures]
        # The user's own architectures may not support NHWC.
        flexible = all(entry is not None and not entry.fixed_input for entry in entries)
        converts = flexible and arch.data_format == "NCHW"
        return cls(arch.with_data_format("NHWC") if converts else arch, True, converts)

    def apply(self, model: nn.Layer, *, constant: bool = False) -> None:
        """Changes a network in place.

        Args:
            model: Network of ``arch``, in evaluation mode whenever it is called.
            constant: Whether the weights do not change after the first forward pass. Small batches are then
                faster, and the weights of convolutions are in memory twice.
        """
        if self.fuses:
            cpu_layers.fuse(model, constant=constant)
        if self.converts:
            axes = [0, 2, 3, 1] if self.arch.data_format == "NHWC" else [0, 3, 1, 2]
            model.register_forward_pre_hook(lambda _model, inputs: (inputs[0].transpose(axes), *inputs[1:]))
