"""The device of the model: the CPU, or a GPU that Paddle sees and has kernels for."""

from __future__ import annotations

from typing import Literal

from ppcls.errors import UserError

# Lowest and highest compute capability that PyPI's newest paddlepaddle-gpu, 2.6.2, has kernels for.
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
        device_id: GPU of this process, as Paddle counts.
        visible: CUDA_VISIBLE_DEVICES; None if not set.

    Raises:
        UserError: A GPU is requested, but Paddle finds none or too few.
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
        raise UserError(f"Global.device is gpu, but Paddle finds none ({reason}); set Global.device=cpu")
    # The launcher starts a process for each GPU in CUDA_VISIBLE_DEVICES, even for one that does not exist.
    seen = f"Paddle sees {count}" + (f" ({variable})" if visible is not None else "")
    limit = f"start at most {count} process{'es' if count > 1 else ''} per machine"
    fix = f"{limit}, or set Global.device=cpu"
    if processes > count:
        raise UserError(f"{processes} processes on this machine need {processes} GPUs, but {seen}; {fix}")
    if device_id >= count:
        raise UserError(f"GPU {device_id} (counted from 0) is requested, but {seen}; {fix}")
    return "gpu"


def check_gpu_kernels(device_id: int) -> None:
    """Runs a kernel of Paddle, so that a build without kernels for this GPU fails at the start.

    Raises:
        UserError: The installed Paddle has no kernels for the GPU.
    """
    import paddle

    try:
        paddle.set_device(f"gpu:{device_id}")
        # Paddle 2.6 does not notice a failed launch: it returns whatever was in memory.
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
