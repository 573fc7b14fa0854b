"""Models as programs that run without jaxformer."""
