"""The former module of `ppcls.postprocess.results`, for programs that import it."""

from __future__ import annotations

from ppcls.postprocess.results import Classification as Classification
from ppcls.postprocess.results import Embedding as Embedding
from ppcls.postprocess.results import NearestImages as NearestImages
from ppcls.postprocess.results import Prediction as Prediction
from ppcls.postprocess.results import Scores as Scores
