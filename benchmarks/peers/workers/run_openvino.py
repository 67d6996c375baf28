"""OpenVINO GenAI as a side, one request at a time, greedy: run_openvino.py GGUF THREADS.

It reads GGUF files of llama and qwen models. f16 is the format in which it is fastest here, and as wide as bf16.
"""

from __future__ import annotations

import sys
from typing import Any

from serve import Generate, by_difference, serve


def main(model: str, threads: int) -> None:
    """Serve one model."""
    import numpy
    import openvino
    import openvino_genai

    def load() -> tuple[Generate, dict[str, Any]]:
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        pipeline = openvino_genai.LLMPipeline(model, "CPU", **options)

        def generate(asked: list[list[int]], new: int) -> None:
            ids = numpy.array(asked, dtype=numpy.int64)
            inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = config.min_new_tokens = new
            config.ignore_eos, config.do_sample = True, False
            pipeline.generate(inputs, config)

        return by_difference(generate), {"version": openvino.__version__}

    serve(load)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
