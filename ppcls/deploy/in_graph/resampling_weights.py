"""Pillow's weights for resizing as whole numbers, which are exact in engines without float64.

Pillow computes weights in float64 and rounds them to 22 bits. OpenVINO and TensorRT have no float64. The 24
bits of float32 are too few to round to 22 bits: one pixel in a thousand would differ by one level.

Decisions:
    - A number is the sum of a multiple of 2^-11, a multiple of 2^-22 and a small rest (`Parts`). Products and
      differences of the multiples need at most 24 bits, so they are exact in any order, also if an engine
      fuses operators. The error of the rest is about 2^-45, so the rounded weights are those of float64.
    - Dekker's exact products are not used: an engine that fuses multiplication and addition breaks them.
    - Divisions of an engine may be inexact: OpenVINO multiplies by reciprocals. So exact remainders follow.
    - Products of large integers are not used: OpenVINO computes with 32 bits where a graph has 64.
    - Lanczos needs no sine, which engines compute differently: it is a polynomial of the squared distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.polynomial import chebyshev

Tensor = Any  # in a graph under construction

WEIGHT_ONE = 2.0**22  # scale of Pillow's weights
_HIGH = 2.0**11
_MIDDLE = 2.0**22
_QUOTIENT = 2.0**12
# 11 bits of a quotient are computed in two steps, so that remainders of divisors up to 2^18 stay below 2^24.
_STEPS = (2.0**6, 2.0**5)
_SMALL_STEPS = (2.0**4, 2.0**4, 2.0**3)  # for divisors up to 2^20
# On [0, 3], Lanczos is a polynomial of degree 16 in y = 2 (x / 3)^2 - 1, with an error of 2^-45.
_DEGREE = 16
# From this degree on, float32 is enough: the sum of the remaining terms is below 2^-20.
_FLOAT32_DEGREE = 11


@dataclass(frozen=True)
class Parts:
    """Numbers ``high + middle + low`` in float32.

    Attributes:
        high: Multiples of 2^-11.
        middle: Multiples of 2^-22 with an absolute value below 2^-11.
        low: Rest with an absolute value of about 2^-22.
    """

    high: Tensor
    middle: Tensor
    low: Tensor

    def scaled(self, factor: Tensor) -> Parts:
        """Returns the product with -1, 0 or 1."""
        return Parts(self.high * factor, self.middle * factor, self.low * factor)


def bilinear_weights(distance: Tensor, width: Tensor, used: Tensor) -> Tensor:
    """Returns the weights of Pillow's triangle filter, whole numbers in units of 2^-22, float32.

    Args:
        distance: Distances of source pixels from a new pixel, [..., window] int64, >= 0.
        width: Distance at which the filter's argument is 1, [1] int64, up to 2^18.
        used: 1 for source pixels that exist, else 0, float32 of a shape that can be broadcast.
    """
    inside = (distance < width).astype("float32") * used
    x = divide(paddle.minimum(distance, width), width)
    return _normalize(_subtract_from(1.0, x).scaled(inside), inside)


def bicubic_weights(distance: Tensor, width: Tensor, used: Tensor) -> Tensor:
    """Returns the weights of Pillow's bicubic filter (a = -0.5); see `bilinear_weights`.

    For an argument x below 1, the filter is (1 - x)(1 + x - 1.5 x^2), else -(x - 1)(2 - x)^2 / 2.
    """
    twice = width + width
    is_near = (distance < width).astype("float32")
    is_far = 1.0 - is_near
    sign = is_near - is_far
    used = used * (distance < twice).astype("float32")
    x = divide(paddle.minimum(distance, twice), width)
    base = Parts(is_far * 2.0 + sign * x.high, sign * x.middle, sign * x.low)  # x, or 2 - x
    square = _multiply(base, base)
    scale = is_far * 0.5 - is_near * 1.5
    factor = _carry(
        is_near * (1.0 + x.high) + scale * square.high,
        is_near * x.middle + scale * square.middle,
        is_near * x.low + scale * square.low,
    )
    first = _subtract_from(1.0, x).scaled(sign * used)  # |1 - x|
    return _normalize(_multiply(first, factor), sign)


def lanczos_weights(distance: Tensor, width: Tensor, used: Tensor) -> Tensor:
    """Returns the weights of Pillow's Lanczos filter, sinc(x) sinc(x / 3); see `bilinear_weights`."""
    support = width + width + width
    is_near = (distance < width).astype("float32")
    is_far = (distance >= width + width).astype("float32")
    sign = 2.0 * (is_near + is_far) - 1.0  # the filter is negative between 1 and 2
    used = used * (distance < support).astype("float32")
    third = divide(paddle.minimum(distance, support), support, _SMALL_STEPS)  # x / 3
    square = _multiply(third, third)
    y = _carry(2.0 * square.high - 1.0, 2.0 * square.middle, 2.0 * square.low)
    return _normalize(_sum_chebyshev(_lanczos_coefficients(), y).scaled(sign * used), sign)


