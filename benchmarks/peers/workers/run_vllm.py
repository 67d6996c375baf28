"""vLLM's CPU engine as a side, bf16, greedy: run_vllm.py MODEL THREADS.

The engine runs in a process of its own, as vLLM does unless told otherwise; VLLM_ENABLE_V1_MULTIPROCESSING=0 puts it in
this one, which saves a hop per token. Prefix caching is off; `enforce_eager` is not set, so it compiles at load, which
takes a minute.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from serve import Generate, by_difference, serve

MAX_TOKENS, MAX_REQUESTS = 2048, 8
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def main(model: str, threads: int) -> None:
    """Serve one model."""
    os.environ |= {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads])))
    import vllm

    def load() -> tuple[Generate, dict[str, Any]]:
        engine = vllm.LLM(
            model=model,
            dtype="bfloat16",
            max_model_len=MAX_TOKENS,
            max_num_seqs=MAX_REQUESTS,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            seed=0,
        )

        def generate(asked: list[list[int]], new: int) -> None:
            sampling = vllm.SamplingParams(
                temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True, detokenize=False
            )
            engine.generate([{"prompt_token_ids": prompt} for prompt in asked], sampling, use_tqdm=False)

        return by_difference(generate), {"version": vllm.__version__}

    serve(load)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
