"""Replays of torch's calls for a difference: of the code that may have made an array, and of its backward pass."""

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxformer.parity.numerics.metrics import error, over
from jaxformer.parity.runs.gradients_of_weights import of_own_weights
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site, ancestors, below
from jaxformer.parity.trace.reference import Reference

if TYPE_CHECKING:
    from jaxformer.parity.diagnose.backward import Backward
    from jaxformer.parity.diagnose.replay import Replay


def replays_of_mismatch(traced: Traced, mismatch: Mismatch, *, near: bool) -> Iterator["Replay"]:
    """Yield replays of torch's calls whose code may have made an array.

    A tap does not record its inputs. Its code is that of the call around it, and then of the nearest call whose inputs jax
    shows too, since jax's code before a tap may begin that early. `near` leaves out the last.
    """
    if mismatch.place is None or (traced.draws and traced.draws.differences()):
        return  # random numbers that only one side draws are a cause already
    site, part, number = mismatch.place
    place, owner = ArrayKey(traced.pairs[site], part, number), traced.pairs[mismatch.owner]
    seen = {each.place.site for each in traced.isolated.mismatches if each.place and each.place.part == "inputs"}
    owners = [owner]
    if mismatch.child is None and mismatch.owner not in seen and owner not in (CALL, Site("", 0)):
        around = [*(Site(path, 0) for path in ancestors(owner.path)), CALL]
        whole = {CALL, *(place.site for place in traced.boundaries if place.part == "inputs")}
        owners = [next(each for each in around if each in those) for those in ({CALL, *traced.reference.calls}, whole)]
    several = [*dict.fromkeys(owners)]
    for each in several[:-1] if near else several:
        replay = replay_at(traced, each, place, mismatch.torch)
        if replay and not is_called(replay):  # another method of the module than `forward` runs its code
            replay = replay_at(traced, CALL, place, mismatch.torch)
        if replay and is_whole(traced, place) and traced.normal_run.weights is not None:
            replay.jax_gradients = traced.gradients
        if replay:
            yield replay


def replay_at(traced: Traced, owner: Site, place: ArrayKey, wanted: np.ndarray) -> "Replay | None":
    """Return the replay of torch's call `owner` up to the array at a place, beside what jax has; None without torch's model."""
    left, buffers = {*traced.valid, *traced.unfit}, traced.reference.buffers
    boundaries = frozenset(t for j, t in traced.pairs.items() if j not in left and t.path not in buffers)
    if replay := replay_of(traced.reference, owner, place, boundaries, wanted):
        replay.constants, replay.compared = traced.constants, traced.compared
    return replay


def replay_of_values(traced: Traced, owner: Site) -> "Replay | None":
    """Return the replay of torch's call `owner` up to its first output; None without torch's model, or if another method than
    `forward` is called."""
    replay = replay_at(traced, owner, ArrayKey(owner, "output", 0), traced.reference.calls[owner].output[0])
    return replay if replay and is_called(replay) else None


def is_called(replay: "Replay") -> bool:
    """True if a run of the model calls the `forward` of the replay's owner; its arguments are noted in the replay."""
    from jaxformer.parity.diagnose.modules import intercepted
    from jaxformer.parity.diagnose.replay import Reached, running

    calls = 0

    def noted(path: str, forward: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == replay.owner.call + 1:
            replay.arguments = args, kwargs
            raise Reached
        return forward(*args, **kwargs)

    if replay.owner == CALL:
        return True
    with running(), intercepted({replay.owner.path: replay.module}, noted), suppress(Reached):
        replay.run_model()
        return False
    return True


def is_whole(traced: Traced, place: ArrayKey) -> bool:
    """True if gradients are those of an array: it is the only output of the user's call, or of the whole model if the call
    returns that unchanged; or the only output of the call that differs."""
    outputs = traced.reference.calls[CALL].output
    if place.site not in (CALL, Site("", 0)) or place.part != "output":
        return False
    if len(outputs) > 1:
        both = zip(traced.normal_run.outputs[CALL], outputs, strict=True)
        others = (error(*each) for i, each in enumerate(both) if i != place.number)
        return place.site == CALL and not any(over(each, "activation") for each in others)
    array = traced.reference.calls[place.site].output[place.number]
    return all(np.array_equal(array, only, equal_nan=True) for only in outputs)


def backward_of(traced: Traced, mismatch: Mismatch) -> "Backward | None":
    """Return the replay of the backward pass of torch's call; None if torch's model is not available."""
    if traced.reference.source is None:
        return None
    from jaxformer.parity.diagnose.backward import Backward, flat

    owner, boundaries = traced.pairs[mismatch.owner], traced.boundaries
    if mismatch.place is None and set(traced.pairs) == {CALL}:
        return backward_of_call(traced)
    if mismatch.place is None:
        jax, torch = of_own_weights(traced, mismatch.owner)
        return Backward(traced.reference, owner, tuple(torch), boundaries, flat(jax.values()), flat(torch.values()))
    site, part, number = mismatch.place
    place = ArrayKey(traced.pairs[site], {"input_gradients": "inputs"}.get(part, "output"), number)
    return Backward(traced.reference, owner, place, boundaries, mismatch.jax, mismatch.torch)


def backward_of_call(traced: Traced) -> "Backward":
    """Return the replay of the backward pass of torch's whole call, for the gradients of all weights and float inputs."""
    from jaxformer.parity.diagnose.backward import Backward, flat

    names = tuple(traced.reference.gradients)
    jax, torch = (flat(side[name] for name in names) for side in (traced.gradients, traced.reference.gradients))
    return Backward(traced.reference, CALL, names, set(), jax, torch)


def replay_of(
    reference: Reference, owner: Site, place: ArrayKey, boundaries: frozenset[Site], wanted: np.ndarray
) -> "Replay | None":
    """Return the replay of the call `owner`; None if the reference was loaded from a folder, without torch's model."""
    if (source := reference.source) is None:
        return None
    import torch

    from jaxformer.parity.diagnose.replay import Replay

    model = copy.deepcopy(source.module).double().eval().requires_grad_(False)
    tensors = [torch.tensor(array) for array in reference.inputs]
    tensors = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    inner = frozenset(
        site
        for site in boundaries
        if site.path and site != CALL and (owner == CALL or below(site.path, owner.path)) and site.path != owner.path
    )

    def run_model() -> Any:
        with torch._C.DisableTorchFunction():  # code may change its inputs; copying them is no operation of its own
            given = [tensor.clone() for tensor in tensors]
        return source.call(model, *given)

    return Replay(
        model,
        run_model,
        owner,
        place,
        inner,
        wanted,
        inside=source.inside,
        cotangent=reference.cotangent,
        call_inputs=tensors,
        originals=[*zip(tensors_in(model), tensors_in(source.module), strict=True)],
    )


def tensors_in(model: Any) -> list[Any]:
    """Parameters and buffers of a model."""
    return [*model.parameters(), *model.buffers()]
