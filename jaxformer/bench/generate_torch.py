"""Text generation in PyTorch: the twin, a plain model with a cache, and transformers."""

from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from jaxformer.bench.problems import START, WEIGHTS, Writing
from jaxformer.bench.torch_gpt import GPT, use_faster_count
from jaxformer.config.models import GPTConfig
from jaxformer.config.settings import BeamConfig
from jaxformer.runtime.cores import cores
from jaxformer.validation.inputs import check_config
from torch_ref.decoding.generate import generate
from torch_ref.decoding.translation import translate_beam
from torch_ref.models import build

DEVICES = {"cpu": "cpu", "gpu": "cuda"}
"""Device -> torch's name of it."""
TRIAL_TOKENS, TRIAL_SOURCES = 16, 2
"""Tokens and sources that are written with each number of threads, to find the faster one."""


class Twin:
    """Side of the torch twin."""

    def __init__(self, folder: Path, problem: Writing, count: int):
        self.problem, self.threads = problem, cores()
        torch.set_num_threads(self.threads)
        self.device = DEVICES[problem.device]
        self.prompts = torch.from_numpy(problem.prompts).long().to(self.device)
        self.model = self.load(folder).eval().to(self.device)

    def load(self, folder: Path) -> Any:
        """Load the model with its weights."""
        model = self.build()
        model.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
        return model

    def build(self) -> Any:
        """Build the model."""
        return build(self.problem.model)

    def check(self) -> list[int]:
        """Return the ids that are written."""
        return self.write(self.prompts, self.problem.n_tokens).ravel().tolist()

    def write(self, prompts: torch.Tensor, n_tokens: int) -> torch.Tensor:
        """Write greedy tokens, or those of beam search, source by source."""
        if self.problem.pad is None:
            return generate(self.model, prompts, n_tokens)
        valid, beam = prompts != self.problem.pad, BeamConfig()
        found = translate_beam(self.model, prompts, n_tokens, beam, start=START, eos=None, valid=valid)
        return torch.tensor([hypotheses[0][0] for hypotheses in found])

    def warm_up(self) -> None:
        """Choose the number of threads of a processor."""
        if self.device != "cpu":
            return
        n_tokens = min(TRIAL_TOKENS, self.problem.n_tokens)
        prompts = self.prompts if self.problem.pad is None else self.prompts[:TRIAL_SOURCES]
        self.threads = use_faster_count(lambda: self.write(prompts, n_tokens))

    def run(self) -> None:
        """Run one round."""
        self.write(self.prompts, self.problem.n_tokens)

    def figures(self) -> dict[str, Any]:
        """Return the number of threads, or the memory of an accelerator."""
        return {"threads": self.threads} if self.device == "cpu" else {"memory": torch.cuda.max_memory_allocated()}


class Best(Twin):
    """Side of a plain GPT with fused attention and a cache that is allocated once."""

    def build(self) -> Any:
        return GPT(check_config(self.problem.model, GPTConfig))

    def write(self, prompts: torch.Tensor, n_tokens: int) -> torch.Tensor:
        return self.model.generate(prompts, n_tokens)


class Transformers(Twin):
    """Side of transformers' `generate`."""

    def load(self, folder: Path) -> Any:
        import transformers

        transformers.logging.set_verbosity_error()
        return transformers.GPT2LMHeadModel.from_pretrained(folder)

    def write(self, prompts: torch.Tensor, n_tokens: int) -> torch.Tensor:
        amount: Any = {"max_new_tokens": n_tokens, "min_new_tokens": n_tokens}
        mask = torch.ones_like(prompts)
        ids = self.model.generate(prompts, attention_mask=mask, do_sample=False, use_cache=True, pad_token_id=0, **amount)
        return ids[:, prompts.shape[1] :]
