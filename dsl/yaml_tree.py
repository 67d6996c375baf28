"""YAML text to a tree of plain values that know their lines.

Only what a spec needs: mappings with text keys, lists, null, true/false, decimal numbers, text. Numbers follow the YAML
1.2 core schema (`1e-6` is a float); spellings on which YAML 1.1 and 1.2 differ are refused. Input is untrusted: size,
depth and number of nodes are bounded, and anchors, aliases and tags are refused before anything is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from dsl import errors
from dsl.errors import Path, SpecError

MAX_BYTES = 1 << 20
MAX_DEPTH = 12
MAX_NODES = 20_000

INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,39})")
FLOAT = re.compile(r"(?=.*[.eE])[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?")
SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|nan)")
NUMBER_LIKE = re.compile(r"[-+]?\.?[0-9]")
WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Node:
    """A value and the line it starts in (first line: 1). Mappings also know the lines of their keys."""

    value: Scalar | dict[str, Node] | list[Node]
    line: int
    key_lines: dict[str, int]

    def plain(self) -> Any:
        """The value without lines: dict, tuple or scalar."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return tuple(node.plain() for node in self.value)
        return self.value

    def line_of(self, path: Path) -> int:
        """Line of the key or item at a path; of its nearest existing parent if it is not there."""
        node, line = self, self.line
        for item in path:
            if isinstance(node.value, dict) and isinstance(item, str) and item in node.value:
                node, line = node.value[item], node.key_lines[item]
            elif isinstance(node.value, list) and isinstance(item, int) and item < len(node.value):
                node = node.value[item]
                line = node.line
            else:
                break
        return line


def parse_plain(text: str) -> Scalar:
    """The value of an unquoted scalar. Raises `errors.OddNumber` for what looks like a number but is no plain one."""
    if text in WORDS:
        return WORDS[text]
    if INTEGER.fullmatch(text):
        return int(text)
    if SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", ""))
    if FLOAT.fullmatch(text):
        value = float(text)
        if value not in (float("inf"), float("-inf")):
            return value
    if NUMBER_LIKE.match(text):
        raise errors.OddNumber
    return text


def line_of_event(event: yaml.Event) -> int:
    """The line an event starts in (first line: 1)."""
    return 1 if event.start_mark is None else event.start_mark.line + 1


class TreeBuilder:
    """Builds the tree from a stream of YAML events; collects mistakes that do not stop it in `mistakes`."""

    def __init__(self, events: Iterator[yaml.Event], source: str) -> None:
        """`source` names the text in messages."""
        self.events = events
        self.source = source
        self.nodes = 0
        self.mistakes: list[SpecError] = []

    def fail(self, error: SpecError, event: yaml.Event) -> SpecError:
        """The error, located at an event."""
        return error.located(self.source, line_of_event(event))

    def next_event(self, path: Path) -> yaml.Event:
        """The next event, refused if no spec needs it. Raises SpecError."""
        event = next(self.events)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self.fail(errors.TooManyNodes(path, limit=MAX_NODES), event)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise self.fail(errors.AnchorRefused(path), event)
        if (tag := getattr(event, "tag", None)) is not None:
            raise self.fail(errors.TagRefused(path, tag=tag), event)
        return event

    def document(self) -> Node:
        """The one document of the stream. An empty stream is null."""
        next(self.events)  # StreamStart
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            return Node(None, 1, {})
        root = self.node(self.next_event(()), ())
        next(self.events)  # DocumentEnd
        event = next(self.events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise self.fail(errors.SeveralDocuments(), event)
        return root

    def node(self, event: yaml.Event, path: Path) -> Node:
        """The node that starts with an event."""
        if len(path) > MAX_DEPTH:
            raise self.fail(errors.TooDeep(path, limit=MAX_DEPTH), event)
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(event, path)
        return Node(self.scalar(event, path), line_of_event(event), {})

    def scalar(self, event: yaml.Event, path: Path) -> Scalar:
        """The value of a scalar; a mistake in it is collected and the text stays."""
        assert isinstance(event, yaml.ScalarEvent)
        text: str = event.value
        if event.style is not None:  # quoted or block
            return text
        try:
            return parse_plain(text)
        except errors.OddNumber:
            self.mistakes.append(self.fail(errors.OddNumber(path, text), event))
            return text

    def sequence(self, start: yaml.Event, path: Path) -> Node:
        """The list that starts with an event."""
        items: list[Node] = []
        while not isinstance(event := self.next_event(path), yaml.SequenceEndEvent):
            items.append(self.node(event, (*path, len(items))))
        return Node(items, line_of_event(start), {})

    def mapping(self, start: yaml.Event, path: Path) -> Node:
        """The mapping that starts with an event; of a key given twice the first value stays."""
        items: dict[str, Node] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := self.next_event(path), yaml.MappingEndEvent):
            key = self.node(event, (*path, "?")).value
            if isinstance(key, str):
                inner: Path = (*path, key)
                if key in items:
                    self.mistakes.append(self.fail(errors.DuplicateKey(inner, first=lines[key]), event))
            else:
                inner = (*path, "?")
                shown = key if not isinstance(key, dict | list) else errors.NO_VALUE
                self.mistakes.append(self.fail(errors.KeyNotText(path, shown), event))
            value = self.node(self.next_event(inner), inner)
            if isinstance(key, str) and key not in items:
                items[key], lines[key] = value, line_of_event(event)
        return Node(items, line_of_event(start), lines)


def parse_tree(text: str, source: str) -> tuple[Node, list[SpecError]]:
    """The tree of a YAML text, and the mistakes that did not keep it from being built. Raises SpecError for others."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise errors.TooLong(limit=MAX_BYTES).located(source, None)
    try:
        builder = TreeBuilder(yaml.parse(text, Loader=yaml.SafeLoader), source)
        return builder.document(), builder.mistakes
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise errors.YamlSyntax(reason=error.problem or error.context or "unreadable").located(source, line) from None
    except yaml.YAMLError as error:
        raise errors.YamlSyntax(reason=str(error).splitlines()[0]).located(source, None) from None
    except (ValueError, OverflowError):  # of PyYAML itself: "\\U00110000", %YAML with thousands of digits
        raise errors.YamlSyntax(reason="a number or an escape is out of range").located(source, None) from None
