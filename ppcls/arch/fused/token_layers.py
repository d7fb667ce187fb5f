"""Makes the layers of transformers and ConvNeXt use the fused kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any, Literal

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.fused import attention, layer_norm, linear
from ppcls.arch.fused.amp import amp_is_active, cast, compute_dtype, name_of
from ppcls.arch.fused.attention import Sequences
from ppcls.arch.fused.cuda import find_vector_problem
from ppcls.arch.fused.gelu import gelu
from ppcls.arch.fused.layer_norm import Branch
from ppcls.arch.kernels import flash_attention
from ppcls.arch.kernels.fallback import find_layer_norm_problem, report
from ppcls.arch.kernels.flash_attention import AttentionShape
from ppcls.arch.layers.drop_path import DropPath
from ppcls.arch.layers.tokens import ChannelNorm
from ppcls.arch.layers.transformer import DotProductAttention, Mlp, SelfAttention, Softmax, TransformerBlock
from ppcls.arch.layers.windows import WindowAttention

Forward = Callable[..., Any]


def fuse_tokens(model: nn.Layer) -> int:
    """Makes linear layers, layer norms, attention, GELU and residual sums of a model use the fused kernels.

    Each call of a layer checks shapes and dtypes, and uses Paddle's operators if the kernels lack them,
    with a line in the log.

    Returns:
        Number of changed methods, without linear layers, which almost every model has.
    """
    count = 0
    for layer in model.sublayers(include_self=True):
        replacements = _replacements(layer)
        if not replacements and _is_attention(layer):
            report(type(layer).__name__, _find_attention_problem(layer))
        for name, function in replacements.items():
            setattr(layer, name, MethodType(function, layer))
            count += function is not _linear
        if getattr(layer, "_act", None) is F.gelu:
            layer._act = _gelu
    return count


def _replacements(layer: nn.Layer) -> dict[str, Forward]:
    """Returns the methods of a layer to replace."""
    kind = type(layer)
    if kind is nn.Linear:
        return {"forward": _linear}
    if kind in (nn.LayerNorm, ChannelNorm):
        return {"forward": _layer_norm} if find_layer_norm_problem(layer) is None else {}
    if kind is DotProductAttention and isinstance(layer.attn_drop, nn.Identity):
        return {"forward": _attend}
    if isinstance(layer, SelfAttention):
        return _attention_replacements(layer)
    if kind is Mlp and isinstance(layer.drop, nn.Identity):
        return {"forward": _mlp}
    if kind is TransformerBlock:
        plain = all(find_layer_norm_problem(norm) is None for norm in (layer.norm1, layer.norm2))
        return {"forward": _transformer_block} if plain else {}
    if getattr(kind, "adds_branch", False):
        return {
            "activate_linear": _activate_linear,
            "add_branch": _add_branch,
            "add_linear_branch": _add_linear_branch,
        }
    return {}


def _attention_replacements(layer: SelfAttention) -> dict[str, Forward]:
    kind = type(layer)
    methods = ("compare", "mix", "mix_heads")
    plain = all(getattr(kind, method) is getattr(SelfAttention, method) for method in methods)
    if not plain or not isinstance(layer.attn_drop, nn.Identity):
        return {}
    if isinstance(layer, WindowAttention) and kind.forward is WindowAttention.forward:
        return {"mix": _mix, "forward": _window_attention}
    return {"mix": _mix, "mix_heads": _mix_heads}


def _is_attention(layer: nn.Layer) -> bool:
    softmax = any(type(child) is Softmax for child in layer.children())
    return softmax or isinstance(layer, nn.MultiHeadAttention)


def _find_attention_problem(layer: nn.Layer) -> str:
    """Returns why an attention layer has no replacement."""
    if isinstance(getattr(layer, "attn_drop", None), nn.Dropout):
        return "the kernels have no dropout of the attention weights"
    return "the kernels do not support this kind of attention"


def _gelu(x: Tensor) -> Tensor:
    if (problem := find_vector_problem(x.shape[-1], x.dtype)) is not None:
        report("GELU", problem)
        return F.gelu(x)
    return gelu(x)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    dtype = compute_dtype(x)
    inputs, outputs = layer.weight.shape
    if (problem := linear.find_problem(inputs, outputs, dtype)) is not None:
        report("a linear layer", problem)
        return nn.Linear.forward(layer, x)
    return linear.multiply(cast(x, dtype), layer.weight, layer.bias)


def _layer_norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    dtype = compute_dtype(x)
    if not _can_normalize(x, dtype):
        return type(layer).forward(layer, x)
    return layer_norm.normalize(layer, x, dtype)


def _can_normalize(x: Tensor, dtype: Any) -> bool:
    problem = layer_norm.find_problem(x.shape[-1], dtype)
    if x.dtype not in (paddle.float32, dtype):
        problem = f"the kernels can't map {name_of(x.dtype)} to {name_of(dtype)}"
    if problem is not None:
        report("a layer norm or a residual sum", problem)
    return problem is None


def _activate_linear(_block: nn.Layer, layer: nn.Linear, x: Tensor, act: Forward) -> Tensor:
    """Replaces `ppcls.arch.layers.sequence.activate_linear`."""
    dtype = compute_dtype(x)
    inputs, outputs = layer.weight.shape
    if act is not _gelu or layer.bias is None or linear.find_problem(inputs, outputs, dtype) is not None:
        return act(layer(x))
    # With `Global.recompute`, the first forward pass of training has no gradients either.
    approximate = not (layer.training or paddle.is_grad_enabled())
    return linear.multiply_gelu(cast(x, dtype), layer.weight, layer.bias, approximate=approximate)


def _mlp(layer: Mlp, x: Tensor) -> Tensor:
    return layer.fc2(_activate_linear(layer, layer.fc1, x, layer._act))


def _transformer_block(block: TransformerBlock, x: Tensor, context: Any = None) -> Tensor:
    dtype = compute_dtype(x)
    if not _can_normalize(x, dtype):
        return TransformerBlock.forward(block, x, context)
    x = _widen(x, dtype)
    normed, x = layer_norm.normalize_fork(block.norm1, x, dtype)
    branch = block.attn(normed) if context is None else block.attn(normed, context)
    branch = Branch(cast(branch, dtype), None, _factors(block.drop_path, x))
    normed, x = layer_norm.add_normalize(block.norm2, x, branch)
    mlp = block.mlp
    if type(mlp) is Mlp and isinstance(mlp.drop, nn.Identity):
        hidden = _activate_linear(mlp, mlp.fc1, normed, mlp._act)
        return _add_linear_branch(block, x, hidden, mlp.fc2, block.drop_path, None)
    branch = Branch(cast(mlp(normed), dtype), None, _factors(block.drop_path, x))
    return layer_norm.add(x, branch)


def _widen(x: Tensor, dtype: Any) -> Tensor:
    """Returns the residual stream in float32 under AMP O1, where sums with a float32 parameter are float32.

    In float16, gradients of the stream would vanish in networks with a small layer scale.
    """
    return cast(x, paddle.float32) if amp_is_active() and dtype != paddle.float32 else x


def _factors(drop_path: nn.Layer, x: Tensor) -> Tensor | None:
    return drop_path.factors(x.shape[0]) if isinstance(drop_path, DropPath) else None


def _add_branch(
    _block: nn.Layer, x: Tensor, branch: Tensor, drop_path: nn.Layer, scale: Tensor | None
) -> Tensor:
    """Replaces `ppcls.arch.layers.sequence.add_branch`."""
    dtype = compute_dtype(x)
    if not _can_normalize(x, dtype):
        branch = branch if scale is None else branch * scale
        return x + drop_path(branch)
    if scale is not None:
        x = _widen(x, dtype)
        scale = cast(scale, paddle.float32)
    return layer_norm.add(x, Branch(cast(branch, dtype), scale, _factors(drop_path, x)))


def _add_linear_branch(
    block: nn.Layer,
    x: Tensor,
    hidden: Tensor,
    layer: nn.Linear,
    drop_path: nn.Layer,
    scale: Tensor | None,
) -> Tensor:
    """Replaces `ppcls.arch.layers.sequence.add_linear_branch`."""
    dtype = compute_dtype(hidden)
    inputs, outputs = layer.weight.shape
    known = layer.bias is not None and linear.find_problem(inputs, outputs, dtype) is None
    if not known or not _can_normalize(x, dtype):
        return _add_branch(block, x, layer(hidden), drop_path, scale)
    value = linear.multiply(cast(hidden, dtype), layer.weight, None)
    bias = cast(layer.bias, paddle.float32)
    if scale is not None:
        x = _widen(x, dtype)
        scale = cast(scale, paddle.float32)
    return layer_norm.add(x, Branch(value, scale, _factors(drop_path, x), bias))


def _mix(layer: SelfAttention, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """Replaces `SelfAttention.mix`."""
    heads = layer._heads
    tokens = packed.shape[1]
    shape = AttentionShape(tokens, tokens, heads, packed.shape[-1] // 3 // heads, packed.dtype)
    choice = _choose_attention(shape, bias)
    if choice == "kernels":
        return attention.attend_packed(packed, bias, Sequences(heads, layer._scale))
    if choice == "flash":
        query, key, value = packed.split(3, axis=-1)
        return flash_attention.attend(query, key, value, heads, layer._scale)
    query, key, value = layer.unpack(packed)
    # The method of the class, because that of the layer would choose again
    return type(layer).mix_heads(layer, query, key, value, bias)


def _mix_heads(
    layer: SelfAttention, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Replaces `SelfAttention.mix_heads`, which layers call that change queries or keys before it."""
    heads, tokens, width = query.shape[1:]
    choice = _choose_attention(AttentionShape(tokens, tokens, heads, width, query.dtype), bias)
    if choice == "operators":
        return type(layer).mix_heads(layer, query, key, value, bias)
    query, key, value = (x.transpose([0, 2, 1, 3]).flatten(2) for x in (query, key, value))
    if choice == "flash":
        return flash_attention.attend(query, key, value, heads, layer._scale)
    return attention.attend(query, key, value, bias, Sequences(heads, layer._scale))


