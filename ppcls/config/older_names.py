"""Keys by the names that PaddleClas's older files have for them."""

from __future__ import annotations

from typing import Any

_LEVELS = {True: "O2", False: "O1"}


def take_older_names(tree: dict[str, Any]) -> None:
    """Gives sections and keys of older files their present names, in place, before a config is checked.

    ``AMP.use_pure_fp16`` and ``AMP.amp_level`` say what ``AMP.level`` does, and the section ``AMP_BF16`` is
    ``AMP`` with ``dtype: bfloat16``. What has both names, or another value, is left for the check to refuse.

    Args:
        tree: The YAML, which may have any shape.
    """
    half = tree.get("AMP_BF16")
    if "AMP" not in tree and isinstance(half, dict):
        tree["AMP"] = {"dtype": "bfloat16", **tree.pop("AMP_BF16")}
    amp = tree.get("AMP")
    if not isinstance(amp, dict) or "level" in amp:
        return
    pure = [key for key in ("use_pure_fp16", "use_pure_bf16") if isinstance(amp.get(key), bool)]
    if amp.get("amp_level") in _LEVELS.values():
        # It goes before the other: a file with both says the same twice.
        amp["level"] = amp.pop("amp_level")
    elif pure:
        amp["level"] = _LEVELS[amp[pure[0]]]
    if "level" in amp and len(pure) == 1:
        del amp[pure[0]]
