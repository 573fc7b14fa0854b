"""Continue a torch run in JAX, and a JAX run in torch: weights, moments, steps and the optimizer's settings, bit for bit.

    optimizer, state = from_torch_training(torch_model, torch_optimizer, abstract(config), "gpt2", schedule=factor)
    state, loss = train_step(state, batch, key, loss=loss, optimizer=optimizer)
    weights, moments = to_torch_training(state, torch_model, torch_optimizer, "gpt2")
    torch_model.load_state_dict(weights)
    torch_optimizer.load_state_dict(moments)
    scheduler = LambdaLR(torch_optimizer, factor, last_epoch=int(state.step) - 1)

The PyTorch twin uses torch's own load_state_dict.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from jaxformer.config.settings import OptimizerConfig, OptimizerName, ScheduleConfig
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.host import host
from jaxformer.convert.registry import find_family
from jaxformer.convert.rules import Family, places, tensors_to_torch, tied_names, to_jax
from jaxformer.convert.state_dict import from_torch, to_tensor, to_torch
from jaxformer.errors import InputError, listed, type_of
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.schedules import Schedule
from jaxformer.training.step import TrainState
from jaxformer.validation.fields import check_kind, check_size, whole

NOT_HERE = {"amsgrad": False, "maximize": False, "nesterov": False, "dampening": 0}
"""Settings of torch's optimizers that make_optimizer does not have, and their values when off."""
COUNTED = (optax.ScaleByAdamState, optax.TraceState, optax.ScaleByScheduleState)
"""States of optax that hold numbers, wherever they stand in a chain."""


def from_torch_training(
    torch_model: Any,
    torch_optimizer: Any,
    model: PyTree,
    family: Family | str | None = None,
    *,
    schedule: ScheduleConfig | Schedule = ScheduleConfig(),
    clip_norm: float | None = None,
    step: int | None = None,
) -> tuple[optax.GradientTransformation, TrainState]:
    """Return the optimizer that continues torch's, and the state of the run: what `train_step` takes.

    `torch_optimizer` is an SGD, Adam or AdamW; rate, moments and decayed parameters are read from it, and parameters that it
    does not have are frozen. A scheduler and clipping are no part of it: `schedule` gives the factor of the rate at every step,
    from the first one on, and `clip_norm` is what torch.nn.utils.clip_grad_norm_ was given. `step` is the number of steps
    taken; Adam knows it, SGD does not. `model` and `family` are as in `from_torch`. InputError for what `make_optimizer` does
    not do, or for an incomplete state; ConversionError if the models do not fit.
    """
    rules = TWIN if family is None else find_family(family, model=model)
    whole = from_torch(torch_model, model, family)
    run = _TorchRun.read(torch_model, torch_optimizer, whole, rules)
    config = _config(torch_optimizer, clip_norm)
    trained = run.choose(dict.fromkeys(run.trained, True), "trains")
    decayed = run.choose({name: bool(group["weight_decay"]) for name, group in run.trained.items()}, "decays")
    optimizer = make_optimizer(
        config,
        schedule,
        decayed=lambda name, shape: decayed[name],
        frozen=None if all(trained.values()) else lambda name, shape: not trained[name],
    )
    count = jnp.int32(run.count_steps(step))
    moments = _filled(jax.eval_shape(optimizer.init, whole), count, lambda key: to_jax(run.moments(key), whole, rules))
    return optimizer, TrainState(count, whole, moments)


def _filled(state: PyTree, count: jax.Array, moment: Callable[[str], PyTree]) -> PyTree:
    """Fill an optimizer's state with torch's moments; `moment` returns them by torch's name."""

    def fill(node: Any) -> Any:
        if isinstance(node, optax.ScaleByAdamState):
            return optax.ScaleByAdamState(count, moment("exp_avg"), moment("exp_avg_sq"))
        if isinstance(node, optax.TraceState):
            return optax.TraceState(moment("momentum_buffer"))
        return optax.ScaleByScheduleState(count)

    return jax.tree.map(fill, state, is_leaf=lambda node: isinstance(node, COUNTED))


def _moments(state: PyTree) -> dict[str, PyTree]:
    """Return the moments that an optimizer's state has, by torch's names: the inverse of _filled."""
    found: dict[str, PyTree] = {}
    for node in jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, COUNTED)):
        if isinstance(node, optax.ScaleByAdamState):
            found |= {"exp_avg": node.mu, "exp_avg_sq": node.nu}
        elif isinstance(node, optax.TraceState):
            found |= {"momentum_buffer": node.trace}
    return found


