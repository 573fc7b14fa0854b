"""The `jaxformer` command: one file for each subcommand or group of them, all listed in commands.py."""
