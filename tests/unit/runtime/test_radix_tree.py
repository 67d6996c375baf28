"""The radix tree in lock-step with a model that cannot be wrong: a list of the texts that were processed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.checkpoints.tree import Node, Place, RadixTree

CAPACITY = 20
texts = st.text("abc", min_size=1, max_size=9)


def ids(text: str) -> array[int]:
    return array("i", map(ord, text))


def common(a: str, b: str) -> int:
    """How many characters two texts agree from the start."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def prefixes(known: list[str]) -> set[str]:
    """Every beginning of the texts, the empty one left out."""
    return {text[:n] for text in known for n in range(1, len(text) + 1)}


def nodes(tree: RadixTree) -> dict[str, Node]:
    """All nodes but the root by their text, read off the edges; parents and ends are checked on the way."""
    found: dict[str, Node] = {}

    def walk(node: Node, text: str) -> Iterator[tuple[str, Node]]:
        assert node.end == len(text)
        for first, child in node.children.items():
            assert child.parent is node and len(child.edge) and child.edge[0] == first
            below = text + "".join(map(chr, child.edge))
            yield below, child
            yield from walk(child, below)

    for text, node in walk(tree.root, ""):
        assert text not in found
        found[text] = node
    assert {id(node) for node in tree} == {id(node) for node in found.values()}
    return found


def above(node: Node) -> list[Node]:
    """From a node's parent up to the root."""
    return [] if node.parent is None else [node.parent, *above(node.parent)]


