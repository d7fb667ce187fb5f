"""How numpy, OpenCV and Pillow do each transform: the reference that other backends must match."""

from ppcls.data.numpy_ops import arrays as arrays
from ppcls.data.numpy_ops import basic as basic
from ppcls.data.numpy_ops import erasing as erasing
from ppcls.data.numpy_ops import geometry as geometry
from ppcls.data.numpy_ops import photometric as photometric
from ppcls.data.numpy_ops import policies as policies
from ppcls.data.numpy_ops.chain import Array as Array
from ppcls.data.numpy_ops.chain import DecodeError as DecodeError
from ppcls.data.numpy_ops.chain import apply as apply
from ppcls.data.numpy_ops.chain import apply_drawn as apply_drawn
from ppcls.data.numpy_ops.chain import run as run
from ppcls.data.numpy_ops.chain import run_each as run_each
from ppcls.data.numpy_ops.chain import run_on_pixels as run_on_pixels
