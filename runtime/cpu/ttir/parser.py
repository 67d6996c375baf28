"""Parser for the TTIR text that `str(module)` prints (generic for plain operations, one method per structured one).

Triton's Python bindings do not show enough of a module (constants, blocks), so the text is the interface.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from ..errors import MalformedIr, UnsupportedOp
from .hints import hint
from .ir import Block, Function, Op, Type, Value, words
from .structure import rebuild_uses, structured
from .text import Locations, parse_type, parse_types, split_top, strip_locations, unescape

_NAME = r"%[\w$.\-]+"
_OPERAND = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_SYMBOL = r'@("[^"]*"|[\w.$\-]+)'
_FUNC = re.compile(rf"tt\.func (public |private )?{_SYMBOL}\((.*?)\)(?: -> (.*?))?(?: attributes \{{.*\}})? \{{$")
_RESULTS = re.compile(rf"({_NAME}(?::\d+)?(?:, {_NAME}(?::\d+)?)*) = (.*)$")
_OP_NAME = re.compile(r'"?([A-Za-z_][\w.]*)"?')
_ATTR = re.compile(r"(\w+) = ([^,{}<>]+?)(?: : \w+)?(?=[,}>]|$)")
_ARRAY = re.compile(r"(\w+) = array<i\d+: ([\d, -]+)>")
_WORD = re.compile(r"(?<![%\w.\"@])[A-Za-z_]\w*")
_FOR = re.compile(
    rf"\s*(unsigned )?({_NAME}) = (\S+) to (\S+) step (\S+)(?: iter_args\((.*?)\) -> \((.*?)\))?\s*(?:: (\w+))?\s*\{{$"
)
_IF = re.compile(r"\s*(\S+)(?: -> \((.*)\))? \{$")
_WHILE = re.compile(r"\s*(?:\((.*?)\) )?: \((.*?)\) -> (.*) \{$")
_REGION = re.compile(r"\((.*?)\)(?: <\{(.*?)\}>)? \(\{$")
_QUOTED = re.compile(r'([^"]*)"((?:[^"\\]|\\.)*)"(.*)$')
_BRANCH = re.compile(r"\^(\w+)(?:\(([^()]*)\))?")

NO_RESULT = words(
    "tt.store tt.return scf.yield tt.assert tt.print scf.condition tt.reduce.return tt.scan.return",
    "tt.map_elementwise.return",
    "llvm.intr.assume gpu.barrier ttg.barrier tt.debug_barrier",
)
# ` : (` separates operands from a function type; the operand part may hold colons of its own
_FUNCTION_TYPED = ("tt.atomic_rmw", "tt.atomic_cas", "tt.extern_elementwise", "tt.call")

Scope = dict[str, Value]


def parse_module(text: str) -> list[Function]:
    """All functions of a module, the public kernel first. Raises MalformedIr."""
    functions = _Parser(text).parse()
    return sorted(functions, key=lambda f: not f.is_public)


def _result_names(text: str) -> list[str]:
    """`%a`, `%a:2` (used as %a#0, %a#1) or `%a, %b`."""
    names = []
    for part in text.split(", "):
        name, _, count = part.partition(":")
        names += [f"{name}#{k}" for k in range(int(count))] if count else [name]
    return names


class _Parser:
    def __init__(self, text: str) -> None:
        raw = [line.strip() for line in text.split("\n") if line.strip()]
        self.locations = Locations(raw)
        stripped = [strip_locations(line) for line in raw if not line.startswith("#loc")]
        self.lines = [line for line, _ in stripped]
        self.line_locations = [loc for _, loc in stripped]
        self.at = 0
        self.kernel = "?"
        self.labels: dict[str, Block] = {}
        self.branches: list[tuple[Op, list[tuple[str, int]]]] = []
        self.restructured = False

    # ---- structure

    def parse(self) -> list[Function]:
        functions = []
        while self.at < len(self.lines):
            if self.lines[self.at].startswith("tt.func"):
                functions.append(self.function())
            self.at += 1
        if not functions:
            raise MalformedIr(kernel="?", line="", reason="no tt.func in the module")
        return functions

    def function(self) -> Function:
        match = self.match(_FUNC, self.lines[self.at], "function header")
        visibility, self.kernel, params, _ = match.groups()
        entry, scope = Block(), {}
        for param in split_top(params):
            name, type_text = param.split(":", 1)
            self.add_arg(entry, scope, name, re.sub(r"\s*\{.*\}\s*$", "", type_text))
        self.at += 1
        self.labels, self.branches = {"bb0": entry}, []
        blocks = [entry]
        self.block_body(entry, scope, blocks)
        self.resolve_branches()
        function = Function(self.kernel, blocks, is_public=visibility != "private ")
        if self.restructured:
            rebuild_uses(function)
        return function

    def add_arg(self, block: Block, scope: Scope, name: str, type_text: str) -> Value:
        value = Value(name.strip(), parse_type(type_text), None, len(block.args), block)
        block.args.append(value)
        scope[value.name] = value
        return value

    def block_body(self, block: Block, scope: Scope, blocks: list[Block]) -> None:
        """Parse up to the line that closes the region; that line is left for the caller."""
        while not (line := self.lines[self.at]).startswith("}"):
            if line.startswith("^"):
                block = self.block_header(line, block, scope, blocks)
                self.at += 1
            else:
                self.operation(block, scope, line)

    def block_header(self, line: str, block: Block, scope: Scope, blocks: list[Block]) -> Block:
        """The block a label opens: `bb0` is the first one of its region."""
        header = line.split("//")[0].strip()
        label = header[1:].split("(")[0].rstrip(":")
        if label != "bb0":
            block = Block(parent=blocks[0].parent)
            blocks.append(block)
            self.labels[label] = block
        if "(" in header:
            for arg in split_top(header[header.index("(") + 1 : header.rindex(")")]):
                self.add_arg(block, scope, *arg.split(":", 1))
        return block

    # ---- operations

    def operation(self, block: Block, scope: Scope, line: str) -> None:
        at = self.at
        self.at += 1
        match = _RESULTS.match(line)
        names, text = (_result_names(match.group(1)), match.group(2)) if match else ([], line)
        name_match = self.match(_OP_NAME, text, "operation")
        name, rest = name_match.group(1), text[name_match.end() :]
        op = Op(name, location=self.locations.resolve(self.line_locations[at]))
        try:
            parse = self.STRUCTURED.get(name, _Parser.plain)
            types = parse(self, op, scope, rest)
        except (KeyError, AttributeError, IndexError, ValueError) as error:
            raise MalformedIr(kernel=self.kernel, line=line, reason=f"{type(error).__name__}: {error}") from error
        if op.location == "unknown location" and op.regions:
            op.location = self.locations.resolve(self.line_locations[self.at - 1])
        if len(types) == 1 < len(names):
            types = types * len(names)  # tt.split prints the one type of both results
        self.define(block, scope, op, names, types)

    def define(self, block: Block, scope: Scope, op: Op, names: list[str], types: list[Type]) -> None:
        block.append(op)
        for k, type_ in enumerate(types):
            value = Value(names[k] if names else f"%unnamed{k}", type_, op, k, block)
            op.results.append(value)
            if names:
                scope[value.name] = value

    def operands(self, scope: Scope, text: str) -> list[Value]:
        return [scope[name] for name in _OPERAND.findall(text)]

    def region(self, op: Op, scope: Scope, args: list[tuple[str, Type]] = ()) -> Block:
        """Parse a region as one block; the closing line is left for the caller."""
        block, inner = Block(parent=op), dict(scope)
        for name, type_ in args:
            value = Value(name.strip(), type_, None, len(block.args), block)
            block.args.append(value)
            inner[value.name] = value
        op.regions.append(block)
        self.region_body(block, inner)
        if op.name in ("scf.for", "scf.if") and (block.terminator is None or block.terminator.name != "scf.yield"):
            block.append(Op("scf.yield", location=op.location))  # not printed when nothing is yielded
        return block

    def region_body(self, block: Block, scope: Scope) -> None:
        """Fill `block`. Several blocks (early returns of a function inside) become one."""
        outside, blocks = (self.labels, self.branches), [block]
        self.labels, self.branches = {"bb0": block}, []
        self.block_body(block, scope, blocks)
        self.resolve_branches()
        self.labels, self.branches = outside
        if len(blocks) > 1:
            block.ops = structured(blocks, {})
            self.restructured = True

    def resolve_branches(self) -> None:
        for op, targets in self.branches:
            op.successors = [(self.labels[label], count) for label, count in targets]

    def close(self) -> str:
        line = self.lines[self.at]
        self.at += 1
        return line

    def match(self, pattern: re.Pattern, text: str, what: str) -> re.Match:
        found = pattern.match(text)
        if found is None:
            raise MalformedIr(kernel=self.kernel, line=text, reason=f"unknown form of {what}")
        return found

    # ---- structured operations: fill the op, return the result types

    def combine(self, op: Op, scope: Scope, rest: str) -> list[Type]:
        """tt.reduce, tt.scan: a region that combines two elements."""
        match = self.match(_REGION, rest, op.name)
        attrs = match.group(2) or ""
        op.operands = self.operands(scope, match.group(1))
        op.attrs = {"axis": int(re.search(r"axis = (\d+)", attrs).group(1)), "reverse": "reverse = true" in attrs}
        self.region(op, scope)
        return parse_types(self.close().rsplit("->", 1)[1])

    def mapped(self, op: Op, scope: Scope, rest: str) -> list[Type]:
        """tt.map_elementwise: a region over the elements of `pack` places at a time."""
        match = self.match(_REGION, rest, op.name)
        op.operands = self.operands(scope, match.group(1))
        op.attrs = {"pack": int(re.search(r"pack = (\d+)", match.group(2)).group(1))}
        self.region(op, scope)
        return parse_types(self.close().rsplit("->", 1)[1])

    def for_loop(self, op: Op, scope: Scope, rest: str) -> list[Type]:
        match = self.match(_FOR, re.sub(r" \{[^{}]*\} \{$", " {", rest), op.name)
        unsigned, induction, low, high, step, iter_args, types_text, induction_type = match.groups()
        types = parse_types(types_text) if types_text else []
        pairs = [pair.split(" = ") for pair in split_top(iter_args or "")]
        op.operands = [scope[name] for name in (low, high, step, *(init for _, init in pairs))]
        op.attrs = {"unsigned": bool(unsigned)}
        carried = [(name, type_) for (name, _), type_ in zip(pairs, types, strict=True)]
        self.region(op, scope, [(induction, Type(induction_type or "index")), *carried])
        self.close()
        return types

    def if_else(self, op: Op, scope: Scope, rest: str) -> list[Type]:
        match = self.match(_IF, rest, op.name)
        op.operands = [scope[match.group(1)]]
        self.region(op, scope)
        if self.close().startswith("} else"):
            self.region(op, scope)
            self.close()
        return parse_types(match.group(2) or "")

    def while_loop(self, op: Op, scope: Scope, rest: str) -> list[Type]:
        match = self.match(_WHILE, rest, op.name)
        pairs = [pair.split(" = ") for pair in split_top(match.group(1) or "")]
        op.operands = [scope[init] for _, init in pairs]
        self.region(op, scope, [(n, t) for (n, _), t in zip(pairs, parse_types(match.group(2)), strict=True)])
        self.close()
        self.region(op, scope)
        self.close()
        return parse_types(match.group(3))

    def branch(self, op: Op, scope: Scope, rest: str) -> list[Type]:
        targets = []
        if op.name == "cf.cond_br":
            op.operands = [scope[_OPERAND.search(rest).group(0)]]
        for label, passed in _BRANCH.findall(rest):
            values = self.operands(scope, passed)
            targets.append((label, len(values)))
            op.operands = op.operands + values
        self.branches.append((op, targets))
        return []

    def constant(self, op: Op, scope: Scope, rest: str) -> list[Type]:
        value, _, type_text = rest.rpartition(" : ")
        op.attrs = {"value": (value or rest).strip()}
        return [parse_type(type_text)] if value else [Type("i1")]

    def message(self, op: Op, scope: Scope, rest: str) -> list[Type]:
        """tt.print, tt.assert: operands around a text that may hold anything."""
        before, text, after = self.match(_QUOTED, rest, op.name).groups()
        body, _, types = (before + after).rpartition(" : ")
        body = body or types  # no operands, no types
        op.operands = self.operands(scope, body)
        op.attrs = self.attributes(body) | {"text": unescape(text)}
        return []

    def plain(self, op: Op, scope: Scope, rest: str) -> list[Type]:
        """`name operands {attributes} : types`, the common form."""
        if rest.endswith("{"):
            location = self.locations.resolve(self.line_locations[self.end_of_region()])
            raise UnsupportedOp(location=location, kernel=self.kernel, op=op.name, types="region", reason=hint(op.name))
        cut = rest.rfind(" : (") if op.name in _FUNCTION_TYPED else rest.rfind(" : ")
        body, type_text = (rest[:cut], rest[cut + 3 :].strip()) if cut >= 0 else (rest, "")
        op.operands = self.operands(scope, re.sub(r'"[^"]*"', "", body))
        op.attrs = self.attributes(body)
        return [] if op.name in NO_RESULT else self.result_types(op, type_text)

    def end_of_region(self) -> int:
        """Line that closes the region opened before the current one."""
        depth, at = 1, self.at
        while at < len(self.lines) - 1 and (depth := depth - self.lines[at].startswith("}")) > 0:
            depth += self.lines[at].endswith("{")
            at += 1
        return at

    @staticmethod
    def attributes(body: str) -> dict:
        attrs: dict = {key: value.strip() for key, value in _ATTR.findall(body)}
        attrs.update({key: [int(x) for x in values.split(",")] for key, values in _ARRAY.findall(body)})
        attrs["words"] = _WORD.findall(re.sub(r'"[^"]*"', "", body.split("%")[0]))
        callee = re.search(_SYMBOL, body)
        if callee:
            attrs["callee"] = callee.group(1)
        return attrs

    @staticmethod
    def result_types(op: Op, type_text: str) -> list[Type]:
        if "->" in type_text:
            return parse_types(type_text.rsplit("->", 1)[1])
        if " to " in type_text:
            return [parse_type(type_text.split(" to ")[1])]
        types = parse_types(type_text)
        if op.name in ("arith.cmpi", "arith.cmpf"):
            return [types[0].with_elem("i1")]
        if op.name == "tt.load":
            return [types[0].with_elem(types[0].pointee)]
        return [types[-1] if op.name == "arith.select" else types[0]]

    STRUCTURED: ClassVar[dict[str, Callable]] = {
        "tt.reduce": combine,
        "tt.scan": combine,
        "tt.map_elementwise": mapped,
        "scf.for": for_loop,
        "scf.if": if_else,
        "scf.while": while_loop,
        "cf.br": branch,
        "cf.cond_br": branch,
        "arith.constant": constant,
        "tt.print": message,
        "tt.assert": message,
    }