class TreeMachine(RuleBasedStateMachine):
    """Learn, match, make nodes, give checkpoints to them and take them away; known: the list of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree(CAPACITY)
        self.known: list[str] = []
        self.made: set[str] = set()  # nodes that may be there: made on purpose, or where texts ever parted or ended
        self.checkpoints: dict[str, object] = {}

    def learnt(self, text: str) -> None:
        """The model of `learn`: the text is known; of the others, the tree says what it forgot, within its rules."""
        before, new = prefixes([*self.known, text]), text not in prefixes(self.known)
        self.known.append(text)
        self.made |= self.corners()
        if not new or len(before) <= CAPACITY:
            return
        after = set().union(*(prefixes([found]) for found in nodes(self.tree)))
        assert after <= before and prefixes([text, *self.checkpoints]) <= after
        most = CAPACITY * 3 // 4
        droppable = [found for found in self.ends(after) if found not in self.checkpoints and found != text]
        assert len(after) <= most or not droppable
        self.known = self.ends(after)
        assert prefixes(self.known) == after

    def ends(self, known: set[str]) -> list[str]:
        """Texts that no other goes beyond."""
        return [text for text in known if not any(other != text and other.startswith(text) for other in known)]

    def corners(self) -> set[str]:
        """Where known texts part, and where they end."""
        known = prefixes(self.known)
        parted = {text for text in known if sum(text + more in known for more in "abc") > 1}
        return parted | set(self.ends(known))

    @rule(text=texts)
    def learn(self, text: str) -> None:
        self.tree.learn(ids(text))
        self.learnt(text)

    @rule(text=texts)
    def node_at(self, text: str) -> None:
        self.made.add(text)
        node = self.tree.node_at(ids(text))
        self.learnt(text)
        assert nodes(self.tree)[text] is node

    @rule(text=texts)
    def keep(self, text: str) -> None:
        """A checkpoint, as the cache puts one: at once at the node it asked for."""
        self.made.add(text)
        node = self.tree.node_at(ids(text))
        assert node.checkpoint is self.checkpoints.get(text)
        node.checkpoint = self.checkpoints.setdefault(text, object())
        self.learnt(text)

    @precondition(lambda self: self.checkpoints)
    @rule(which=st.randoms(use_true_random=False))
    def give_up(self, which) -> None:
        """Its node goes with it where the text goes on in one way, and the one above if it was there for this one."""
        text = which.choice(sorted(self.checkpoints))
        node = nodes(self.tree)[text]
        above = [found for found in nodes(self.tree) if text.startswith(found) and found != text]
        self.tree.release(node)
        del self.checkpoints[text]
        for idle in (text, max(above, key=len, default="")):
            left = nodes(self.tree).get(idle)
            assert left is None or left.checkpoint is not None or len(left.children) != 1
        self.made = set(nodes(self.tree)) | self.corners()

    @rule(text=texts | st.just(""))
    def match(self, text: str) -> None:
        match = self.tree.match(ids(text))
        agree = [common(text, known) for known in self.known]
        assert match.length == max(agree, default=0)
        beyond = any(n == match.length and len(known) > n for n, known in zip(agree, self.known, strict=True))
        assert match.diverges == (match.length < len(text) and beyond)
        path = sorted(found for found in nodes(self.tree) if text.startswith(found))
        assert [node.end for node in match.nodes] == [len(found) for found in path]
        assert [node.checkpoint for node in match.nodes] == [self.checkpoints.get(found) for found in path]

    @rule(text=texts)
    def look_up(self, text: str) -> None:
        """From any node, `above` goes through all that lie on its way to the root."""
        for node in self.tree.match(ids(text)).nodes:
            ends = [n.end for n in above(node)]
            assert ends == [n.end for n in reversed(self.tree.match(ids(text)[: node.end - 1]).nodes)] + [0]

    @invariant()
    def agree(self) -> None:
        found = nodes(self.tree)
        assert self.tree.size == sum(len(node.edge) for node in found.values()) == len(prefixes(self.known))
        assert {text: node.checkpoint for text, node in found.items() if node.checkpoint} == self.checkpoints
        assert self.corners() | set(self.checkpoints) <= set(found) <= self.made


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


@given(st.lists(texts, max_size=12), texts)
def test_without_a_limit_nothing_is_forgotten(known: list[str], text: str) -> None:
    tree = RadixTree()
    for each in known:
        tree.learn(ids(each))
    assert tree.size == len(prefixes(known))
    assert tree.match(ids(text)).length == max((common(text, each) for each in known), default=0)


def test_a_text_that_grows_stays_one_node() -> None:
    tree = RadixTree()
    for end in range(1, 9):
        tree.learn(ids("abcabcab"[:end]))
    assert list(nodes(tree)) == ["abcabcab"]


def test_a_split_leaves_checkpoints_where_they_are() -> None:
    tree = RadixTree()
    deep = tree.node_at(ids("abcabc"))
    deep.checkpoint = "deep"
    middle = tree.node_at(ids("abc"))
    tree.learn(ids("abb"))
    assert tree.node_at(ids("abcabc")) is deep and deep.checkpoint == "deep"
    assert middle.checkpoint is None and [node.end for node in above(deep)] == [3, 2, 0]
    assert set(nodes(tree)) == {"ab", "abb", "abc", "abcabc"}


def test_the_least_recently_used_text_is_forgotten_first() -> None:
    tree = RadixTree(capacity=12)
    for text in ("aaaa", "bbbb", "cccc"):
        tree.learn(ids(text))
    tree.match(ids("aaaa"))
    tree.learn(ids("ab"))
    assert set(nodes(tree)) == {"a", "aaaa", "ab", "cccc"}  # back to three quarters of the capacity
    assert tree.size == 9


def test_what_leads_to_a_checkpoint_is_not_forgotten() -> None:
    tree = RadixTree(capacity=4)
    for text in ("aaaa", "bbbb"):
        tree.node_at(ids(text)).checkpoint = text
    tree.learn(ids("aaaacc"))
    tree.learn(ids("c"))
    assert set(nodes(tree)) == {"aaaa", "bbbb", "c"}


@pytest.mark.parametrize("text", ["abc", "abcabcabc"])
def test_a_node_asked_for_is_there_even_if_all_the_room_is_taken(text: str) -> None:
    """Checkpoints fill the tree, or the text alone is longer than the tree may be."""
    tree = RadixTree(capacity=4)
    tree.node_at(ids("bbbb")).checkpoint = "kept"
    node = tree.node_at(ids(text))
    assert node.end == len(text) and nodes(tree)[text] is node
    assert tree.match(ids(text)).nodes == [node]


@given(st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_tokens_may_be_any_sequence_of_ids(tokens: list[int], more: list[int]) -> None:
    tree = RadixTree()
    tree.learn([*tokens, *more])
    for same in (tokens, tuple(tokens), array("i", tokens)):
        assert tree.match(same).length == len(tokens)
        assert tree.node_at(same).end == len(tokens)


@pytest.mark.parametrize("seed", range(60))
def test_a_place_to_begin_at_changes_nothing(seed: int) -> None:
    """Also one that has grown, was joined, or is gone: the tree is the one that begins at the root."""
    rng = Random(seed)
    plain, hinted = RadixTree(60), RadixTree(60)
    places: list[tuple[tuple[int, ...], Place]] = []
    for _ in range(120):
        base, place = rng.choice(places) if places and rng.random() < 0.8 else ((), None)
        text = (*base, *(rng.randrange(3) for _ in range(rng.randint(0, 4))))
        if not text:
            continue
        if rng.random() < 0.2:
            deeper = [other for known, other in places if known[: len(text)] == text]
            place = rng.choice(deeper) if deeper else place
        longer, end = (*text, rng.randrange(3), rng.randrange(3)), len(text)
        known, hint = plain.match(text), hinted.match(longer, place, end)
        assert (hint.length, hint.diverges, hint.last.end) == (known.length, known.diverges, known.last.end)
        if rng.random() < 0.3:
            plain.learn(text)
            hinted.learn(longer, place, end)
            continue
        nodes = [plain.node_at(text), hinted.node_at(longer, place, end)]
        if rng.random() < 0.5:
            nodes[0].checkpoint = nodes[1].checkpoint = text
        elif nodes[0].checkpoint is not None:
            plain.release(nodes[0])
            hinted.release(nodes[1])
        places.append((text, (nodes[1], len(text))))
        shapes = [sorted(str((n.end, tuple(n.edge), n.checkpoint)) for n in tree) for tree in (plain, hinted)]
        assert shapes[0] == shapes[1] and plain.size == hinted.size
