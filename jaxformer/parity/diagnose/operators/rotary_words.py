"""Words for rotary positions: frequencies and their scalings, and which units are pairs."""

import math
from typing import Any

from jaxformer.parity.diagnose.operators.rotary_tables import LAYOUTS

WHOLE, NEAR = 1e-6, 1e-5
OWN = {
    "plain": "{0} base {own:.6g}",
    "divided": "divides the {0} frequencies of base {own:.6g} by {by:.6g} (linear scaling)",
    "other": "scales the {0} frequencies by a rule of its own",
    "llama3": "scales the {0} frequencies as Llama 3 does",
    "yarn": "scales the {0} frequencies as YaRN does",
}


def owned(args: dict[str, Any]) -> str:
    """Words for torch's frequencies."""
    return OWN[args.get("scaling") or args["how"]]


def based(args: dict[str, Any]) -> str:
    """Words for frequencies of another base, which are not scaled; those of another width have a power of the base."""
    if args["how"] != "plain":
        return "does not scale them: {0} base " + ("{base:g}" if "base" in args else "{value}")
    if "base" in args:
        return "{0} base {base:g}"
    power = math.log(args.get("value", args["own"])) / math.log(args["own"])
    near = next((each for each in POWERS if math.isclose(power, each, rel_tol=NEAR)), None)
    return "{0} base {value}" + (f" = base^{near:g}: exponents {2 * near:g}i / width for 2i / width" if near else "")


POWERS = (2, 4, 0.5, 0.25)
"""Powers of the base that amount to exponents of another width."""
SMOOTHINGS = {
    "unscaled": "does not scale them: {0} base {base:g}",
    "between_divided": "does not smooth between: those are divided by {factor:.6g}",
    "between_undivided": "does not smooth between: those are not divided",
    "smoothed_inversely": "smooths them the other way round (the factor for 1 less the factor)",
    "all_divided": "divides all of them by {factor:.6g}",
}


def paired(words: str) -> dict[str, str]:
    """Words for torch's pairs, {0}, and for the others, {1}, by torch's layout."""
    both = "half and half", "interleaved"
    return dict(zip(LAYOUTS, (words.format(*both), words.format(*both[::-1])), strict=True))
