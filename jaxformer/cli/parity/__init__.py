"""The `jaxformer parity` commands."""
