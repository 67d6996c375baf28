"""Where each value lives: a C scalar, an array, or nowhere (evaluated inside the loop nests that use it).

A tensor is stored only where it must be: results of reductions, dots, scans and control flow, loop-carried tensors,
and expensive values (loads, divisions, elementary functions, long integer chains) that would otherwise be computed
twice, in another block, after a store, or once per element of a broadcast.
"""

from __future__ import annotations

from enum import Enum, auto

from ..ttir.ir import CODED, Function, Op, Value, words
from .affine import Strides, constant_int, of_rows, uniform
from .effects import WRITES, Effects
from .induction import find_inductions, is_index_arithmetic
from .liveness import accumulates_in_place, dies_at, find_updates, inherited
from .masks import Corners
from .panel import GROUPS, find_panels, is_packed
from .row_loops import find_row_loops
from .stream import find_streams
from .tails import Tails
from .tiles import find_tiles
from .together import Group, dependents, find_groups
from .written import find_written_rows


class Place(Enum):
    SCALAR = auto()
    ARRAY = auto()
    INLINE = auto()
    INDUCTION = auto()


#: Operations that run at their own place and read whole operands; everything else is evaluated where it is used.
ROOTS = words(
    "tt.store tt.reduce tt.scan tt.dot tt.atomic_rmw tt.atomic_cas tt.gather tt.cat tt.histogram tt.unsplat tt.print",
    "scf.yield scf.for scf.if scf.while scf.condition cf.br cf.cond_br",
)
SHAPE_OPS = words("tt.join tt.split tt.broadcast tt.expand_dims tt.reshape tt.trans tt.splat tt.unsplat")
#: They repeat elements: what is worth storing is their operand.
REPEATS = words("tt.broadcast tt.expand_dims")
EXPENSIVE = words(
    "math.exp math.exp2 math.log math.log2 math.sin math.cos math.erf math.tanh math.sqrt math.rsqrt math.powf",
    "tt.extern_elementwise arith.divf arith.remf tt.precise_divf tt.precise_sqrt",
)
#: Elementary functions that native/arrays.h computes for whole arrays of f32, in half the time.
ARRAY_FUNCTIONS = words("math.exp math.exp2")
#: Elements of the last dimension from which, and of a tensor up to which, that is worth an array.
ARRAY_ROW, ARRAY_MOST = 64, 4096
INTEGER_DIVISIONS = words("arith.divsi arith.remsi arith.divui arith.remui")
_LINEAR = words(
    "arith.addi arith.subi arith.muli arith.extsi tt.splat tt.broadcast tt.expand_dims tt.reshape tt.trans",
)
#: An inline tree of more elementwise operations than this counts as expensive.
LONG_CHAIN = 24
LOAD, SLOW = 1, 2


