"""Where Paddle can compute: on the CPU, or on GPUs that are there and that it has kernels for."""

from __future__ import annotations

from typing import Literal

from ppcls.errors import UserError


def choose_device(wanted: str, here: int, chosen: int, visible: str | None) -> Literal["cpu", "gpu"]:
    """Returns where the model is to be.

    Args:
        wanted: ``Global.device``.
        here: Processes of the run on this machine.
        chosen: The GPU of this process, as Paddle counts.
        visible: CUDA_VISIBLE_DEVICES, where it is set.

    Raises:
        UserError: A GPU is asked for, and there is none, or there are too few.
    """
    import paddle

    compiled = paddle.is_compiled_with_cuda()
    count = paddle.device.cuda.device_count() if compiled else 0
    if wanted == "cpu" or (wanted == "auto" and count == 0):
        return "cpu"
    if not compiled:
        raise UserError(
            f"Global.device is gpu, but the installed Paddle {paddle.__version__} is a CPU build; "
            "install paddlepaddle-gpu (docs/gpu.md), or set Global.device=cpu"
        )
    if count == 0:
        because = f"CUDA_VISIBLE_DEVICES is '{visible}'" if visible is not None else "no NVIDIA driver or GPU"
        raise UserError(f"Global.device is gpu, but Paddle finds none ({because}); set Global.device=cpu")
    _need_gpus(count, here, chosen, visible)
    return "gpu"


def _need_gpus(count: int, here: int, chosen: int, visible: str | None) -> None:
    """Refuses more processes on this machine than the ``count`` GPUs that Paddle sees.

    Paddle's launcher goes by CUDA_VISIBLE_DEVICES, which may name GPUs that are not there.

    Raises:
        UserError: There are too few, or the one chosen for this process is not among them.
    """
    seen = f"Paddle sees {count}" + (f" (CUDA_VISIBLE_DEVICES is '{visible}')" if visible is not None else "")
    cure = f"start at most {count} process{'es' if count > 1 else ''} a machine, or set Global.device=cpu"
    if here > count:
        raise UserError(f"{here} processes on this machine need {here} GPUs, but {seen}; {cure}")
    if chosen >= count:
        raise UserError(f"GPU {chosen} is asked for, counted from 0, but {seen}; {cure}")


def try_gpu(device_id: int) -> None:
    """Runs one of Paddle's own kernels, so that a build without kernels for this GPU fails here.

    Raises:
        UserError: The installed Paddle has no kernels for the GPU.
    """
    import paddle

    try:
        paddle.set_device(f"gpu:{device_id}")
        # Paddle 2.6 does not notice a launch that failed: it goes on with whatever was in memory.
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
            f"{name}, of compute capability {major}.{minor}. PyPI's paddlepaddle-gpu 2.6.2 holds 6.1 to 8.6; "
            "install a newer one from Paddle's own index (docs/gpu.md), "
            "or set Global.device=cpu"
        )
