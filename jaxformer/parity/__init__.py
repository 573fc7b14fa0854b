"""Comparison of a torch model with a JAX model, for any pair of models.

Sub-packages and files, in the order in which they may import each other; data flows in the same order:

    numerics          distance between two arrays, the order of their axes, float64
    report            results of a comparison, and their presentation
    probe             parameters and inputs that expose every bug
    trace             calls inside a running model; torch's arrays, recorded once
    pairing           which tensor, module and array corresponds to which
    runs              the JAX model, as a whole and module by module
    diagnose          causes of differences: the search for a mutation that gives jax's array
    reduce            the smallest call that differs, as a test that runs by itself
    attribute         which modules diverge, and the checks
    training          both sides trained step beside step
    decoding          the logits of each step with a cache, and tokens that both sides generate
    logprobs          log-probabilities of the same ids, a trainer's and a sampler's, and causes of a difference
    isolate           a comparison in a process of its own
    collect           results of the checks, in one report
    validate          validation of the two models and their inputs
    recording         the recording of a reference, torch's or JAX's
    summary           statistics in place of a reference's arrays
    large             models that do not fit into memory twice
    recorded          a JAX model and a recorded reference
    loss_cause        what the code of a training loss does otherwise
    compare           everything in one call
    testing           one call in a test
"""
