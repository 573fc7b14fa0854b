"""The comparison of a torch model with a JAX model, for any pair of models.

The sub-packages and files, in the order in which they may import; the data go the same way:

    numerics          how far two arrays are apart, the order of their axes, float64
    report            what was found, and how it is shown
    probe             parameters and inputs that leave no bug unseen
    trace             calls inside of a running model; what torch gives, recorded once
    pairing           which tensor, module and array is which
    runs              the JAX model, as a whole and module by module
    diagnose          why a module differs: the search for a mutation that gives jax's array
    attribute         which modules diverge, and what each check says
    training          both sides trained step beside step
    decoding          the logits of each step with a cache, and tokens that both sides write
    isolate           a comparison in a process of its own
    validate          the two models that are given
    compare           all of it in one call
    testing           one call in a test
"""
