"""How DALI does each transform, on the CPU or a GPU: specs become nodes of its graph."""

from ppcls.data.dali_ops import arrays as arrays
from ppcls.data.dali_ops import basic as basic
from ppcls.data.dali_ops import erasing as erasing
from ppcls.data.dali_ops import geometry as geometry
from ppcls.data.dali_ops import photometric as photometric
from ppcls.data.dali_ops import policies as policies
from ppcls.data.dali_ops.graph import Device as Device
from ppcls.data.dali_ops.graph import Node as Node
from ppcls.data.dali_ops.graph import Place as Place
from ppcls.data.dali_ops.graph import UnsupportedError as UnsupportedError
from ppcls.data.dali_ops.graph import draft as draft
from ppcls.data.dali_ops.graph import lower as lower
from ppcls.data.dali_ops.graph import lower_chain as lower_chain
from ppcls.data.dali_ops.graph import lower_each as lower_each
