from __future__ import annotations

import pytest

from ppcls.serve.limits import AdmissionLimit, BusyError


def test_admission_limit_rejects_what_does_not_fit_and_releases() -> None:
    limit = AdmissionLimit(5, "images")
    with limit.acquire(3):
        with (
            pytest.raises(BusyError, match="the server is busy: 3 of 5 images are in use; try again later"),
            limit.acquire(3),
        ):
            raise AssertionError
        with limit.acquire(2):
            assert limit.used == 5
        assert limit.used == 3
    assert limit.used == 0
