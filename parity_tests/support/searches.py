"""A search for causes in torch's code alone: another torch module is the port."""

import torch

from jaxformer.parity.diagnose.replays import is_called, replay_of
from jaxformer.parity.diagnose.search import Search
from jaxformer.parity.probe import excite
from jaxformer.parity.runs.session import Budget, Session
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.trace.reference import run_torch


def cause_between(torch_model, port, x, path="", *, tapped=True, session=None):
    """The cause that is found where a port gives another output, or the module at a path in it; both get the same weights.

    `tapped`: the port's modules are called by themselves; `session`: that of several searches.
    """
    torch_model, port = (excite(each.double().eval(), seed=1) for each in (torch_model, port))
    reference = run_torch(torch_model, (x,), watch=True, gradients=False)
    site, given = Site(path, 0) if path else CALL, []
    named = {name for name, _ in torch_model.named_modules() if name and tapped}
    boundaries = frozenset(site for site in reference.calls if site.path in named)
    torchs = reference.calls[site].output[0]
    replay = replay_of(reference, site, ArrayKey(site, "output", 0), boundaries - {site}, torchs)
    assert replay
    assert is_called(replay)
    assert replay.begins
    port.get_submodule(path).register_forward_hook(lambda module, arguments, output: given.append(output.numpy()))
    with torch.no_grad(), Budget(session or Session(seconds=600.0)) as budget:
        given_x = torch.from_numpy(x)
        port(given_x.double() if given_x.is_floating_point() else given_x)
        replay.compared = {replay.place: given[0]}
        search = Search(replay, replay.wanted, given[0], budget)
        return str(search.diagnosis() or search.of_two())
