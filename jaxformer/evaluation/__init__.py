"""Evaluation of the parity checker: jaxformer's models against their torch twins, and mutants that must be noticed."""
