"""A file has at most 300 lines, a function at most 40 and 6 arguments; what has more is listed here with its reason."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("jaxformer", "torch_ref", "train", "benchmarks")
LINES, ARGUMENTS, FILE_LINES = 40, 6, 300
"""All of a `def` counts, its docstring too; `self` and `cls` are not arguments of the caller."""

ATTENTION = "masks and biases of target and memory, each by its own name; and the same on both sides"
DECODING = "what a user can ask of decoding, each by its own name; and the same on both sides"
COMPILED = "arrays and static sizes apart: only the sizes compile anew"
TORCHS = "torch's own arguments, which it stands for"
STEP_BY_STEP = "one thing after another, with no part that has a name of its own"
COMPUTED = "what is otherwise, and the call that it stands for"
COMPARISON = "what a user can say of a comparison, each by its own name"
RECORDED = "everything that was recorded, which is used in one place"

TOO_LONG = {
    "jaxformer/decoding/beam.py:beam_search": STEP_BY_STEP,
    "jaxformer/parity/compare.py:compare": "its docstring describes every argument",
    "jaxformer/parity/attribute/module_table.py:table": "a row of the report, field by field",
}
TOO_MANY_ARGUMENTS = {
    "jaxformer/parity/training/trainers.py:JaxTrainer.__init__": "the model, its weights, and how it is trained",
    "jaxformer/checkpoints/transcriber.py:Transcriber.transcribe": DECODING,
    "jaxformer/decoding/beam.py:beam_search": COMPILED,
    "jaxformer/decoding/choose.py:make_choice": DECODING,
    "jaxformer/decoding/generate.py:generate": DECODING,
    "jaxformer/decoding/generate.py:generate_beam": DECODING,
    "jaxformer/decoding/generate.py:_generate": COMPILED,
    "jaxformer/decoding/generate.py:_generate_beam": COMPILED,
    "jaxformer/decoding/sampling.py:next_tokens": COMPILED,
    "jaxformer/decoding/translation.py:translate": DECODING,
    "jaxformer/decoding/translation.py:translate_beam": DECODING,
    "jaxformer/decoding/translation.py:_translate": COMPILED,
    "jaxformer/decoding/translation.py:_translate_beam": COMPILED,
    "jaxformer/exporting/programs.py:export_generate": DECODING,
    "jaxformer/models/encoder_decoder.py:EncoderDecoder.__call__": ATTENTION,
    "jaxformer/models/encoder_decoder.py:EncoderDecoder.decode": ATTENTION,
    "jaxformer/models/encoder_decoder.py:EncoderDecoder.extend": ATTENTION,
    "jaxformer/models/encoder_decoder.py:EncoderDecoder.last_hidden_state": ATTENTION,
    "jaxformer/models/encoder_decoder.py:EncoderDecoder.attention_weights": ATTENTION,
    "jaxformer/models/encoder_decoder.py:EncoderDecoder.hidden_states": ATTENTION,
    "jaxformer/nn/attention.py:attention": ATTENTION,
    "jaxformer/nn/attention.py:MultiHeadAttention.extend": ATTENTION,
    "jaxformer/nn/blocks.py:Block.__call__": ATTENTION,
    "jaxformer/nn/blocks.py:Block.extend": ATTENTION,
    "jaxformer/nn/blocks.py:Block.weights": ATTENTION,
    "jaxformer/nn/stack.py:Stack.__call__": ATTENTION,
    "jaxformer/nn/stack.py:Stack.extend": ATTENTION,
    "jaxformer/nn/stack.py:Stack._shared": ATTENTION,
    "jaxformer/nn/stack.py:Stack.hidden_states": ATTENTION,
    "jaxformer/nn/stack.py:Stack.weights": ATTENTION,
    "jaxformer/nn/stacks.py:Stacks.extend": ATTENTION,
    "jaxformer/parity/trace/transformations.py:_scan.scan": "those of jax.lax.scan",
    "jaxformer/parity/trace/torch_hooks.py:fused_scores": TORCHS,
    "jaxformer/data/batches.py:Buckets.__init__": "the pairs, and each limit of a batch by its own name",
    "jaxformer/evaluation/sharded/compare.py:compare_sharded": COMPARISON,
    "jaxformer/parity/compare.py:compare": COMPARISON,
    "jaxformer/parity/recorded.py:dump": COMPARISON,
    "jaxformer/parity/recorded.py:check": COMPARISON,
    "jaxformer/parity/diagnose/operators/packing.py:part_of": COMPUTED,
    "jaxformer/training/torch_run.py:from_torch_training": "what torch's optimizer does not say, each by its own name",
    "torch_ref/decoding/beam.py:beam_search": DECODING,
    "torch_ref/decoding/choose.py:choose": DECODING,
    "torch_ref/decoding/generate.py:generate": DECODING,
    "torch_ref/decoding/translation.py:translate": DECODING,
    "torch_ref/decoding/translation.py:translate_beam": DECODING,
    "torch_ref/models/encoder_decoder.py:EncoderDecoder.forward": ATTENTION,
    "torch_ref/models/encoder_decoder.py:EncoderDecoder.extend": ATTENTION,
    "torch_ref/models/encoder_decoder.py:EncoderDecoder.last_hidden_state": ATTENTION,
    "torch_ref/models/encoder_decoder.py:EncoderDecoder.attention_weights": ATTENTION,
    "torch_ref/models/encoder_decoder.py:EncoderDecoder.hidden_states": ATTENTION,
    "torch_ref/nn/attention.py:attention": ATTENTION,
    "torch_ref/nn/blocks.py:Block.forward": ATTENTION,
    "torch_ref/nn/blocks.py:Block.weights": ATTENTION,
    "torch_ref/nn/stack.py:Stack.forward": ATTENTION,
    "torch_ref/nn/stack.py:Stack.hidden_states": ATTENTION,
    "torch_ref/nn/stack.py:Stack.weights": ATTENTION,
    "torch_ref/nn/blocks.py:Block.extend": ATTENTION,
    "torch_ref/nn/stack.py:Stack.extend": ATTENTION,
    "torch_ref/training/loop.py:fit": "the parts of a training step, each by its own name",
    "torch_ref/training/step.py:train_step": "the parts of a training step, each by its own name",
}


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def functions(node: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its name, those inside of classes and functions too."""
    for child in ast.iter_child_nodes(node):
        name = inside
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}{child.name}."
            if not isinstance(child, ast.ClassDef):
                yield name[:-1], child
        yield from functions(child, name)


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    names = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return len([name for name in names if name.arg not in ("self", "cls")])


