"""Training loops of your own on batches that DALI loads, as Paddle tensors, on a GPU or on the CPU.

    python examples/dali_pipeline.py

The first loop uses the data of a config: transforms, order and seed are those of a training run. The second
loop uses a pipeline that the script defines with DALI's operators. `PipelineIterator` has the arguments of
NVIDIA's `DALIGenericIterator`, which it uses on a GPU. NVIDIA's class fails for pipelines without a GPU, so
ppcls hands over their tensors itself. The data set is scikit-learn's digits.
"""

# ruff: noqa: E402 - Paddle and DALI's plugin, which imports Paddle, are imported after build_loader

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ppcls import build_loader, load_config
from ppcls.dataset_tools.digits import make_digits

make_digits(Path("dataset/digits"))
config = load_config("configs/quickstart.yaml", {"Global.use_dali": True})
loader = build_loader(config)  # sets the device and the threads of Paddle, and imports it

import paddle
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from paddle import nn
from paddle.nn.functional import cross_entropy

from ppcls.data.loaders.dali.iterator import PipelineIterator

network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
optimizer = paddle.optimizer.Adam(1e-3, parameters=network.parameters())


def train(image: paddle.Tensor, label: paddle.Tensor) -> float:
    """Trains on one batch, and returns its loss."""
    loss = cross_entropy(network(image), label)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    return loss.item()


# 1. The data of a config. A batch has rows of padding after the first `valid` ones.
for epoch in range(2):
    losses = [train(batch.image[: batch.valid], batch.label[: batch.valid]) for batch in loader]
    print(f"config, epoch {epoch + 1}: {len(losses)} batches, mean loss {sum(losses) / len(losses):.2f}")
loader.release()  # ends DALI's threads

# 2. A pipeline of your own.
gpu = 0 if paddle.device.get_device().startswith("gpu") else None


@pipeline_def(batch_size=32, num_threads=2, device_id=gpu, exec_dynamic=True)
def digits() -> tuple[object, object]:
    """Reads, decodes and normalizes images; returns images [32, 3, 32, 32] and labels [32, 1]."""
    encoded, label = fn.readers.file(
        file_root="dataset/digits/images",
        random_shuffle=True,
        pad_last_batch=True,
        name="reader",
    )
    image = fn.decoders.image(encoded, device="cpu" if gpu is None else "mixed")
    image = fn.crop_mirror_normalize(
        fn.resize(image, size=[32, 32]), dtype=types.FLOAT, output_layout="CHW", mean=[127.5], std=[127.5]
    )
    label = fn.cast(label, dtype=types.INT64)
    return image, label if gpu is None else label.gpu()


batches = PipelineIterator(
    digits(),
    output_map=["image", "label"],
    reader_name="reader",  # an epoch has the images of this reader
    last_batch_policy=LastBatchPolicy.PARTIAL,  # the last batch has only the remaining images
    auto_reset=True,  # the next loop is the next epoch
)
for epoch in range(2):
    images = 0
    losses = []
    for batch in batches:
        images += len(batch["image"])
        losses.append(train(batch["image"], batch["label"]))
    print(f"own pipeline, epoch {epoch + 1}: {images} images, mean loss {sum(losses) / len(losses):.2f}")