class Placement:
    """Result of the analysis. `place` is read and updated by the emitter as it stores tensors."""

    def __init__(self, function: Function, keep_loads: bool = False) -> None:
        """keep_loads: for checked kernels, every load runs at its own place, whole, and offsets wrap."""
        self.function, self.keep_loads = function, keep_loads
        self.inductions = find_inductions(function)
        self.effects = Effects(function)
        self.strides = Strides({value: ind.initial for value, ind in self.inductions.items()})
        self.strides_unwrapped = Strides({v: ind.initial for v, ind in self.inductions.items()}, unwrapped=True)
        self.corners = Corners(self.inductions)
        ops = list(function.walk())
        dots = [op for op in ops if op.name == "tt.dot"]
        self.panels = find_panels(dots, self.strides, self.effects, fields=not keep_loads)
        self.addresses = set() if keep_loads else address_values(ops)
        #: Loops over pieces of rows that take one row after another.
        self.row_loops = set() if keep_loads else find_row_loops(ops, self.strides, self.inductions)
        self.anchors = {anchor for induction in self.inductions.values() for anchor in induction.anchors}
        #: Sums and stores of one tile, by member: the group in whose nest they run.
        self.groups = {} if keep_loads else find_groups(function, self.strides, self.is_root)
        self._place(ops)
        while stores := {loop for loop in self.row_loops if self._stores(loop)}:
            self.row_loops -= stores
            self._place(ops)
        while early := {group for group in self.groups.values() if self._needs_early(group)}:
            self.groups = {member: group for member, group in self.groups.items() if group not in early}
            self._place(ops)
        self.prefetch = {} if keep_loads else find_streams(ops, self.strides, self.inductions, self.row_loops)
        self.tiles = {} if keep_loads else find_tiles(self.panels, self.stored)
        self.written = {} if keep_loads else find_written_rows(ops, self.strides)
        self.tails = Tails(self)

    def _place(self, ops: list[Op]) -> None:
        """Decide about every value."""
        self.place = self._initial_places(ops)
        self.updates = find_updates(self.function, self.is_elementwise)
        self.stored: set[Value] = set(self.anchors)
        #: Updates that the one reduction reading them performs in its own loop nest.
        self.fused_updates: dict[Value, Op] = {}
        #: Repeated elements that are worth storing, so that their operand is.
        self._left_to_operand: set[Value] = set()
        self._roots: dict[Value, frozenset[Op]] = {}
        self._costs: dict[Value, tuple[int, int]] = {}
        for op in reversed(ops):
            for result in op.results:
                if self.place[result] is Place.INLINE:
                    self._decide(op, result)

    def _stores(self, loop: Op) -> bool:
        """Is a tensor stored in the body of a loop, other than those it carries?"""
        return any(result in self.stored for op in loop.regions[0].ops for result in op.results)

    def _needs_early(self, group: Group) -> bool:
        """Is a tensor stored, in front of the leader of a group, that is computed from one of its sums?"""
        leader = group.leader
        early = [op for op in dependents(group) if op.block is leader.block and op.position < leader.position]
        return any(result in self.stored for op in early for result in op.results)

    def _runs_in(self, root: Op) -> Op:
        """The root in whose loop nest `root` runs: itself, or the leader of its group."""
        return self.groups[root].leader if root in self.groups else root

    def _initial_places(self, ops: list[Op]) -> dict[Value, Place]:
        place: dict[Value, Place] = {}
        for block in self.function.blocks:
            place.update((arg, _storage(arg)) for arg in block.args)
        for op in ops:
            for region in op.regions:
                place.update((arg, _storage(arg)) for arg in region.args)
            inline = not op.regions and op.name not in ROOTS
            for result in op.results:
                place[result] = Place.INLINE if inline and result.type.is_tensor else _storage(result)
        place.update((value, Place.INDUCTION) for value in self.inductions)
        return place

    def is_elementwise(self, op: Op) -> bool:
        """Evaluated element by element where it is used, at the same index as its tensor operands."""
        inline = not op.regions and op.name not in (*ROOTS, *SHAPE_OPS, "tt.load", CODED)
        return inline and len(op.results) == 1 and self.place[op.result] is Place.INLINE

    def is_root(self, op: Op) -> bool:
        """Runs at its own place and reads whole operands."""
        return op.name in ROOTS

    def wraps(self, value: Value) -> bool:
        """`offsets % n` of growing offsets: a subtraction unless a multiple of n lies among them."""
        if value.defining not in ("arith.remsi", "arith.remui") or not value.type.is_tensor:
            return False
        left, right = value.op.operands
        return uniform(right) is not None and self.corners.grows(left) and is_index_arithmetic(left)

    def takes_over(self, value: Value, op: Op) -> bool:
        """May `op` (a loop) reuse the array of `value`, its initial value?"""
        return value not in self.anchors and self.place[value] is Place.ARRAY and dies_at(value, op, self.roots_of_use)

    def inherits(self, value: Value) -> Value | None:
        """A stored tensor that dies where `value` is computed element by element: its array may hold `value`."""
        if self.keep_loads or not self.is_elementwise(value.op):
            return None
        arrays = {v for v in self.stored - self.anchors if v not in self.updates and self.place[v] is Place.ARRAY}
        return inherited(value, arrays, self.is_elementwise, self.roots_of_use)

    # ---- decisions

    def _decide(self, op: Op, value: Value) -> None:
        groups = [roots for user, k in value.uses if (roots := self.roots_of_use(user, k)) is not None]
        self._roots[value] = frozenset().union(*groups)
        if value in self.updates and self._worth_updating(value):
            reduction = self._only_reduction(value)
            if reduction is not None:
                self.fused_updates[value] = reduction
            else:
                self.stored.add(value)
            return
        if value in self.anchors:
            return
        if op.name == "tt.load" and self.keep_loads:
            self.stored.add(value)
            return
        if op.name == CODED:
            if not self._is_panel_view(value):
                self.stored.add(value)
            return
        cost = self._cost(value)
        if cost == 0 or self._is_panel_view(value) or self._is_read_by_dots(value):
            return
        shared = len(self._roots[value]) > 1 and any(group != groups[0] for group in groups)
        left_to_operand = any(user.results and user.results[0] in self._left_to_operand for user, _ in value.uses)
        needed = self.must_store(op, value) or self._recomputed_by_broadcast(value, cost)
        if shared or left_to_operand or needed or self._is_array_function(value):
            (self._left_to_operand if op.name in REPEATS else self.stored).add(value)

    def _worth_updating(self, value: Value) -> bool:
        """Early update in place: read by more than the yield, or an accumulator that a dot then updates."""
        users = [user for user, _ in value.uses]
        if len(users) == 1 and users[0].name == "tt.dot":
            scales = is_packed(users[0]) and scaled_rows(value) is not None
            return not scales and accumulates_in_place(users[0], self.updates) is not None
        return len(self._roots[value]) > 1

    def _only_reduction(self, value: Value) -> Op | None:
        """The reduction, if it and the yield are all that reads an update, and it reads every element once."""
        reductions = [root for root in self._roots[value] if root.name == "tt.reduce" and root.block is value.op.block]
        others = self._roots[value].difference(reductions)
        if len(reductions) != 1 or any(root.name != "scf.yield" for root in others):
            return None
        return reductions[0] if self._read_elementwise(value, reductions[0]) else None

    def _read_elementwise(self, value: Value, root: Op) -> bool:
        """Do all uses of `value` other than a yield lead to `root` through elementwise operations?"""
        for user, _ in value.uses:
            if user is root or user.name == "scf.yield":
                continue
            if not self.is_elementwise(user) or not self._read_elementwise(user.result, root):
                return False
        return True

    def roots_of_use(self, user: Op, k: int) -> frozenset[Op] | None:
        """Root operations in whose loop nest this use is evaluated; None when the use evaluates nothing."""
        if user.name == "scf.yield" and user.block.parent.name == "scf.for":
            carried = user.block.args[k + 1]
            if self.place[carried] is Place.INDUCTION:
                return None
        if user.name in ROOTS or user.regions or not user.results:
            return frozenset((self._runs_in(user),))
        groups = []
        for result in user.results:
            evaluated_there = result in self.stored or self.place[result] is Place.SCALAR
            groups.append(frozenset((user,)) if evaluated_there else self._roots.get(result, frozenset()))
        return frozenset().union(*groups)

    def must_store(self, op: Op, value: Value) -> bool:
        """Used in other blocks, or loaded from memory that may have changed when it is used."""
        for root in self._roots[value]:
            if root.block is not op.block:
                return True
            if op.name == "tt.load":
                if self.effects.written_between(op, root) or op.attrs.get("isVolatile") == "true":
                    return True
                if root.name in WRITES and not self._same_elements(op.operands[0], root.operands[0]):
                    return True
                if root.name in WRITES and not self._read_in_place(value, root):
                    return True
        return False

    def _same_elements(self, loaded: Value, stored: Value) -> bool:
        """May a load run inside the loop that stores: every element is read before the only write that hits it."""
        return loaded is stored and (not loaded.type.is_tensor or self.strides.injective(loaded))

    def _read_in_place(self, value: Value, root: Op) -> bool:
        """Is `value` read in the nest of `root` only at the element that the nest has reached?"""
        for user, k in value.uses:
            if root not in (self.roots_of_use(user, k) or ()) or self._runs_in(user) is root:
                continue
            if not self.is_elementwise(user) or not self._read_in_place(user.result, root):
                return False
        return True

    def _is_panel_view(self, value: Value) -> bool:
        """Used by packed dots alone, as a view of their panel or as a panel they read from memory."""
        roots = self._roots[value]
        return bool(roots) and all(root in self.panels and self._views_panel(value, root) for root in roots)

    def _views_panel(self, value: Value, dot: Op) -> bool:
        panel, step = self.panels[dot], dot.operands[1]
        while step is not value:
            if step is panel.source:
                return False
            step = step.op.operands[0]
        return value is not panel.groups or panel.load is not None

    def _is_read_by_dots(self, value: Value) -> bool:
        """A load that packed dots of its block alone read, as their left operand, where it lies in memory."""
        if self.keep_loads or value.defining != "tt.load" or len(value.type.dims) != 2:
            return False
        if value.type.dims[1] % GROUPS.get(value.type.elem, 1):
            return False
        if any(not is_packed(user) or k != 0 for user, k in value.uses) or self.must_store(value.op, value):
            return False
        row, column = (self.strides_unwrapped.of(value.op.operands[0], d) for d in range(2))
        return column == 1 and row is not None

    def _is_array_function(self, value: Value) -> bool:
        """Is it worth an array of its own, because all of it is computed faster than its elements one by one?"""
        dims = value.type.dims
        small = len(dims) > 1 and dims[-1] % ARRAY_ROW == 0 and value.type.numel <= ARRAY_MOST
        return small and not self.keep_loads and value.defining in ARRAY_FUNCTIONS and value.type.elem == "f32"

    def _recomputed_by_broadcast(self, value: Value, cost: int) -> bool:
        """Would a broadcast along an outer dimension evaluate the value once per repetition?"""
        for user, _ in value.uses:
            if user.name != "tt.broadcast":
                continue
            if cost == LOAD and user.block.parent in self.row_loops:
                continue  # a row at a time: read again from the cache
            source, target = value.type.dims, user.result.type.dims
            repeated = [d for d, size in enumerate(source) if size == 1 and target[d] > 1]
            outer = any(size > 1 for d in repeated for size in source[d + 1 :])
            if outer and (cost == SLOW or target[0] >= 4):
                return True
        return False

    def _cost(self, value: Value) -> int:
        """0: cheap enough to evaluate at every use; LOAD: contains a load; SLOW: contains a slow operation."""
        return self._weigh(value)[0]

    def _weigh(self, value: Value) -> tuple[int, int]:
        if self.place[value] is not Place.INLINE or value in self.stored:
            return 0, 0
        if value not in self._costs:
            inner = [self._weigh(operand) for operand in value.op.operands]
            length = sum(n for _, n in inner) + (value.defining not in SHAPE_OPS)
            own = SLOW if _is_slow(value.op) or length > LONG_CHAIN else LOAD * (value.defining == "tt.load")
            self._costs[value] = max([own, *(cost for cost, _ in inner)]), length
        return self._costs[value]