def to_torch_training(
    state: TrainState, torch_model: Any, torch_optimizer: Any, family: Family | str | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `torch_model.load_state_dict` and `torch_optimizer.load_state_dict` take, to go on in torch.

    Neither object is changed here. `torch_optimizer` keeps its settings: make it as for the first step. ConversionError if the
    models do not fit, InputError if the optimizers do not.
    """
    check_kind("state", state, TrainState, "the TrainState that training goes on with")
    rules = TWIN if family is None else find_family(family, model=state.model)
    weights = to_torch(state.model, family, like=torch_model)
    run, name = _TorchRun.read(torch_model, torch_optimizer, state.model, rules), _name(torch_optimizer)
    trees, momentum = _moments(state.moments), any(group.get("momentum") for group in torch_optimizer.param_groups)
    wanted = ["exp_avg", "exp_avg_sq"] if name != "sgd" else ["momentum_buffer"] if momentum else []
    if [*trees] != wanted:
        held, kept = (" and ".join(each) or "no moments" for each in (trees, wanted))
        raise InputError(f"the JAX run has {held}, torch's {type(torch_optimizer).__name__} {kept}; make it as JAX's was made")
    arrays = {key: tensors_to_torch(tree, rules, run.zeros) for key, tree in trees.items()}
    counted = {} if name == "sgd" else {"step": np.float32(state.step)}
    made = copy.deepcopy(torch_optimizer.state_dict())
    for group, held in zip(made["param_groups"], torch_optimizer.param_groups, strict=True):
        group.setdefault("initial_lr", group["lr"])
        for number, parameter in zip(group["params"], held["params"], strict=True):
            if (own := run.names.get(id(parameter), "")) in run.trained:
                each = {key: to_tensor(np.array(array[own])) for key, array in arrays.items()}
                made["state"][number] = {key: to_tensor(np.array(value)) for key, value in counted.items()} | each
    return weights, made


class _TorchRun(NamedTuple):
    """Parameters of a torch run by their names in the family's rules."""

    zeros: Mapping[str, np.ndarray]
    """Zeros for every tensor that the JAX model has."""
    trained: Mapping[str, Mapping[str, Any]]
    """Optimizer group of each trained parameter."""
    state: Mapping[str, Mapping[str, Any]]
    """Optimizer state of each trained parameter; empty before the first step."""
    names: Mapping[int, str]
    """Name of each parameter, by its id."""
    leaves: Mapping[str, list[str]]
    """Names in torch of each tensor of the JAX model."""

    @classmethod
    def read(cls, torch_model: Any, torch_optimizer: Any, model: PyTree, rules: Family) -> "_TorchRun":
        """Read a torch run; InputError if the two models do not train the same parameters."""
        _name(torch_optimizer)
        if not hasattr(torch_model, "named_parameters"):
            raise InputError(f"torch_model is {type_of(torch_model)}; give the torch.nn.Module that the optimizer trains")
        found = places(model, rules)
        leaves: dict[str, list[str]] = {}
        for torch_name, parts in found.items():
            for place in parts.values():
                leaves.setdefault(place.name, []).append(torch_name)
        ties = {name: group for group in tied_names(rules) for name in group}
        called, held = {id(parameter): name for name, parameter in torch_model.named_parameters()}, torch_model.state_dict()
        names: dict[int, str] = {}
        for key, name in called.items():
            there = [it for it in ties.get(name, [name]) if it in found]
            if len(there) > 1 and not all(it in dict(torch_model.named_parameters()) for it in there):
                raise InputError(f"torch ties {' and '.join(there)}, and the JAX model trains both; build it with tied=True")
            names[key] = name if name in found else next(iter(there), name)
        groups = [(group, p) for group in torch_optimizer.param_groups for p in group["params"] if p.requires_grad]
        if any(id(p) not in called for _, p in groups):
            raise InputError("torch's optimizer has a parameter that the torch model has not; give the model that it trains")
        trained = {names[id(p)]: group for group, p in groups}
        if alone := [name for name in trained if name not in found]:
            why = rules.why_ignored(alone[0])
            raise InputError(f"torch trains {listed(alone)}, and the JAX model has none ({why}); freeze it with requires_grad_")
        state = {names[id(p)]: torch_optimizer.state.get(p, {}) for _, p in groups}
        there = {name: next(it for it in ties.get(name, [name]) if it in held) for name in found}
        zeros = {name: np.zeros_like(host(held[it])) for name, it in there.items()}
        return cls(zeros, trained, state, names, leaves)

    def choose(self, chosen: Mapping[str, bool], does: str) -> dict[str, bool]:
        """Return for each JAX tensor True if chosen; InputError if its torch parameters differ in that."""
        found = {leaf: {chosen.get(name, False) for name in names} for leaf, names in self.leaves.items()}
        for leaf, kinds in found.items():
            if len(kinds) > 1:
                some, other = (next(it for it in self.leaves[leaf] if chosen.get(it, False) is kind) for kind in (True, False))
                raise InputError(f"torch {does} {some} and not {other}, which are one tensor in JAX, {leaf}; treat them alike")
        return {leaf: kinds == {True} for leaf, kinds in found.items()}

    def count_steps(self, given: int | None) -> int:
        """Return the number of steps taken; InputError if parameters differ in it, or if it is unknown."""
        begun = {name: own for name, own in self.state.items() if any(value is not None for value in own.values())}
        if missing := [name for name in self.state if begun and name not in begun]:
            raise InputError(
                f"{listed(missing)} of torch's optimizer have no state, others have; freeze what torch never moves"
            )
        counts = sorted({int(own["step"]) for own in begun.values() if "step" in own})
        if len(counts) > 1:
            raise InputError(f"torch's parameters have made {listed([*map(str, counts)])} steps; all need the same number")
        known = counts[0] if counts else given
        if known is None and (begun or not self._counts()):
            raise InputError("torch's SGD does not count its steps; give step, the number taken")
        known = known or 0
        if given is not None:
            check_size("step", given := whole(given), least=0)
            if given != known:
                raise InputError(f"step = {given}, and torch's optimizer has made {known}; give that, or leave it out")
        return known

    def _counts(self) -> bool:
        return all("betas" in group for group in self.trained.values())

    def moments(self, key: str) -> dict[str, np.ndarray]:
        """Moments of every tensor; zero before the first step, and for frozen tensors."""
        found = {name: own[key] for name, own in self.state.items() if own.get(key) is not None}
        return {name: host(found[name]) if name in found else zero for name, zero in self.zeros.items()}


def _name(torch_optimizer: Any) -> OptimizerName:
    """Return sgd, adam or adamw; InputError for others, and for settings that make_optimizer does not have."""
    kind = type(torch_optimizer)
    name = kind.__name__.lower()
    if not kind.__module__.startswith("torch.optim") or name not in get_args(OptimizerName):
        raise InputError(
            f"torch's optimizer is a {kind.__module__}.{kind.__name__}; only torch.optim's SGD, Adam and AdamW go on"
        )
    for group in torch_optimizer.param_groups:
        if wrong := next((key for key, off in NOT_HERE.items() if group.get(key, off) != off), None):
            raise InputError(
                f"torch's {kind.__name__} has {wrong} = {group[wrong]}; make_optimizer has none, so that it cannot go on"
            )
    return "adamw" if torch_optimizer.param_groups[0].get("decoupled_weight_decay") else cast(OptimizerName, name)


def _config(torch_optimizer: Any, clip_norm: float | None) -> OptimizerConfig:
    """Read the optimizer's settings; InputError if groups differ in more than which parameters decay."""
    groups = torch_optimizer.param_groups

    def shared(called: str, values: Iterable[Any]) -> Any:
        one, *others = sorted(set(values)) or [0.0]
        if others:
            said = " and ".join(map(str, (one, *others)))
            raise InputError(f"torch's groups have {called} {said}; make_optimizer has one for all")
        return one

    beta1, beta2 = shared("betas", (tuple(map(float, group.get("betas", (0.9, 0.999)))) for group in groups))
    return OptimizerConfig(
        name=_name(torch_optimizer),
        learning_rate=shared("learning rates", (float(group.get("initial_lr", group["lr"])) for group in groups)),
        momentum=shared("momentum", (group.get("momentum", 0.0) for group in groups)),
        beta1=beta1,
        beta2=beta2,
        epsilon=shared("epsilon", (group.get("eps", 1e-8) for group in groups)),
        weight_decay=shared("weight decays", (each for group in groups if (each := float(group["weight_decay"])))),
        clip_norm=clip_norm,
    )
