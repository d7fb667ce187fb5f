"""Omits the pictures of runs at which no test looks."""

from __future__ import annotations

from ppcls.report.charts import CurvesPicture
from ppcls.report.html import HtmlReport

DRAW_CURVES, ADD_HEAT_MAPS = CurvesPicture.close, HtmlReport._add_heat_maps


def omit_curves() -> None:
    """Makes runs of this process draw no ``curves.png``, which takes a second."""
    CurvesPicture.close = lambda self: None  # type: ignore[method-assign]


def omit_heat_maps() -> None:
    """Makes reports of this process have no heat maps, which take a fifth of the time of a small training."""
    HtmlReport._add_heat_maps = lambda self, seconds: None  # type: ignore[method-assign]
