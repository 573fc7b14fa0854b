"""jaxformer and torch_ref read line against line: the same files, classes, attributes, methods, functions and arguments."""

import ast
from functools import cache
from pathlib import Path

import pytest

import jaxformer

ROOT = Path(jaxformer.__file__).parents[1]
PACKAGES = ("nn", "models", "decoding", "training")

NO_TWIN = {
    "decoding/layout.py": "torch's kernels read weights as they are",
    "decoding/prepare.py": "torch compiles nothing",
    "models/shown.py": "notebooks show torch's modules as their text",
    "nn/chunked_attention.py": "torch's fused attention keeps no scores",
    "nn/dropout.py": "torch.nn.Dropout",
    "nn/fused_attention.py": "torch.nn.functional.scaled_dot_product_attention",
    "nn/grouped.py": "torch goes through the experts in a loop",
    "nn/linear.py": "torch.nn.Linear, and torch's own gradient of a product is fast already",
    "nn/precision.py": "torch's own functions sum in float32 or wider",
    "training/chunked_loss.py": "torch holds all logits",
    "training/health.py": "runs are trained on one side",
    "training/norms.py": "training/torch_norms.py has those of torch, of any model",
    "training/size.py": "runs are trained on one side",
    "training/torch_norms.py": "training/norms.py has those of JAX",
    "training/watch.py": "runs are trained on one side",
    "training/torch_run.py": "torch has its own load_state_dict",
    "training/diagnostics.py": "runs are trained on one side",
}
"""Files that the twin has not -> the reason."""

