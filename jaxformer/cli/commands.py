"""List of the commands, and the help that shows it. A command's module is imported when the command is called."""

import difflib
from importlib import import_module
from typing import NamedTuple

from jaxformer.errors import InputError


class Command(NamedTuple):
    """Entry in the list of commands."""

    entry: str
    """Module whose `main(arguments)` runs the command and returns the exit code (None means 0), or `module:function`."""
    summary: str
    example: str
    """Example of the arguments after the command's name."""

    def run(self, arguments: list[str]) -> int | None:
        """Import the module and call its function."""
        module, _, function = self.entry.partition(":")
        return getattr(import_module(module), function or "main")(arguments)


GROUPS = {
    "parity": "Check a port (exit code 0: equal, 1: different, 2: could not compare)",
    "train": "Train a model",
    "plot": "Draw a picture (.png or .svg)",
    "bench": "Measure speed beside PyTorch, transformers and Flax",
    "": "Use a trained model, and run in several processes",
}
"""First word of a command -> heading of its group; commands of one word are in the last group."""

COMMANDS = {
    "parity compare": Command(
        "jaxformer.cli.parity:compare",
        "compare a torch model with its JAX port",
        "port:torch_model port:jax_model --vocab 50257",
    ),
    "parity dump": Command(
        "jaxformer.cli.parity:dump",
        "record the torch model, to check in an environment without torch",
        "port:torch_model recorded --vocab 50257",
    ),
    "parity check": Command(
        "jaxformer.cli.parity:check",
        "compare a JAX model with what `parity dump` recorded",
        "recorded port:jax_model",
    ),
    "parity explain": Command(
        "jaxformer.cli.parity:explain",
        "print a saved report, or write it in another format",
        "report.json --markdown report.md",
    ),
    "parity schema": Command(
        "jaxformer.cli.agents:schema",
        "print the JSON schema of a report (--of report, logprobs or doctor)",
        "> report.schema.json",
    ),
    "parity sharded": Command(
        "jaxformer.cli.parity:sharded",
        "compare one train step on a mesh of devices with one device",
        "gpt.tiny --mesh data=2,tensor=2",
    ),
    "parity mutants": Command(
        "jaxformer.cli.parity:mutants",
        "test the checker: it has to find known bugs in our models (minutes)",
        "",
    ),
    "train reverse": Command(
        "jaxformer.recipes.reverse",
        "an encoder-decoder that writes a line backwards; needs no data",
        "--out runs/reverse",
    ),
    "train shakespeare": Command(
        "jaxformer.recipes.shakespeare",
        "a GPT on the characters of a text",
        "--preset cpu --out runs/shakespeare",
    ),
    "train translate": Command(
        "jaxformer.recipes.translate",
        "a tokenizer and an encoder-decoder on sentence pairs; measures BLEU",
        "--preset small --out runs/german",
    ),
    "train qa": Command(
        "jaxformer.recipes.qa",
        "the smallest transformer: two questions and one answer",
        "--seeds 50",
    ),
    "plot positions": Command(
        "jaxformer.cli.plots:positions",
        "positions as a heat map, and how alike two of them are over distance",
        "--kind rotary --out positions.png",
    ),
    "plot masks": Command(
        "jaxformer.cli.plots:masks",
        "the masks of attention: causal, window, padding, prefix",
        "--tokens 10 --out masks.svg",
    ),
    "plot attention": Command(
        "jaxformer.cli.plots:attention",
        "what each head of a saved model reads",
        "runs/reverse 8pwdv6n2q --out attention.png",
    ),
    "plot alignment": Command(
        "jaxformer.cli.plots:alignment",
        "which source token is read as each target token is written",
        "runs/german 'Ein Hund läuft.' --out alignment.png",
    ),
    "plot losses": Command(
        "jaxformer.cli.plots:losses",
        "the losses of one run, or of several in one picture",
        "runs/first runs/second --out losses.png",
    ),
    "plot parity": Command(
        "jaxformer.cli.plots:parity",
        "the error of each module over depth, of a saved report",
        "report.json --out parity.png",
    ),
    "report": Command(
        "jaxformer.cli.report",
        "one page of a run: settings, curves, samples, attention, environment",
        "runs/reverse --out report.html",
    ),
    "launch": Command(
        "jaxformer.cli.launch",
        "run a command in several processes that train one model",
        "--processes 2 --devices 4 -- train shakespeare --mesh data=8",
    ),
    "bench train": Command(
        "jaxformer.bench.commands:train",
        "training steps",
        "--items W2 W3 --json bench.json --chart bench.png",
    ),
    "bench generate": Command(
        "jaxformer.bench.commands:generate",
        "tokens written by a GPT, and sentences by a beam search",
        "--items gpt2 --peers transformers",
    ),
    "bench start": Command(
        "jaxformer.bench.commands:start",
        "whole processes, from their start to their end",
        "--items gpt2",
    ),
    "generate": Command(
        "jaxformer.cli.generate",
        "continue a text, or write the target of a source",
        "runs/shakespeare --prompt ROMEO: --tokens 200",
    ),
    "translate": Command(
        "jaxformer.cli.translate",
        "translate texts, a file or standard input",
        "runs/german 'Ein Hund läuft.' --beam 5",
    ),
    "transcribe": Command(
        "jaxformer.cli.transcribe",
        "write down the speech of WAV files with a Whisper model",
        "whisper-tiny speech.wav --language en",
    ),
    "convert": Command(
        "jaxformer.cli.convert",
        "a model of transformers' into one of ours, or back, bit for bit",
        "runs/shakespeare exported --to hf",
    ),
    "runs": Command(
        "jaxformer.cli.runs",
        "list the runs in a folder, and check their checkpoints",
        "runs",
    ),
    "runs compare": Command(
        "jaxformer.cli.compare_runs",
        "two watched runs on one page, and the first step at which they part",
        "runs/torch runs/jax --html compared.html",
    ),
    "families": Command(
        "jaxformer.cli.families",
        "transformers' model types that are loaded, and what is proven of each",
        "--json",
    ),
    "info": Command(
        "jaxformer.cli.info",
        "what a folder holds: family, size, memory, certificate",
        "exported",
    ),
    "skill": Command(
        "jaxformer.cli.agents:skill",
        "print or write a SKILL.md: how an agent ports a model with the checker",
        "--out .agents/skills/jaxformer/SKILL.md",
    ),
    "exercise": Command(
        "jaxformer.cli.exercise",
        "mend a port with one planted bug; the checker judges, and gives hints",
        "1 --check",
    ),
    "doctor": Command(
        "jaxformer.cli.doctor",
        "whether jaxlib computes right; how transformers 4 and 5 read a folder",
        "exported",
    ),
}


