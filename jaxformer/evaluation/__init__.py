"""Our own models against their PyTorch twins, and the bugs that have to be noticed."""
