"""Speed of the CPU backend against plain C and PyTorch: `python -m benchmarks.cpu_backend`."""
