"""Run `translate` with the torch twin: `python -m jaxformer.bench.twin_run FOLDER DATA` prints the validation loss as JSON.

It does what the recipe does: a tokenizer, training, evaluations with a few sources translated at each, and test sentences
translated greedily and by beam search. Its batches are ready, while the recipe makes them as it trains.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from jaxformer.bench.problems import Training, load_problem
from jaxformer.bench.train_torch import Twin, tensors
from jaxformer.config.settings import BeamConfig
from jaxformer.data.parallel import read_splits
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.runtime.cores import cores
from torch_ref.decoding.translation import translate, translate_beam
from torch_ref.training.pairs import pair_loss
from torch_ref.training.step import evaluate

SHOWN, TESTED, LONGEST = 3, 8, 64
"""Number of sources translated at each evaluation, number translated at the end, and maximum target tokens."""


class Run(Twin):
    """Side of the torch twin, with random weights of its own."""

    def __init__(self, folder: Path, problem: Training, count: int, data: str):
        super().__init__(folder, problem, count)
        torch.set_num_threads(cores())
        splits = read_splits((data,))
        tokenizer = Tokenizer.train_bpe([*splits.train.sources, *splits.train.targets], problem.model.vocab_size)
        self.frame, end = tokenizer.frame, [tokenizer.frame.end]
        self.shown, self.tested = (
            [torch.tensor([[*ids, *end]]) for ids in tokenizer.encode_all(texts)]
            for texts in (splits.validation.sources[:SHOWN], splits.test.sources[:TESTED])
        )

    def whole(self) -> float:
        """Train, evaluate twice, and translate; return the last validation loss, measured without label smoothing."""
        found = 0.0
        loss: Any = partial(pair_loss, pad=cast(int, self.problem.pad))
        for _ in range(2):
            self.run()
            found = evaluate(self.model, map(tensors, self.problem.held_out), loss=loss)
            self.translate(self.shown)
        self.translate(self.tested)
        rules: Any = {"start": self.frame.start, "eos": self.frame.end}
        for source in self.tested:
            translate_beam(self.model.eval(), source, LONGEST, BeamConfig(early_stopping=True), **rules)
        return found

    def translate(self, sources: list[torch.Tensor]) -> None:
        """Translate sources greedily."""
        for source in sources:
            translate(self.model.eval(), source, LONGEST, start=self.frame.start, eos=self.frame.end)


if __name__ == "__main__":
    folder, data = Path(sys.argv[1]), sys.argv[2]
    problem = load_problem(folder)
    print(json.dumps([Run(folder, problem, max(1, len(problem.batches) // 2), data).whole()]))
