"""Chooses how steps are executed: operator by operator, with a compiled model, or as a CUDA graph.

With ``auto``, the choice is the fastest execution in the measurements of docs/performance.md.
"""

from __future__ import annotations

from dataclasses import replace

import paddle

from ppcls.arch.distillation_model import AnyArch
from ppcls.arch.kernels.capture import find_capture_obstacle
from ppcls.arch.layers.drop_path import draws_random_numbers
from ppcls.data.section import Split
from ppcls.engine.core.compiled import CompiledModel, measured
from ppcls.engine.core.parallel import connect_ranks
from ppcls.engine.core.settings import ExecutionSettings
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import Step, train_step
from ppcls.engine.cuda_graph.graphed_step import GraphedStep
from ppcls.errors import UserError
from ppcls.zoo import ZOO

_STRATEGY = "FLAGS_allocator_strategy"


def connect(
    state: TrainState, settings: ExecutionSettings, arch: AnyArch, split: Split
) -> tuple[TrainState, Step, str]:
    """Chooses the function that executes the steps of a run, and connects the ranks. All ranks must call it.

    Args:
        state: New state of the run.
        settings: How steps are executed.
        arch: Architecture of the model.
        split: Training data, whose images may change their size.

    Returns:
        A state of the same run, in which all ranks have the weights of rank 0 and exchange gradients; the
        function that executes steps; and a line for the log.

    Raises:
        UserError: See `choose_step`.
    """
    step, execution = choose_step(state, settings, arch, split)
    # Paddle's DataParallel does not see the gradients of recomputed blocks in their order.
    overlapping = not isinstance(step, GraphedStep) and not settings.recompute
    network = connect_ranks(state.network, settings, state.runtime, overlapping=overlapping)
    return replace(state, network=network), step, execution


def choose_step(
    state: TrainState, settings: ExecutionSettings, arch: AnyArch, split: Split
) -> tuple[Step, str]:
    """Returns the function that executes the steps of a run, and a line for the log.

    See `connect` for the arguments.

    Raises:
        UserError: ``Global.cuda_graph`` is True, but the steps of this run can't be captured.
    """
    setting = settings.cuda_graph
    execution = "a compiled model" if isinstance(state.network, CompiledModel) else "operator by operator"
    if settings.fused_kernels is True:
        execution += ", with fused kernels"
    elif (reason := fusion_blocker(state, settings, arch)) is not None:
        execution += f", without fused kernels, because {reason}"
    if settings.recompute:
        execution += ", with recomputed activations"
    if state.sam is not None:
        first = state.config.Optimizer.sam_first_epoch
        begin = f" from epoch {first} on" if first > 1 else ""
        execution += f", two passes per batch{begin} (Optimizer.sam_rho)"
    if setting is False:
        return train_step, f"steps: {execution}; no CUDA graph (Global.cuda_graph)"
    blocker = _capture_blocker(state, settings, arch, split)
    if blocker is None and setting == "auto":
        blocker = _unmeasured(state)
    if blocker is None:
        size = _exchange_group_size(state, settings)
        step = GraphedStep(
            state, kernels=settings.fused_kernels is True, required=setting is True, group_size=size
        )
        return step, f"steps: a CUDA graph, captured after the first steps ({execution})"
    if setting is True:
        raise UserError(f"Global.cuda_graph: {blocker}; set this key to auto or False")
    return train_step, f"steps: {execution}; no CUDA graph: {blocker}"


def fusion_blocker(state: TrainState, settings: ExecutionSettings, arch: AnyArch) -> str | None:
    """Returns why an architecture excludes the fused kernels; None if only settings decide about them.

    Without this line, nobody would notice that `ppcls.engine.autotune` measures nothing for such a model.
    """
    undecided = settings.fused_kernels == "auto" and not isinstance(state.network, CompiledModel)
    supported = state.runtime.device == "gpu" or state.precision.name == "float32"
    if not undecided or not supported or not arch.single_network or arch.data_format == "NHWC":
        return None
    entry = ZOO.get(arch.name)
    if entry is None:  # a user's own architecture, of which only the user knows whether it supports NHWC
        return "they need Arch.data_format=NHWC"
    return f"{arch.name} accepts only images in NCHW" if entry.fixed_input else None


def _exchange_group_size(state: TrainState, settings: ExecutionSettings) -> int | None:
    """Returns the size in bytes of the groups of gradients that are exchanged in captured backward passes.

    It is None to exchange all gradients after the backward pass. On one machine, this is as fast: two H200
    trained ResNet-50 at 16,850 images/s either way. A compiled model computes all gradients in one operator,
    so nothing can be exchanged during it.
    """
    if state.runtime.nodes == 1 or isinstance(state.network, CompiledModel):
        return None
    return settings.fuse_grad_size_in_MB << 20


def _unmeasured(state: TrainState) -> str | None:
    """Returns why a CUDA graph may not be faster in this run; None if measurements show that it is."""
    if not measured():
        return f"not measured on Paddle {paddle.__version__}; set Global.cuda_graph=True to try it"
    if state.runtime.nodes > 1:
        return "not measured on several machines; set Global.cuda_graph=True to try it"
    return None


def _capture_blocker(
    state: TrainState, settings: ExecutionSettings, arch: AnyArch, split: Split
) -> str | None:
    """Returns the reason why the steps of a run can't be captured; None if they can be."""
    if state.runtime.device != "gpu":
        return "the run is on a CPU"
    if (strategy := paddle.get_flags(_STRATEGY)[_STRATEGY]) != "auto_growth":
        return f"CUDA graphs need {_STRATEGY}=auto_growth, got {strategy}"
    if settings.sync_bn and state.runtime.world_size > 1:
        return "SyncBatchNorm exchanges statistics within the step (Global.sync_bn)"
    if split.sizes is not None:
        key = "input_size" if split.input_size is not None else f"sampler, {split.sampler.kind}"
        return f"the image size changes (DataLoader.Train.{key})"
    if settings.recompute:
        return "activations are recomputed (Global.recompute)"
    if not arch.single_network:
        return f"not supported for a model of several networks ({arch.name})"
    if draws_random_numbers(state.model):
        return f"{arch.name} draws random numbers during training"
    return find_capture_obstacle(state.model)
