"""Chooses the device of the model: the CPU, or a GPU that the installed Paddle supports."""

from __future__ import annotations

from typing import Literal

from ppcls.errors import UserError, counted

# Lowest and highest compute capability for which PyPI's newest paddlepaddle-gpu, 2.6.2, has kernels.
PYPI_GPU_CAPABILITIES = ((6, 1), (8, 6))


def has_pypi_kernels(capability: tuple[int, int]) -> bool:
    """Returns whether PyPI's paddlepaddle-gpu has kernels for a card of this compute capability."""
    first, last = PYPI_GPU_CAPABILITIES
    return first <= capability <= last


def choose_device(
    requested: str, processes: int, device_id: int, visible: str | None
) -> Literal["cpu", "gpu"]:
    """Returns the device of the model.

    Args:
        requested: ``Global.device``.
        processes: Number of processes of the run on this machine.
        device_id: Paddle's number of the GPU of this process.
        visible: CUDA_VISIBLE_DEVICES; None if not set.

    Raises:
        UserError: A GPU is requested, but Paddle finds no GPU or too few GPUs.
    """
    import paddle

    compiled = paddle.is_compiled_with_cuda()
    count = paddle.device.cuda.device_count() if compiled else 0
    if requested == "cpu" or (requested == "auto" and count == 0):
        return "cpu"
    if not compiled:
        raise UserError(
            f"Global.device is gpu, but the installed Paddle {paddle.__version__} is a CPU build; "
            "install paddlepaddle-gpu (docs/gpu.md), or set Global.device=cpu"
        )
    variable = f"CUDA_VISIBLE_DEVICES is '{visible}'"
    if count == 0:
        reason = variable if visible is not None else "no NVIDIA driver or GPU"
        raise UserError(f"Global.device is gpu, but Paddle finds no GPU ({reason}); set Global.device=cpu")
    # The launcher starts one process per GPU in CUDA_VISIBLE_DEVICES, even for GPUs that do not exist.
    seen = f"Paddle sees {count}" + (f" ({variable})" if visible is not None else "")
    limit = f"start at most {counted(count, 'process')} per machine"
    fix = f"{limit}, or set Global.device=cpu"
    if processes > count:
        raise UserError(
            f"{counted(processes, 'process')} on this machine need {counted(processes, 'GPU')}, but {seen}; "
            f"{fix}"
        )
    if device_id >= count:
        raise UserError(f"GPU {device_id} (counted from 0) is requested, but {seen}; {fix}")
    return "gpu"


def check_gpu_kernels(device_id: int) -> None:
    """Runs a kernel of Paddle, to detect at the start that a build has no kernels for this GPU.

    Args:
        device_id: Paddle's number of the GPU.

    Raises:
        UserError: The installed Paddle has no kernels for the GPU.
    """
    import paddle

    try:
        paddle.set_device(f"gpu:{device_id}")
        # Paddle 2.6 does not report a failed launch. It returns the previous content of the memory.
        works = float((paddle.arange(8, dtype="float32") + 1.0).square().sum()) == 204.0
    except (OSError, RuntimeError, SystemError) as error:
        if "no kernel image" not in str(error):
            raise
        works = False
    if not works:
        major, minor = paddle.device.cuda.get_device_capability(device_id)
        name = paddle.device.cuda.get_device_name(device_id)
        raise UserError(
            f"Paddle {paddle.__version__} (CUDA {paddle.version.cuda()}) has no kernels for GPU {device_id}, "
            f"{name}, of compute capability {major}.{minor}. PyPI's paddlepaddle-gpu 2.6.2 supports 6.1 to "
            "8.6; install a newer one from Paddle's own index (docs/gpu.md), or set Global.device=cpu"
        )
