"""Export of models as programs that run without jaxformer."""
