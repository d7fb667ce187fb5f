"""``AttentionModel``, PaddleClas's model within a model: a backbone, and what ``AFDLoss`` is of in it."""

from __future__ import annotations

from typing import Any

_NAME = "AttentionModel"
_TRANSFORMS = ("LinearTransformTeacher", "LinearTransformStudent")
_SHAPES = ("t_shapes", "s_shapes")  # AFDLoss has them too


def plain_members(data: dict[str, Any]) -> dict[str, Any]:
    """Writes each ``AttentionModel`` of a ``DistillationModel`` as its backbone with the key ``attention``.

    The linear transforms are the loss's own layers here. Whether a backbone is frozen is said for all models
    at one place, ``freeze_params_list``.

    Args:
        data: The section; what in it is no such model, or not in this form, stays as it is.
    """
    models, flags = [], list(data.get("freeze_params_list") or [False] * len(data["models"]))
    for position, each in enumerate(data["models"]):
        plain = _plain(each)
        models.append(plain or each)
        if plain is not None and position < len(flags):
            ((_, keys),) = each.items()
            flags[position] = bool((keys.get("freeze_params_list") or [False])[0])
    return data if models == data["models"] else {**data, "models": models, "freeze_params_list": flags}


def _plain(model: Any) -> dict[str, Any] | None:
    """Returns ``{Name: keys of the backbone and its attention}``; None of what is no ``AttentionModel``."""
    if not isinstance(model, dict) or len(model) != 1:
        return None
    ((name, keys),) = model.items()
    if not isinstance(keys, dict) or keys.get("name") != _NAME or not isinstance(keys.get("models"), list):
        return None
    parts = [part for each in keys["models"] if isinstance(each, dict) for part in each.values()]
    if len(parts) != 2 or not all(isinstance(part, dict) for part in parts):
        return None
    backbone, transform = parts
    if transform.get("name") not in _TRANSFORMS:
        return None
    attention = {key: value for key, value in transform.items() if key not in ("name", *_SHAPES)}
    weights = (keys.get("pretrained_list") or [None])[0]
    given = {} if weights is None else {"pretrained": weights}
    return {name: {**backbone, **given, "attention": attention}}
