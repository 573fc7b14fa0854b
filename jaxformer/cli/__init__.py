"""The `jaxformer` command: one file a command, all of them listed in commands.py."""
