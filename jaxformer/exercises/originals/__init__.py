"""PyTorch sides of the exercises."""
