"""Which DALI operators a graph under construction holds, learnt from the graph itself."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import getclosurevars
from typing import Any

Node = Any  # a DataNode of a graph under construction


def nodes_between(node: Node, before: Iterable[Node]) -> list[Node]:
    """Lists the operators that were added between nodes, each by its first output that is used.

    Args:
        node: Where to begin, at the end.
        before: Nodes at which to stop; they are left out.

    Returns:
        Nodes in an order in which each comes after its inputs.
    """
    known = {each.name for each in before}
    found: dict[int, Node] = {}

    def visit(node: Node) -> None:
        if node.name in known or id(node.source) in found:
            return
        for each in node.source.inputs:
            visit(each)
        found[id(node.source)] = node

    visit(node)
    return list(found.values())


def operator_name(node: Node) -> str:
    """Returns what made a node, as ``nvidia.dali.fn`` calls it: ``decoders.image``.

    A call into Python also says whose function it calls: ``python_function(by_numpy)``.
    """
    operator = node.source._op
    name = str(operator._operator_name()).removeprefix("nvidia.dali.").removeprefix("fn.")
    if (wrapper := getattr(operator, "function", None)) is None:
        return name
    function = getclosurevars(wrapper).nonlocals.get("function", wrapper)
    return f"{name}({function.__qualname__.split('.')[0]})"


def operator_device(node: Node) -> str:
    """Returns where the operator of a node works: ``"cpu"``, ``"gpu"`` or ``"mixed"``, between both."""
    return str(node.source._op.device)


def is_supported(node: Node) -> bool:
    """Whether DALI has the operator of a node for the device it is asked to work on."""
    return operator_device(node) in node.source._op.schema.GetSupportedBackends()
