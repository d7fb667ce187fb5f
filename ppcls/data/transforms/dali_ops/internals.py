"""The private parts of DALI that we need.

Decisions:
- This is the only module with these names. DALI 2.4 has no public name for an operator of a node, for the end
  of a pipeline's threads, and for conditionals in a part of a graph.
- `pyproject.toml` allows only DALI 2.4. Tests of the loaders and of the transforms' parity fail if another
  version renames one of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from nvidia.dali import Pipeline
from nvidia.dali import pipeline as dali_pipeline
from nvidia.dali._utils import dali_trace
from nvidia.dali.auto_aug.core import select
from nvidia.dali.pipeline import do_not_convert

Node = Any  # DataNode of a DALI graph under construction


def operator_of(node: Node) -> Any:
    """Returns the operator whose output a node is, with the attributes ``schema`` and ``device``."""
    return node.source._op


def full_operator_name(operator: Any) -> str:
    """Returns the name of an operator with its modules, such as ``nvidia.dali.fn.decoders.image``."""
    return str(operator._operator_name())


def shut_down(pipeline: Pipeline) -> None:
    """Ends the threads of a pipeline.

    Without this call, the garbage collector might end the threads from within one of them, which can't wait
    for itself.
    """
    pipeline._shutdown()


def without_conversion(entry: Any) -> Any:
    """Returns an augmentation that computes its table of parameters as plain Python.

    DALI runs an augmentation in a form that also accepts nodes as conditions, which takes seconds for the
    tables of `AugMix`.
    """
    entry = copy(entry)
    entry._map_mags_to_params = do_not_convert(entry._map_mags_to_params)
    return entry


@contextmanager
def conditionals(*nodes: Node) -> Iterator[Callable[..., Node]]:
    """Enables DALI's conditionals for a part of the current graph.

    The public decorator, ``pipeline_def(enable_conditionals=True)``, rewrites the Python code of a whole
    pipeline, including code of ppcls. So this function calls the private functions that the decorator calls.

    Args:
        *nodes: Nodes outside this part of the graph that are inputs of it.

    Yields:
        A version of `nvidia.dali.auto_aug.core.select` for use in the context.
    """
    pipeline = Pipeline.current()
    dali_pipeline._preprocess_pipe_object(pipeline, True, nodes, {})
    tracing = dali_trace.is_tracing_enabled()
    dali_trace.set_tracing(enabled=False)  # tracing fails if only a part of the graph is rewritten
    try:
        with warnings.catch_warnings(record=True) as caught:  # DALI's filter would show all warnings
            yield dali_pipeline._preprocess_pipe_func(select, True)
    finally:
        dali_trace.set_tracing(enabled=tracing)
        pipeline._conditionals_enabled = False
    for warning in caught:
        if not issubclass(warning.category, DeprecationWarning):  # auto_aug itself uses deprecated operators
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
