"""The former module of `ppcls.recipe.schema`, for programs that import it."""

from __future__ import annotations

from ppcls.recipe.schema import Config as Config
