"""Calls and taps of one side without a pair on the other."""

from jaxformer.parity.capture.attention_calls import is_attention
from jaxformer.parity.capture.call_sites import ATTENTION
from jaxformer.parity.capture.module_paths import last, parameters_of
from jaxformer.parity.report.summarize import say_names
from jaxformer.parity.run.trace import Traced


def unpaired_calls(traced: Traced) -> dict[str, list[str]]:
    """Calls that only one side has, by the report's fields."""
    paired, calls = set(traced.pairs.values()), traced.reference.calls
    return {
        "jax_only": [str(site) for site in traced.normal_run.outputs if site not in traced.pairs],
        "torch_only": [str(site) for site, record in calls.items() if site not in paired and not is_attention(site, record)],
    }


def unpaired_taps(traced: Traced) -> list[str]:
    """jax's taps without a pair, in words; if some are of attention, torch's softmaxes without a pair too."""
    paired, taps = set(traced.pairs.values()), [site for site in traced.normal_run.taps if site not in traced.pairs]
    every = [str(site) for site in traced.normal_run.taps]
    said = say_names([str(site) for site in taps], every)
    if any(last(site.path) in ATTENTION for site in taps):
        shown = [str(site) for site, record in traced.reference.calls.items() if is_attention(site, record)]
        free = [str(site) for site in traced.reference.calls if str(site) in shown and site not in paired]
        said.append(f"where torch has {', '.join(say_names(free, shown)) or 'no softmax'}")
    bare = [site for site in taps if last(site.path) not in ATTENTION and not parameters_of(site.path, traced.parameters)]
    if bare:
        names = ", ".join(say_names([str(site) for site in bare], every))
        said.append(f"since no parameter of jax's is called {names}: name a tap as its parameters are named{such(traced)}")
    return said


def such(traced: Traced) -> str:
    """', as layers.0.norm is'"""
    first = next(iter(traced.parameters), "")
    return f", as '{first}' is" if first else ""
