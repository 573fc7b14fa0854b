"""jaxformer and torch_ref read line against line: the same files, classes, attributes, methods, functions and arguments."""

import ast
from functools import cache
from pathlib import Path

import pytest

import jaxformer

ROOT = Path(jaxformer.__file__).parents[1]
PACKAGES = ("nn", "models", "decoding", "training")

NO_TWIN = {
    "decoding/prepare.py": "torch compiles nothing",
    "nn/dropout.py": "torch.nn.Dropout",
    "nn/linear.py": "torch.nn.Linear",
    "nn/matmul.py": "torch's own gradient of a product is fast already",
    "nn/precision.py": "torch's own functions sum in float32 or wider",
    "training/averaging.py": "runs are trained on one side",
    "training/bleu.py": "runs are trained on one side",
    "training/checkpoint.py": "runs are trained on one side",
    "training/plots.py": "runs are trained on one side",
    "training/runs.py": "runs are trained on one side",
    "training/trained.py": "the weights file is the twin's already",
    "training/translator.py": "runs are trained on one side",
}
"""Files that the twin has not -> the reason."""

LOOPS = "what is compiled here is a plain loop there, so each side has helpers of its own"
ONE_SIDED = {
    "decoding/beam.py": LOOPS,
    "decoding/choose.py": LOOPS,
    "decoding/generate.py": LOOPS,
    "decoding/rules.py": LOOPS,
    "decoding/sampling.py": "a compiled program takes its settings as arrays",
    "decoding/translation.py": LOOPS,
    "models/build.py": "torch has no shapes without a model but the meta device",
    "models/init.py": "torch draws in place",
    "nn/stack.py": "a stack is one block with a layer axis, which a scan goes through, and a list of blocks in torch",
    "training/loop.py": "runs are trained on one side",
    "training/losses.py": "the fused loss of JAX is torch.nn.functional.cross_entropy",
    "training/optimizers.py": "optax's optimizers are functions, torch's are objects that change the model",
    "training/schedules.py": "a compiled program takes the step as an array",
    "training/step.py": "a train step is a pure function, and changes the model in torch",
}
"""Files in which either side has helpers that the other has not -> the reason. What both have is compared all the same."""

RATE = "torch.nn.Dropout holds the rate and the mode"
LEAF = "the leaf has the framework's own name"
STEP = "torch's optimizer and scheduler are objects of their own"
BY_NUMBERS = "compiled once for all settings, it takes them as numbers"
DIFFERENT = {
    "nn/attention.py: MultiHeadAttention: dropout_rate | dropout": RATE,
    "nn/attention.py: attention(dropout_rate) | attention(dropout)": RATE,
    "nn/blocks.py: Block: dropout_rate | dropout": RATE,
    "nn/embeddings.py: InputEmbedding: dropout_rate | dropout": RATE,
    "nn/feedforward.py: FeedForward: dropout_rate | dropout": RATE,
}
"""What differs within a file -> the reason."""

Members = dict[str, tuple[str, ...]]


def files(package: str) -> set[str]:
    folders = [ROOT / package / each for each in PACKAGES]
    return {str(path.relative_to(ROOT / package)) for folder in folders for path in folder.glob("*.py")}


TWINS = sorted(files("torch_ref") - {f"{package}/__init__.py" for package in PACKAGES})


@cache
def members(path: Path) -> Members:
    """Every function, method and class of a file: its arguments, or a class's attributes; a draw's source is left out."""
    found: Members = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = arguments(node)
        elif isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            fields = [
                each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            ]
            found[node.name] = (*fields, *(name for method in methods for name in attributes(method)))
            found |= {f"{node.name}.{'__call__' if m.name == 'forward' else m.name}": arguments(m) for m in methods}
    return found


def arguments(node: ast.FunctionDef) -> tuple[str, ...]:
    """Their names; where random numbers come from is each framework's own: a key, nnx.Rngs, a torch.Generator."""
    drawn = ("PRNGKeyArray", "Rngs", "torch.Generator")
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return tuple(each.arg for each in every if not any(kind in ast.unparse(each.annotation or node.args) for kind in drawn))


def attributes(method: ast.FunctionDef) -> list[str]:
    """What a constructor sets."""
    targets = [
        target
        for node in ast.walk(method)
        if isinstance(node, ast.Assign) and method.name == "__init__"
        for each in node.targets
        for target in (each.elts if isinstance(each, ast.Tuple) else [each])
    ]
    return list(dict.fromkeys(each.attr for each in targets if isinstance(each, ast.Attribute)))


def differences(file: str) -> set[str]:
    """Of a file and its twin, in words."""
    ours, theirs = members(ROOT / "jaxformer" / file), members(ROOT / "torch_ref" / file)
    said = {f"{file}: {name} | -" for name in ours if name not in theirs}
    said |= {f"{file}: - | {name}" for name in theirs if name not in ours}
    for name in ours.keys() & theirs.keys():
        one, other = ours[name], theirs[name]
        if one == other:
            continue
        only = [" ".join(each for each in mine if each not in yours) for mine, yours in ((one, other), (other, one))]
        assert any(only), f"{file}: the arguments of {name} are in another order"
        shown = [f"{name}({each})" for each in only] if is_call(name) else [f"{name}: {only[0]}", only[1]]
        said.add(f"{file}: {' | '.join(each or '-' for each in shown)}")
    return said


def is_call(name: str) -> bool:
    return "." in name or not name[0].isupper()


def is_one_sided(said: str) -> bool:
    return said.endswith(" | -") or ": - | " in said


def test_every_file_has_its_twin():
    assert files("jaxformer") - files("torch_ref") == set(NO_TWIN)
    assert not files("torch_ref") - files("jaxformer")


@pytest.mark.parametrize("file", TWINS)
def test_a_file_and_its_twin_have_the_same(file):
    found = {said for said in differences(file) if not (file in ONE_SIDED and is_one_sided(said))}
    assert found == {said for said in DIFFERENT if said.startswith(f"{file}:")}


def test_no_exception_is_there_for_nothing():
    assert all(any(map(is_one_sided, differences(file))) for file in ONE_SIDED)
    assert all([*NO_TWIN.values(), *ONE_SIDED.values(), *DIFFERENT.values()])
