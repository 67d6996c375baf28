"""A radix tree over tokens: the text that was processed, with a checkpoint at some of its nodes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Tokens = array  # of int32


class Node:
    """The text from the root to `end` tokens. edge: its tokens beyond the parent; used: clock of the last visit."""

    __slots__ = ("checkpoint", "children", "edge", "end", "parent", "used")

    def __init__(self, parent: Node | None, edge: Tokens, end: int, used: int = 0) -> None:
        self.parent, self.edge, self.end, self.used = parent, edge, end, used
        self.children: dict[int, Node] = {}
        self.checkpoint: Any = None


Place = tuple[Node, int]  # a node and the `end` it had: it is still that place if it has a parent and that end


class Match:
    """How far tokens follow known text. length: tokens; nodes: those passed, where it began left out, shallow first.

    last: the deepest node passed, or where it began; diverges: known text goes on beyond `length`, and the tokens go on
    otherwise.
    """

    __slots__ = ("diverges", "last", "length", "nodes")

    def __init__(self, length: int, nodes: list[Node], last: Node, diverges: bool) -> None:
        self.length, self.nodes, self.last, self.diverges = length, nodes, last, diverges


class RadixTree:
    """Known text. capacity: tokens on edges; beyond it, text without checkpoints is forgotten, the oldest first.

    What was just learned stays, and whatever leads to a checkpoint: those alone may exceed the capacity.
    """

    def __init__(self, capacity: int = 1 << 21) -> None:
        self.root = Node(None, array("i"), 0)
        self.capacity, self.size, self.clock = capacity, 0, 0

    def __iter__(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        pending = list(self.root.children.values())
        while pending:
            node = pending.pop()
            yield node
            pending += node.children.values()

    # Each of these takes the first `end` tokens, default all. near: a place on the way of the tokens, to begin at if it
    # still is one, and no deeper than they go.

    def match(self, tokens: Sequence[int], near: Place | None = None, end: int | None = None) -> Match:
        """Follow tokens as far as the text is known."""
        text = _tokens(tokens)
        end = len(text) if end is None else end
        start = self._start(near, end)
        node, common, nodes = self._descend(text, start, end)
        if common < node.end:
            return Match(common, nodes[:-1], nodes[-2] if len(nodes) > 1 else start, common < end)
        return Match(common, nodes, node, common < end and bool(node.children))

    def learn(self, tokens: Sequence[int], near: Place | None = None, end: int | None = None) -> None:
        """Remember tokens as processed. A leaf without a checkpoint grows; no node is made on the way."""
        self._reach(_tokens(tokens), end, exactly=False, near=near)

    def node_at(self, tokens: Sequence[int], near: Place | None = None, end: int | None = None) -> Node:
        """The node of exactly these tokens, made if need be."""
        return self._reach(_tokens(tokens), end, exactly=True, near=near)

    def _start(self, near: Place | None, end: int) -> Node:
        if near is None or near[1] > end or near[0].end != near[1] or near[0].parent is None:
            return self.root
        return near[0]

    def _reach(self, text: Tokens, end: int | None, exactly: bool, near: Place | None) -> Node:
        """Know a text; `exactly`: with a node at its end."""
        end = len(text) if end is None else end
        node, common, _ = self._descend(text, self._start(near, end), end)
        rest = text[common:end]
        if common < node.end and (rest or exactly):
            node = self._split(node, common)
        if not rest:
            return node
        if node.children or node.checkpoint is not None or node is self.root:
            parent, node = node, Node(node, rest, end, self.clock)
            parent.children[rest[0]] = node
        else:
            node.edge, node.end = node.edge + rest, end
        self.size += len(rest)
        if self.size > self.capacity:
            self._forget(self.capacity * 3 // 4, kept=node)
        return node

    def release(self, node: Node) -> None:
        """A node's checkpoint has gone: where a text goes on in one way only, it needs no node."""
        node.checkpoint = None
        for idle in (node, node.parent):
            if idle is not None and idle.parent is not None and idle.checkpoint is None and len(idle.children) == 1:
                self._join(idle)

    def next_below(self, node: Node) -> Iterator[Any]:
        """The checkpoints below a node down to the first published one of each branch."""
        pending = list(node.children.values())
        while pending:
            below = pending.pop()
            if below.checkpoint is not None:
                yield below.checkpoint
            if below.checkpoint is None or not below.checkpoint.published:
                pending += below.children.values()

    def _join(self, node: Node) -> None:
        """Give the edge of a node to its only child."""
        [child] = node.children.values()
        assert node.parent is not None
        child.edge, child.parent = node.edge + child.edge, node.parent
        node.parent.children[child.edge[0]] = child
        node.children, node.parent = {}, None

    def _descend(self, text: Tokens, start: Node, end: int) -> tuple[Node, int, list[Node]]:
        """From a node on its way: the last node entered, the tokens that agree, every node entered."""
        self.clock += 1
        node, common, nodes = start, start.end, []
        node.used = self.clock
        while common < end:
            child = node.children.get(text[common])
            if child is None:
                break
            node = child
            node.used = self.clock
            nodes.append(node)
            agreed = _common(node.edge, text, common, end)
            common += agreed
            if agreed < len(node.edge):
                break
        return node, common, nodes

    def _split(self, node: Node, position: int) -> Node:
        """Cut the edge of a node; the new one at `position` becomes its parent. Checkpoints stay where they are."""
        parent, at = node.parent, position - (node.end - len(node.edge))
        assert parent is not None and 0 < at < len(node.edge)
        middle = Node(parent, node.edge[:at], position, node.used)
        middle.children[node.edge[at]] = node
        parent.children[node.edge[0]] = middle
        node.parent, node.edge = middle, node.edge[at:]
        return middle

    def _forget(self, wanted: int, kept: Node) -> None:
        """Drop leaves without checkpoints but `kept`, the least recently used first, until `wanted` tokens are left."""
        while self.size > wanted:
            leaves = [node for node in self if not (node.children or node.checkpoint is not None or node is kept)]
            if not leaves:
                return
            for node in sorted(leaves, key=lambda leaf: leaf.used):
                assert node.parent is not None
                del node.parent.children[node.edge[0]]
                node.parent = None
                self.size -= len(node.edge)
                if self.size <= wanted:
                    return


def _tokens(tokens: Sequence[int]) -> Tokens:
    return tokens if isinstance(tokens, array) and tokens.typecode == "i" else array("i", tokens)


def _common(edge: Tokens, text: Tokens, start: int, end: int) -> int:
    """How many tokens of an edge agree with text[start:end]."""
    size = min(len(edge), end - start)
    if edge[:size] == text[start : start + size]:
        return size
    a, b = np.frombuffer(edge, np.int32)[:size], np.frombuffer(text, np.int32)[start : start + size]
    return int(np.argmax(a != b))
