"""Parts of a transformer. PyTorch's own function is used wherever there is one: it is the reference."""
