"""Labels that the model has no class for."""

from __future__ import annotations

import numpy as np
import pytest

from ppcls.data.index.labels import check_labels
from ppcls.errors import UserError


def test_labels_in_range_pass() -> None:
    check_labels(np.array([0, 2, 1]), str, 3)
    check_labels(np.array([], np.int64), str, 3)


def test_ten_are_shown() -> None:
    with pytest.raises(UserError) as caught:
        check_labels(np.array([-1, 0] * 12), lambda position: f"sample {position}", 1)
    lines = str(caught.value).splitlines()
    assert lines[1] == "sample 2: label -1 is not in 0..0; Arch.class_num is 1"
    assert len(lines) == 11
    assert lines[-1] == "… and 2 more samples"
