"""Every part of a transformer. Where PyTorch has the function, PyTorch's own is used: it is the reference."""