def _lanczos_coefficients() -> list[float]:
    def lanczos(y: Any) -> Any:
        x = 3.0 * np.sqrt((y + 1.0) / 2.0)
        return np.sinc(x) * np.sinc(x / 3.0)

    return [float(value) for value in chebyshev.chebinterpolate(lanczos, _DEGREE)]


def _sum_chebyshev(coefficients: Sequence[float], y: Parts) -> Parts:
    """Returns the sum of Chebyshev polynomials of ``y``, -1 to 1, by Clenshaw's recurrence.

    All intermediate sums are below 2.5 for `lanczos_weights`, so their products with ``y`` are exact.
    """
    rounded = y.high + y.middle + y.low
    first = paddle.zeros_like(rounded)
    second = first
    for value in coefficients[: _FLOAT32_DEGREE - 1 : -1]:
        first, second = value + 2.0 * rounded * first - second, first
    zero = paddle.zeros_like(rounded)
    one, other = Parts(zero, zero, first), Parts(zero, zero, second)
    for value in coefficients[_FLOAT32_DEGREE - 1 : 0 : -1]:
        one, other = _next_sum(value, _multiply(one, y), other, 2.0), one
    return _next_sum(coefficients[0], _multiply(one, y), other, 1.0)


def _next_sum(value: float, product: Parts, subtracted: Parts, factor: float) -> Parts:
    """Returns ``value + factor * product - subtracted``."""
    high = float(np.floor(value * _HIGH)) / _HIGH
    middle = float(np.floor((value - high) * _MIDDLE)) / _MIDDLE
    return _carry(
        high + factor * product.high - subtracted.high,
        middle + factor * product.middle - subtracted.middle,
        (value - high - middle) + factor * product.low - subtracted.low,
    )


def divide(numerator: Tensor, divisor: Tensor, steps: Sequence[float] = _STEPS) -> Parts:
    """Returns quotients of whole numbers.

    Args:
        numerator: Numbers >= 0, int64.
        divisor: Numbers 1 to 2^18, int64.
        steps: Factors of the steps that compute 11 bits. With smaller steps, divisors can be larger.
    """
    whole = numerator // divisor
    rest = (numerator - whole * divisor).astype("float32")
    size = divisor.astype("float32")
    parts = [whole.astype("float32"), paddle.zeros_like(rest)]
    scale = 1.0
    for number in range(len(parts)):
        for step in steps:
            rest = rest * step
            digits = paddle.floor(rest / size)  # one too many makes the remainder negative, which is no error
            rest = rest - digits * size
            scale /= step
            parts[number] = parts[number] + digits * scale
    return Parts(parts[0], parts[1], rest / size * scale)


def _subtract_from(number: float, parts: Parts) -> Parts:
    return Parts(number - parts.high, -parts.middle, -parts.low)


def _multiply(one: Parts, other: Parts) -> Parts:
    """Returns products of numbers from -2 to 2."""
    middle = one.high * other.middle + one.middle * other.high
    low = one.high * other.low + one.low * other.high
    low = low + one.middle * (other.middle + other.low) + one.low * other.middle
    return _carry(one.high * other.high, middle, low)


def _carry(high: Tensor, middle: Tensor, low: Tensor) -> Parts:
    """Returns ``high + middle + low``, where ``high`` and ``middle`` can have too many digits."""
    rounded = _floor(high, _HIGH)
    middle = middle + (high - rounded)
    carried = _floor(middle, _HIGH)
    middle = middle - carried
    kept = _floor(middle, _MIDDLE)
    return Parts(rounded + carried, kept, low + (middle - kept))


def _floor(values: Tensor, scale: float) -> Tensor:
    """Returns the largest multiples of ``1 / scale``, a power of two, that are not larger than the values."""
    return paddle.floor(values * scale) * (1 / scale)


def _normalize(sizes: Parts, sign: Tensor) -> Tensor:
    """Returns weights whose sum along the last axis is about 2^22, rounded like Pillow.

    Args:
        sizes: Absolute values of the filter.
        sign: Signs of these values, 1 or -1; any number where the value is 0.
    """
    terms = sizes.scaled(sign)
    sums = [paddle.sum(part, axis=-1, keepdim=True) for part in (terms.high, terms.middle, terms.low)]
    total = _carry(*sums)
    divisor = total.high + total.middle
    whole = paddle.floor(total.high)
    part = total.high - whole
    # A division with two digits, the first of 12 bits and the second of 10 bits, and exact remainders.
    first = _floor((sizes.high + sizes.middle) / divisor, _QUOTIENT)
    high = sizes.high - first * whole - first * part
    middle = sizes.middle - first * total.middle
    low = sizes.low - first * total.low
    second = _floor((high + middle + low) / divisor, WEIGHT_ONE)
    rest = (high - second * whole - second * part + middle) + (low - second * (total.middle + total.low))
    last = paddle.floor(rest / divisor * WEIGHT_ONE + 0.5)
    return ((first + second) * WEIGHT_ONE + last) * sign
