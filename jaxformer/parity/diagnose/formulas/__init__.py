"""What a module may have computed: formulas with choices, a file a subject. A new formula or choice is written there alone."""

from jaxformer.parity.diagnose.formulas import attention, layers, norms, placed_attention

HYPOTHESES = (*norms.HYPOTHESES, *layers.HYPOTHESES, *placed_attention.HYPOTHESES, *attention.HYPOTHESES)
"""In the order in which they are tried."""
