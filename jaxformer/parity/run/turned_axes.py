"""Axes that one module alone gives in another order: a relative bias of the wrong sign is a right one transposed.

Wherever axes have one size, an array may be torch's in more than one order. Which one is meant is told by what comes of it.
"""

from collections import Counter
from collections.abc import Callable, Container, Mapping

from jaxformer.parity.capture.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.numerics.axis_order import Order
from jaxformer.parity.report.summarize import alike
from jaxformer.parity.run.isolated import Isolated


def odd_orders(isolated: Isolated, left_out: Container[Site]) -> dict[ArrayKey, Order]:
    """Of the arrays whose axes stand otherwise than those of other modules, or, where no other has as many, than in torch: the
    order that is usual, where it fits too."""
    kept = {place: order for place, order in isolated.orders.items() if place.site != CALL and place.site not in left_out}
    shapes = {
        mismatch.place: mismatch.theirs.shape
        for mismatch in isolated.mismatches
        if mismatch.place is not None and mismatch.place in kept
    }
    found = {}
    for place, shape in shapes.items():
        order, path = kept[place], alike(place.site.path)
        others = (each for it, each in kept.items() if len(each) == len(order) and alike(it.site.path) != path)
        usual = next((each for each, _ in Counter(others).most_common(1)), tuple(range(len(order))))
        if usual != order and [shape[axis] for axis in usual] == [shape[axis] for axis in order]:
            found[place] = usual
    return found


def clearer(once: Isolated, again: Isolated, odd: Mapping[ArrayKey, Order], diverging: Callable[[Isolated], set[Site]]) -> bool:
    """Whether, with the usual orders, makers of the odd arrays diverge, of the others fewer than before, and none anew."""
    before, after = diverging(once), diverging(again)
    own = {mismatch.owner for mismatch in again.mismatches if mismatch.place in odd}
    return bool(after & own) and after - own < before
