from __future__ import annotations

import pytest

from ppcls.arch.build import build_model
from ppcls.registry import UnknownNameError


def test_unknown_architecture_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'ResNet50'"):
        build_model("Resnet_50")
