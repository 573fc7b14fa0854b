"""The `jaxformer` command: one file a command."""
