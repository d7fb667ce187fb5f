"""Requests that web pages of other origins make a browser send, and headers of responses."""

from __future__ import annotations

import pytest
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from ppcls.serve.middleware import NoSniffing, SameOrigin

pytestmark = pytest.mark.hostile
CLIENT = TestClient(NoSniffing(SameOrigin(JSONResponse({"done": True}))), base_url="http://models.local:8000")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://models.local", "", "http://models.local:9"]
)
def test_request_of_another_origin_is_rejected(method: str, origin: str) -> None:
    response = CLIENT.request(method, "/predict", headers={"Origin": origin})
    assert response.status_code == 403
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200)])
def test_request_of_another_site_without_origin_is_rejected(site: str, status: int) -> None:
    assert CLIENT.post("/predict", headers={"Sec-Fetch-Site": site}).status_code == status


@pytest.mark.parametrize("origin", ["http://models.local:8000", "https://MODELS.local:8000", None])
def test_request_of_the_own_page_or_of_another_client_is_accepted(origin: str | None) -> None:
    headers = {} if origin is None else {"Origin": origin}
    response = CLIENT.post("/predict", headers=headers)
    assert response.status_code == 200
    assert response.headers["x-content-type-options"] == "nosniff"


def test_reading_is_allowed_from_any_origin() -> None:
    assert CLIENT.get("/live", headers={"Origin": "http://evil.example"}).status_code == 200
