"""`python -m runtime bench`: one module per scenario, and `tables` for people to read what they found.

A scenario returns JSON-ready figures. One that makes promises has `checks` among them: what was promised, and whether
it holds.
"""

from runtime.bench.chat import ChatOptions, run_chat
from runtime.bench.common import Model
from runtime.bench.cost import CostOptions, run_cost
from runtime.bench.decode import BenchOptions, run_bench
from runtime.bench.drafts import DraftsOptions, run_drafts
from runtime.bench.load import LoadOptions, run_load
from runtime.bench.startup import StartupOptions, run_startup

__all__ = [
    "BenchOptions",
    "ChatOptions",
    "CostOptions",
    "DraftsOptions",
    "LoadOptions",
    "Model",
    "StartupOptions",
    "run_bench",
    "run_chat",
    "run_cost",
    "run_drafts",
    "run_load",
    "run_startup",
]