@cache
def all_functions() -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return {
        f"{path.relative_to(ROOT).as_posix()}:{name}": function
        for path in sources()
        for name, function in functions(ast.parse(path.read_text("utf-8")))
    }


@pytest.mark.parametrize(
    ("measure", "most", "allowed"),
    [(lines, LINES, TOO_LONG), (arguments, ARGUMENTS, TOO_MANY_ARGUMENTS)],
    ids=["lines", "arguments"],
)
def test_functions_are_small_or_have_a_reason(measure, most, allowed):
    larger = {name: measure(function) for name, function in all_functions().items() if measure(function) > most}
    assert {name: size for name, size in larger.items() if name not in allowed} == {}, "cut it, or give a reason"
    assert sorted(allowed.keys() - larger.keys()) == [], "small by now: take it off the list"


def test_files_are_small():
    sizes = {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines()) for path in sources()}
    assert {name: size for name, size in sizes.items() if size > FILE_LINES} == {}


def test_what_is_counted():
    code = "class A:\n    def f(self, a, /, b, *c, d, **e):\n        def g():\n            pass\n"
    found = dict(functions(ast.parse(code)))
    assert {name: (lines(function), arguments(function)) for name, function in found.items()} == {
        "A.f": (3, 5),
        "A.f.g": (2, 0),
    }