LOOPS = "what is compiled here is a plain loop there, so each side has helpers of its own"
ONE_SIDED = {
    "decoding/beam.py": LOOPS,
    "decoding/choose.py": LOOPS,
    "decoding/generate.py": LOOPS,
    "decoding/likelihood.py": LOOPS,
    "decoding/sampling.py": "a compiled program takes its settings as arrays",
    "decoding/translation.py": LOOPS,
    "models/build.py": "torch has no shapes without a model but the meta device",
    "models/init.py": "torch draws in place",
    "nn/experts.py": "arrays of static shape are sorted by expert, where torch takes the rows of one expert after another",
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
NUMBERS = "a compiled program takes its settings as numbers"
OWN = "torch.nn has it"
KEEPS = "torch.softmax keeps the weights alone for its gradient"
PAD = "lists of ids end where they end, arrays are padded"
STATE = "in torch the model, its optimizer and its scheduler are changed in place; here they are one value"
DIFFERENT = {
    "decoding/beam.py: beam_search: numbers end size shape | beam n_tokens eos": NUMBERS,
    "decoding/beam.py: score: sums penalty | total beam": NUMBERS,
    "decoding/generate.py: generate_beam: pad | nothing": PAD,
    "decoding/sampling.py: constrain: tokens place ngram | chosen n_tokens eos": NUMBERS,
    "decoding/sampling.py: with_timestamps: place rules | begin latest end": NUMBERS,
    "decoding/sampling.py: repeats: length vocab_size | nothing": NUMBERS,
    "decoding/sampling.py: next_tokens: repetition_penalty temperature top_k top_p min_p | sampling": NUMBERS,
    "decoding/translation.py: read: size width | n_tokens": NUMBERS,
    "decoding/translation.py: translate_beam: pad | nothing": PAD,
    "nn/attention.py: MultiHeadAttention: dropout_rate | dropout": RATE,
    "nn/attention.py: attention: dropout_rate | dropout": RATE,
    "nn/blocks.py: Block: dropout_rate | dropout": RATE,
    "nn/cache.py: only jax has KVCache.grow": "a smaller cache is quicker to read where masked places are read too",
    "nn/convolution.py: only jax has Convolution": OWN,
    "nn/convolution.py: only jax has Convolution.__call__": OWN,
    "nn/convolution.py: only jax has Convolution.__init__": OWN,
    "nn/embeddings.py: Embedding: padding_idx table | nothing": OWN,
    "nn/embeddings.py: InputEmbedding: dropout_rate | dropout": RATE,
    "nn/embeddings.py: only jax has Embedding.__init__": OWN,
    "nn/experts.py: ExpertLinear: kernel | weight": LEAF,
    "nn/experts.py: Experts: path | nothing": "torch has one way",
    "nn/feedforward.py: FeedForward: dropout_rate | dropout": RATE,
    "nn/feedforward.py: only jax has clamp": OWN,
    "nn/feedforward.py: only jax has gelu": OWN,
    "nn/feedforward.py: only jax has gelu_tanh": OWN,
    "nn/heads.py: Head: kernel | weight": LEAF,
    "nn/blocks.py: LayerScale: scale | weight": LEAF,
    "nn/experts.py: ExpertScale: scale | weight": LEAF,
    "nn/images.py: ImageEmbedding: dropout_rate | dropout": RATE,
    "nn/images.py: PatchProjection: patch_size | nothing": OWN,
    "nn/images.py: only jax has cut_patches": OWN,
    "nn/resampling.py: only jax has cubic": OWN,
    "nn/resampling.py: only jax has resampling_matrix": OWN,
    "nn/heads.py: ClassificationHead: dropout_rate | dropout": RATE,
    "nn/latent_attention.py: LatentAttention: dropout_rate | dropout": RATE,
    "nn/norms.py: ScaledNorm: scale | weight": LEAF,
    "nn/positions.py: RelativeBias: table | weight": LEAF,
    "nn/disentangled.py: DistanceEncoding: table | weight": LEAF,
    "nn/norms.py: only jax has Identity": OWN,
    "nn/norms.py: only jax has Identity.__call__": OWN,
    "nn/norms.py: only jax has _center": "torch.nn.functional.layer_norm centers",
    "nn/softmax.py: only jax has softmax": KEEPS,
    "nn/softmax.py: only jax has _softmax_jvp": KEEPS,
    "nn/stack.py: Stack: layers remat | nothing": "torch unrolls always, and keeps what it needs for the gradient",
    "training/loop.py: fit: state plan run train_steps console | model draw loss steps optimizer scheduler clip_norm": (
        "runs are trained on one side"
    ),
    "training/optimizers.py: _adam: decay | nothing": "torch's optimizers decay by their parameter groups",
    "training/optimizers.py: _adamw: decay | nothing": "torch's optimizers decay by their parameter groups",
    "training/optimizers.py: _sgd: decay | nothing": "torch's optimizers decay by their parameter groups",
    "training/optimizers.py: make_optimizer: frozen | model": "torch freezes by requires_grad",
    "training/step.py: train_step: state | model scheduler clip_norm": STATE,
}
"""What differs within a file -> the reason."""

Members = dict[str, tuple[str, ...]]


def files(package: str) -> set[str]:
    folders = [ROOT / package / each for each in PACKAGES]
    return {str(path.relative_to(ROOT / package)) for folder in folders for path in folder.glob("*.py")}


TWINS = sorted(files("torch_ref") - {f"{package}/__init__.py" for package in PACKAGES})


@cache
def members(path: Path) -> Members:
    """Every function, method and class of a file: its arguments, or a class's attributes."""
    found: Members = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = arguments(node)
        elif isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            fields = [ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)]
            found[node.name] = (*fields, *(name for method in methods for name in attributes(method)))
            found |= {f"{node.name}.{'__call__' if m.name == 'forward' else m.name}": arguments(m) for m in methods}
    return found


def arguments(node: ast.FunctionDef) -> tuple[str, ...]:
    """Their names, but for where random numbers come from: a key or nnx.Rngs, and a torch.Generator or torch's own."""
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    kinds = {each.arg: ast.unparse(each.annotation) if each.annotation else "" for each in every}
    drawn = ("PRNGKeyArray", "Rngs", "torch.Generator")
    return tuple(name for name, kind in kinds.items() if not any(each in kind for each in drawn))


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
    said = {f"{file}: only jax has {name}" for name in ours if name not in theirs}
    said |= {f"{file}: only torch has {name}" for name in theirs if name not in ours}
    for name in (name for name in ours if name in theirs and ours[name] != theirs[name]):
        one, other = ours[name], theirs[name]
        only = [" ".join(each for each in mine if each not in yours) for mine, yours in ((one, other), (other, one))]
        assert any(only), f"{file}: {name} has the same in another order: {one}, {other}"
        said.add(f"{file}: {name}: {only[0] or 'nothing'} | {only[1] or 'nothing'}")
    return said


def is_one_sided(said: str) -> bool:
    return ": only " in said


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