def scaled_rows(value: Value) -> tuple[Value, Value] | None:
    """A matrix and the numbers its rows are multiplied by, if `value` is `matrix * numbers[:, None]`."""
    if value.defining != "arith.mulf" or value.type.elem != "f32":
        return None
    left, right = value.op.operands
    for matrix, column in ((left, right), (right, left)):
        if (numbers := of_rows(column)) is not None:
            return matrix, numbers
    return None


def _is_slow(op: Op) -> bool:
    """Division by a constant power of two is a shift."""
    if op.name in INTEGER_DIVISIONS:
        divisor = constant_int(op.operands[1]) or 0
        return divisor <= 0 or divisor & (divisor - 1) != 0
    return op.name in EXPENSIVE


def _storage(value: Value) -> Place:
    return Place.ARRAY if value.type.is_tensor else Place.SCALAR


def address_values(ops: list[Op]) -> set[Value]:
    """Integer values that only feed pointer arithmetic linearly: these may not wrap, so C may use signed arithmetic."""
    marked: set[Value] = set()
    pending = [op.operands[1] for op in ops if op.name == "tt.addptr"]
    while pending:
        value = pending.pop()
        if value in marked:
            continue
        marked.add(value)
        if value.op is not None and value.defining in _LINEAR:
            pending.extend(value.op.operands)
    return marked