def find(arguments: list[str]) -> tuple[Command, list[str]]:
    """Find the command that the first one or two words name, and return it with the rest; InputError if there is none."""
    for n_words in (2, 1):
        if command := COMMANDS.get(" ".join(arguments[:n_words])):
            return command, arguments[n_words:]
    group = arguments[0] if arguments[0] in GROUPS else ""
    raise unknown(group, arguments[1] if group else arguments[0])


def unknown(group: str, word: str) -> InputError:
    """Return an error that suggests the nearest command: of the group, or of all."""
    names = {_split(name)[1]: name for name in COMMANDS if group in ("", _split(name)[0])}
    names |= {} if group else {name: name for name in GROUPS if name}
    near = difflib.get_close_matches(word, names, 1)
    hint = f"did you mean {names[near[0]]!r}?" if near else f"see {_call(group)} --help"
    return InputError(f"command = {f'{group} {word}'.strip()!r} is not known; {hint}")


def usage(group: str = "") -> str:
    """Format the commands of a group, or of all groups, each with its summary and an example."""
    lines, width = [f"usage: {_call(group)} COMMAND ...", ""], max(map(len, COMMANDS))
    for shown in [group] if group else GROUPS:
        lines.append(f"{GROUPS[shown]}:")
        for name, command in COMMANDS.items():
            if _split(name)[0] == shown:
                lines.append(f"  {name:{width}}  {command.summary}")
                lines.append(f"      jaxformer {name} {command.example}".rstrip())
        lines.append("")
    lines.append("jaxformer COMMAND --help explains the flags of a command.")
    lines.append("jaxformer -v COMMAND adds the traceback to an error. jaxformer --version prints the version.")
    return "\n".join(lines)


def _split(name: str) -> tuple[str, str]:
    """Split a command's name into its group and the rest: 'train qa' -> ('train', 'qa'), 'generate' -> ('', 'generate')."""
    group, _, word = name.partition(" ")
    return (group, word) if word and group in GROUPS else ("", name)


def _call(group: str) -> str:
    return f"jaxformer {group}".strip()
