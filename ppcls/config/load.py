"""The former module of `ppcls.recipe.load`, for programs that import it."""

from __future__ import annotations

from ppcls.recipe.load import dump_config as dump_config
from ppcls.recipe.load import load_config as load_config
from ppcls.recipe.load import validate as validate
