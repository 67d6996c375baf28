"""What a spec means: small eager PyTorch functions over a dict of weights, one module per layer kind."""
