"""The transforms of ``transform_ops`` as frozen specs: what happens to an image, not how.

A file is a family, and has the decisions of its random transforms beside their specs; ``numpy_ops`` and
``dali_ops`` have files of the same names, which interpret them. ``ppcls.registry`` has all names.
"""

from ppcls.data.transforms.basic import CropImage as CropImage
from ppcls.data.transforms.basic import DecodeImage as DecodeImage
from ppcls.data.transforms.basic import NormalizeImage as NormalizeImage
from ppcls.data.transforms.basic import RandCropImage as RandCropImage
from ppcls.data.transforms.basic import RandFlipImage as RandFlipImage
from ppcls.data.transforms.basic import ResizeImage as ResizeImage
from ppcls.data.transforms.basic import ToCHWImage as ToCHWImage
from ppcls.data.transforms.chain import Op as Op
from ppcls.data.transforms.chain import count_draws as count_draws
from ppcls.data.transforms.chain import plan_chain as plan_chain
