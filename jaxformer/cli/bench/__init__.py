"""`jaxformer bench`: one file a command."""
