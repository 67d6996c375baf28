"""The protocol of one step, executed on hashes instead of tensors: a fuzzer's target and an engine's oracle.

`machine` runs the buffers and operations of docs/architecture.md, `policy` holds what the host decides, `model` is
the abstract model and the sequential truth, `fuzz` compares the two. docs/protocol.md says how to use it.
"""

from dsl.reference.protocol.buffers import (
    Checkpoint,
    Phase,
    PrefillResult,
    ProtocolShape,
    SeatResult,
    SlotSnapshot,
    Supplied,
)
from dsl.reference.protocol.machine import PAD_SLOT_ID, ProtocolMachine
from dsl.reference.protocol.model import HashModel, Model, Sequential
from dsl.reference.protocol.pages import POISON, ProtocolError

__all__ = [
    "PAD_SLOT_ID",
    "POISON",
    "Checkpoint",
    "HashModel",
    "Model",
    "Phase",
    "PrefillResult",
    "ProtocolError",
    "ProtocolMachine",
    "ProtocolShape",
    "SeatResult",
    "Sequential",
    "SlotSnapshot",
    "Supplied",
]
