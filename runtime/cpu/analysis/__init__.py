"""Analyses of a function: effects, affine addresses, induction, masks, panels, placement."""
