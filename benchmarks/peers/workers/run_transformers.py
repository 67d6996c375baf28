"""transformers as a side, `generate` with a cache, eager, bf16: run_transformers.py MODEL THREADS."""

from __future__ import annotations

import os
import sys
from typing import Any

from serve import Generate, by_difference, serve


def main(model: str, threads: int) -> None:
    """Serve one model."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()

    def load() -> tuple[Generate, dict[str, Any]]:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
        loaded.generation_config.eos_token_id = None

        def generate(asked: list[list[int]], new: int) -> None:
            ids = torch.tensor(asked)
            loaded.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                use_cache=True,
                pad_token_id=2,
            )

        return by_difference(generate), {"version": transformers.__version__}

    serve(load)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
