"""Modules of PyTorch as users write them, for tests and measurements of `torch.compile(backend="hlogym")`."""
