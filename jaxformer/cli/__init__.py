"""The `jaxformer` command: one file for each subcommand, all listed in commands.py."""