def _choose_attention(shape: AttentionShape, bias: Tensor | None) -> Literal["kernels", "flash", "operators"]:
    """Returns what computes an attention: our kernels, Paddle's FlashAttention, or plain operators."""
    tokens = max(shape.queries, shape.keys)
    problem = attention.find_problem(shape.width, shape.dtype, bias, tokens)
    if problem is None:
        return "kernels"
    if bias is None and shape.dtype in attention.DTYPES:
        flash_problem = flash_attention.find_problem(shape)
        if flash_problem is None:
            report("attention", problem, "Paddle's FlashAttention")
            return "flash"
        problem = f"{problem}; Paddle's FlashAttention: {flash_problem}"
    report("attention", problem)
    return "operators"


def _window_attention(layer: WindowAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Replaces `WindowAttention.forward`. The kernels read the tokens of a window where they are."""
    batch, height, width, channels = x.shape
    window = layer._window
    bias = layer._bias(mask)
    heads = layer._heads
    problem = attention.find_problem(channels // heads, compute_dtype(x), bias, window**2)
    if height % window or width % window or problem is not None:  # `_mix` then pads or reports the problem
        return type(layer).forward(layer, x, mask)
    packed = layer.project(x).reshape([batch, height * width, 3 * channels])
    order = _window_order(height, width, window, layer._shift if mask is not None else 0)
    sequences = Sequences(heads, layer._scale, order)
    return layer.join(attention.attend_packed(packed, bias, sequences)).reshape(x.shape)


@cache
def _window_order(height: int, width: int, window: int, shift: int) -> Tensor:
    """Returns the tokens of an image in each of its shifted windows, [windows, window * window] int32."""
    tokens = np.arange(height * width, dtype=np.int32).reshape(height, width)
    tokens = np.roll(tokens, (-shift, -shift), (0, 1))
    rows, columns = height // window, width // window
    windows = tokens.reshape(rows, window, columns, window).transpose(0, 2, 1, 3)
    return paddle.to_tensor(np.ascontiguousarray(windows).reshape(rows * columns, window**2))


def _attend(
    layer: DotProductAttention, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Replaces `DotProductAttention.forward`."""
    dtype = query.dtype
    width = query.shape[-1] // layer._heads
    scale = layer._scale or width**-0.5
    if query.shape[-1] != value.shape[-1]:
        report("attention", "the kernels need values and keys of the same width")
    elif not key.dtype == value.dtype == dtype:
        report("attention", "the kernels need queries, keys and values of the same dtype")
    else:
        shape = AttentionShape(query.shape[1], key.shape[1], layer._heads, width, dtype)
        choice = _choose_attention(shape, bias)
        if choice == "kernels":
            group = None if bias is None else bias.unsqueeze(0)
            return attention.attend(query, key, value, group, Sequences(layer._heads, scale))
        if choice == "flash":
            return flash_attention.attend(query, key, value, layer._heads, scale)
    return DotProductAttention.forward(layer, query, key, value, bias)
