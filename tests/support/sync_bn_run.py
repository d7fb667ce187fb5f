"""Checks on two GPUs that SyncBatchNorm over halves of a batch equals BatchNorm over the whole batch."""

from __future__ import annotations

import numpy as np

from ppcls.recipe.settings import Global
from ppcls.runtime import start as runtime


def main() -> None:
    settings = Global(device="gpu")
    run = runtime.start(settings)
    import paddle
    from paddle import nn

    from ppcls.engine.core.parallel import connect_ranks, synchronize_batch_norm

    images = np.random.default_rng(0).normal(1, 2, (8, 6, 6, 4)).astype("float32")
    half = images[4 * run.rank : 4 * run.rank + 4]
    for data_format, axes in (("NHWC", (0, 1, 2, 3)), ("NCHW", (0, 3, 1, 2))):
        plain = nn.BatchNorm2D(4, data_format=data_format)
        shared = synchronize_batch_norm(nn.Sequential(nn.BatchNorm2D(4, data_format=data_format)), run)
        whole = plain(paddle.to_tensor(images.transpose(axes))).numpy()
        # The layer finds no connection of the ranks by itself: a run has made one when it begins to train.
        network = connect_ranks(shared, settings, run)
        found = network(paddle.to_tensor(half.transpose(axes))).numpy()
        np.testing.assert_allclose(found, whole[4 * run.rank : 4 * run.rank + 4], atol=1e-5)
        for name, value in plain.state_dict().items():
            np.testing.assert_allclose(shared.state_dict()[f"0.{name}"].numpy(), value.numpy(), rtol=2e-2)


if __name__ == "__main__":
    main()
