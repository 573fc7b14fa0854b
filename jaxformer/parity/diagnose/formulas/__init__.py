"""Formulas that a module may have computed, one file per subject; a new formula or choice is added in its file alone."""

from jaxformer.parity.diagnose.formulas import attention, layers, norms, placed_attention

HYPOTHESES = (*norms.HYPOTHESES, *layers.HYPOTHESES, *placed_attention.HYPOTHESES, *attention.HYPOTHESES)
"""All hypotheses, in the order in which they are tried."""
