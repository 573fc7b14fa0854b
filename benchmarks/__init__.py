"""Side-by-side measurements against PyTorch."""
