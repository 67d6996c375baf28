"""How long a step would take on a GPU, from its bytes, operations, programs and launches. Never measured: a model."""

from codegen.predict.accelerators import ACCELERATORS, Accelerator, of_target
from codegen.predict.step import Assumptions, Bound, Prediction, predict

__all__ = ["ACCELERATORS", "Accelerator", "Assumptions", "Bound", "Prediction", "of_target", "predict"]
