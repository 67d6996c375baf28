"""Jinja text of kernels, step functions and package files; it prints what the plan decided and decides nothing."""
