"""Rates of rotary positions: other bases, and other ways in which slow rates are scaled; with their words."""

import math
from collections.abc import Iterator
from typing import Any

import torch

NEAR = 1e-5
OWN = {
    "plain": "{0} base {own:.6g}",
    "divided": "divides the {0} frequencies of base {own:.6g} by {by:.6g} (linear scaling)",
    "other": "scales the {0} frequencies by a rule of its own",
    "llama3": "scales the {0} frequencies as Llama 3 does",
    "yarn": "scales the {0} frequencies as YaRN does",
}
SMOOTHINGS = {
    "unscaled": "does not scale them: {0} base {base:g}",
    "between_divided": "does not smooth between: those are divided by {factor:.6g}",
    "between_undivided": "does not smooth between: those are not divided",
    "smoothed_inversely": "smooths them the other way round (the factor for 1 less the factor)",
    "inverted": "divides the fast ones by {factor:.6g}, not the slow ones (bounds, or the factor and 1 less that, exchanged)",
    "unbounded_above": "does not clip the smoothing factor at 1",
    "unbounded_below": "does not clip the smoothing factor at 0",
    "unbounded": "does not clip the smoothing factor",
    "turns_as_angles": "takes wavelengths as 1 / frequency, without 2 pi",
    "all_divided": "divides all of them by {factor:.6g}",
}
POWERS, WIDEST = (2, 4, 0.5, 0.25), 512
"""Powers of the base that amount to exponents of another width, and the largest width that is told by its number."""
LLAMA_OFFSET = -1 / 3
"""Smoothing factor at no turns of Llama 3's rule, whose bounds are 1 and 4 turns: assumed where one rate alone is between."""


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
    if near:
        return f"{{0}} base {{value}} = base^{near:g}: exponents {2 * near:g}i / width for 2i / width"
    other = round(args["width"] / power) if power > 0 else 0
    fits = 0 < other <= WIDEST and other != args["width"] and math.isclose(power * other, args["width"], rel_tol=NEAR)
    return "{0} base {value}" + (f": exponents 2i / {other} for 2i / {args['width']}" if fits else "")


def plain_rates(width: int, base: float) -> torch.Tensor:
    """Compute base^(-2i / width)."""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)


def smoothings(rates: torch.Tensor, width: int) -> Iterator[tuple[str, dict[str, float], torch.Tensor]]:
    """Other rates, with keys of `SMOOTHINGS` and arguments, where slow rates are divided by a factor and those between by parts
    of it."""
    ends = {float(f"{float(rates[i] / rates[i + 1]) ** len(rates):.6g}") for i in (0, len(rates) - 2) if len(rates) > 1}
    for base in sorted(ends):
        plain = plain_rates(width, base)
        parts = (rates / plain).clamp(max=1.0)
        low = parts.min()
        if (rates > plain * (1 + NEAR)).any() or not 0 < low < 1 - NEAR:
            continue
        args = {"base": base, "factor": float(1 / low)}
        yield "unscaled", args, plain
        between = is_between(parts)
        if between.any():
            yield "between_divided", args, torch.where(between, plain * low, rates)
            yield "between_undivided", args, torch.where(between, plain, rates)
            yield "smoothed_inversely", args, torch.where(between, plain * (1 + low - parts), rates)
        yield "inverted", args, plain * (1 + low - parts)
        for how, smoothing in other_clips((parts - low) / (1 - low), plain):
            yield how, args, plain * (low + (1 - low) * smoothing)
        yield "all_divided", args, plain * low


def is_between(parts: torch.Tensor) -> torch.Tensor:
    """True for rates that are neither kept nor divided by the whole factor."""
    return (parts > parts.min() * (1 + NEAR)) & (parts < 1 - NEAR)


def other_clips(smoothing: torch.Tensor, plain: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Other smoothing factors, where torch's are a straight line, clipped to 0 to 1: over the rates (Llama 3) or their index
    (YaRN)."""
    between = ((smoothing > NEAR) & (smoothing < 1 - NEAR)).nonzero().flatten()
    for by in (plain, torch.arange(len(plain), dtype=plain.dtype)):
        if len(between) > 1:
            slope = (smoothing[between[-1]] - smoothing[between[0]]) / (by[between[-1]] - by[between[0]])
            offset = smoothing[between[0]] - slope * by[between[0]]
        elif len(between) and by is plain:
            offset = torch.tensor(LLAMA_OFFSET, dtype=plain.dtype)
            slope = (smoothing[between[0]] - offset) / by[between[0]]
        else:
            return
        line = slope * by + offset
        if torch.allclose(line.clamp(0, 1), smoothing, rtol=0, atol=1e-3):
            yield "unbounded_above", line.clamp(min=0)
            yield "unbounded_below", line.clamp(max=1)
            yield "unbounded", line
            if by is plain:
                yield "turns_as_angles", (2 * math.pi * slope * by + offset).clamp(0, 1)


def scaling_of(rates: torch.Tensor, width: int) -> str:
    """Name the rule, 'llama3' or 'yarn', by the frequencies between those that are kept and those that are divided: Llama 3's
    are scaled by their number of turns, YaRN's by their index. '' for others, or where there are too few to tell."""
    for plain in (plain for which, _, plain in smoothings(rates, width) if which == "unscaled"):
        parts = rates / plain
        some = is_between(parts).nonzero().flatten()
        for name, by in (("llama3", plain), ("yarn", torch.arange(len(rates), dtype=rates.dtype))):
            if len(some) > 2:
                slopes = parts[some].diff() / by[some].diff()
                if torch.allclose(slopes, slopes[:1].expand_as(slopes), rtol=1e-3):
                    return name
    return ""
