"""Which tensor of the JAX model is which of torch's."""
