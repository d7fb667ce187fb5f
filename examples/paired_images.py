"""Trains a small network to sharpen photographs, on pairs of images that are transformed identically.

    python examples/paired_images.py [--dali] [--steps 150]
    python examples/paired_images.py --img 'train/img/*/*' --gt 'train/gt/*/*'

The script creates the pairs in two folder trees: parts of scikit-image's photographs in ``train/gt``, and
blurred copies of them in ``train/img``. With ``--img`` and ``--gt``, it trains on your own images. DALI or
paddle.io applies the same crop, flip and colour changes to both images of a pair. At the end, the script
prints the PSNR in dB between a blurred photograph that is not in the training set and its sharp original,
before and after sharpening.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from PIL import Image, ImageFilter
from skimage import data

from ppcls.data.loaders.pairs import PairLoader, match_pairs
from ppcls.data.sampling.epoch_samplers import SequentialSampler, ShuffledSampler
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs import CropImage, DecodeImage, NormalizeImage, RandFlipImage, plan_chain
from ppcls.data.transforms.specs.geometry import RandomCropImage
from ppcls.data.transforms.specs.photometric import ColorJitter
from ppcls.recipe.settings import Global
from ppcls.runtime import start as runtime

TRAIN = ("astronaut", "coffee", "rocket", "immunohistochemistry")
TEST = ("chelsea",)
PART = 160  # height and width in pixels of a part of a photograph for training
DECODE = DecodeImage()
TO_ONE = NormalizeImage(mean=(0.0,), std=(1.0,))  # pixels 0..1
TRAIN_CHAIN = (
    DECODE,
    RandomCropImage(size=(48, 48)),
    RandFlipImage(),
    ColorJitter(brightness=0.2, saturation=0.2),
    TO_ONE,
)
TEST_CHAIN = (DECODE, CropImage(size=(256, 256)), TO_ONE)


def make_pairs(folder: Path) -> None:
    """Writes blurred images to SPLIT/img/NAME/ and sharp ones to SPLIT/gt/NAME/, with equal file names."""
    for name in (*TRAIN, *TEST):
        sharp = Image.fromarray(getattr(data, name)())
        blurred = sharp.filter(ImageFilter.GaussianBlur(1.5))
        boxes = [(0, 0, *sharp.size)]
        if name in TRAIN:
            steps = [range(0, side - PART + 1, PART) for side in sharp.size]
            boxes = [(x, y, x + PART, y + PART) for x, y in product(*steps)]
        for kind, image in (("img", blurred), ("gt", sharp)):
            target = folder / ("train" if name in TRAIN else "test") / kind / name
            target.mkdir(parents=True)
            for number, box in enumerate(boxes):
                image.crop(box).save(target / f"{number:02}.png")


def build(img: str, gt: str, chain: tuple[Transform, ...], run: runtime.Runtime, dali: bool) -> PairLoader:
    """Builds the loader of two folder trees. Shuffles training pairs, and keeps the order of test pairs."""
    training = chain is TRAIN_CHAIN
    indices = match_pairs(img, gt)
    size = len(indices[0])
    order = Order(
        ShuffledSampler(size) if training else SequentialSampler(size),
        batch_size=8 if training else 1,
        rank=run.rank,
        world=run.world_size,
    )
    ops = plan_chain(chain, "CHW")
    if not dali:
        from ppcls.data.loaders.paddle import PaddleLoader

        return PairLoader(*(PaddleLoader(index, order, ops) for index in indices))
    from ppcls.data.loaders.dali.loader import DaliLoader
    from ppcls.data.loaders.dali.settings import DaliSettings

    settings = DaliSettings(device_id=run.device_id, threads=run.cores)
    return PairLoader(*(DaliLoader(index, order, ops, settings) for index in indices))


def main() -> None:
    """Creates the pairs, trains, and prints the PSNR before and after sharpening."""
    options = argparse.ArgumentParser(description="Train a small network to sharpen photographs.")
    options.add_argument("--dali", action="store_true", help="load images with DALI instead of paddle.io")
    options.add_argument("--steps", type=int, default=150, help="number of training steps (%(default)s)")
    options.add_argument("--img", help="pattern of blurred images to train on, such as 'train/img/*/*'")
    options.add_argument("--gt", help="pattern of the sharp images, such as 'train/gt/*/*'")
    arguments = options.parse_args()
    if (arguments.img is None) != (arguments.gt is None):
        options.error("--img and --gt belong together")
    run = runtime.start(Global(use_dali=arguments.dali))
    import paddle
    from paddle import nn

    def steps(loader: PairLoader) -> Iterator[tuple[paddle.Tensor, paddle.Tensor]]:
        for _ in range(-(-arguments.steps // len(loader))):
            for blurred, sharp in loader:
                yield blurred.image, sharp.image

    def psnr(one: paddle.Tensor, other: paddle.Tensor) -> float:
        return float(-10.0 * ((one - other).clip(-1.0, 1.0) ** 2).mean().log10())

    with tempfile.TemporaryDirectory() as folder:
        make_pairs(Path(folder))
        trees = {name: (f"{folder}/{name}/img/*/*", f"{folder}/{name}/gt/*/*") for name in ("train", "test")}
        if arguments.img is not None:
            trees["train"] = (arguments.img, arguments.gt)
        train = build(*trees["train"], TRAIN_CHAIN, run, arguments.dali)
        test = build(*trees["test"], TEST_CHAIN, run, arguments.dali)
        paddle.seed(0)
        # The network predicts the details that the blur removed. The weights of its last layer are zero at
        # first, so an untrained network does not change the image.
        last = nn.Conv2D(12, 3, 3, padding=1, weight_attr=nn.initializer.Constant(0.0))
        network = nn.Sequential(
            nn.Conv2D(3, 12, 5, padding=2), nn.ReLU(), nn.Conv2D(12, 12, 3, padding=1), nn.ReLU(), last
        )
        optimizer = paddle.optimizer.Adam(5e-3, parameters=network.parameters())
        for blurred, sharp in steps(train):
            loss = nn.functional.mse_loss(blurred + network(blurred), sharp)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
        ((blurred, sharp),) = ((one.image, other.image) for one, other in test)
        with paddle.no_grad():
            restored = (blurred + network(blurred)).clip(0.0, 1.0)
        print(
            f"PSNR of {TEST[0]}: {psnr(blurred, sharp):.2f} dB blurred, {psnr(restored, sharp):.2f} dB after"
        )


if __name__ == "__main__":
    main()
