"""Run a rendered package: weights, buffers, graphs, engine, checkpoints."""
