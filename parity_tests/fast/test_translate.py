"""The recipe of translation, whole: the same tokens, the same batches, 50 steps in both frameworks, the same translations."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedTokenizerFast

import torch_ref.models
from jaxformer.checkpoints.translator import SHORTEST, Translator
from jaxformer.config.settings import BeamConfig, ScheduleConfig
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_torch
from jaxformer.data.parallel import Parallel, Splits
from jaxformer.data.tasks import Pairs
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.decoding.prepare import bucket
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import abstract, build
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite
from jaxformer.parity.training.compare import compare_training
from jaxformer.parity.training.trainers import TrainingSpec
from jaxformer.recipes.sentences import make_buckets
from jaxformer.recipes.settings import Translate
from jaxformer.recipes.translate import PRESETS
from jaxformer.training import pairs
from jaxformer.training.losses import mean
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.schedules import make_schedule
from jaxformer.training.step import make_shaped_train_steps, train_state, train_step
from tests.tiny import GERMAN
from torch_ref.decoding.translation import translate, translate_beam
from torch_ref.training import losses as torch_losses
from torch_ref.training import optimizers as torch_optimizers
from torch_ref.training import pairs as torch_pairs
from torch_ref.training import schedules as torch_schedules
from torch_ref.training.step import train_step as torch_train_step

pytestmark = pytest.mark.optimizers

RATES = {"attention_dropout": 0.2, "residual_dropout": 0.1, "feed_forward_dropout": 0.3, "embedding_dropout": 0.15}
STEPS = 50


def sentences(count: int, seed: int) -> Parallel:
    draw = np.random.default_rng(seed)
    rows = [draw.choice(list(GERMAN), draw.integers(1, 5)) for _ in range(count)]
    return Parallel([" ".join(row) for row in rows], [" ".join(GERMAN[word] for word in row) for row in rows])


TEXTS = sentences(60, 0)
TOKENIZER = Tokenizer.train_bpe([*TEXTS.sources, *TEXTS.targets], 290)


def recipe(**rates: float) -> Translate:
    small = PRESETS["small"]
    sizes = {"d_model": 12, "n_layers": 1, "n_heads": 3, "d_ff": 16, "context": 48, "layers": "rolled"}
    model = replace(small.model, vocab_size=TOKENIZER.vocab_size, **sizes, **rates)
    schedule = replace(small.schedule, warmup=10, last=40)
    return replace(small, batch=300, shapes=2, longest=48, smoothing=0.1, model=model, schedule=schedule)


RECIPE = recipe(**RATES)
BUCKETS, _ = make_buckets(RECIPE, TOKENIZER, Splits(TEXTS, TEXTS, TEXTS))
OF_ONE_SHAPE, _ = make_buckets(replace(RECIPE, shapes=1), TOKENIZER, Splits(TEXTS, TEXTS, TEXTS))
RULES = {"pad": BUCKETS.pad, "smoothing": RECIPE.smoothing}


def test_torchs_side_reads_the_same_tokens(tmp_path):
    TOKENIZER.save(tmp_path / "tokenizer.json")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for texts in (TEXTS.sources, TEXTS.targets):
        rows = TOKENIZER.encode_all(texts, special=True)
        assert theirs(texts)["input_ids"] == [row.tolist() for row in rows]
        assert theirs.batch_decode(rows, skip_special_tokens=True) == texts


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["cosine", "inverse_root"])
def test_every_step_of_the_recipe_is_equal(schedule):
    """With dropout in its four places, by shared masks, on batches of two shapes; noam's courses are in test_training.py, one
    of them in the usual run."""
    rate = replace(RECIPE.optimizer, learning_rate=1e-2)
    config = RECIPE.schedule if schedule == "cosine" else ScheduleConfig(name=schedule, warmup=10, d_model=12)
    learning = TrainingSpec(
        batches=[tuple(BUCKETS.batch(0, step)) for step in range(STEPS if schedule == "cosine" else 15)],
        torch_loss=lambda model, *batch: torch_losses.mean(*torch_pairs.pair_loss(model, batch, **RULES)),
        jax_loss=lambda model, *batch, key: mean(*pairs.pair_loss(model, Pairs(*batch), key, **RULES)),
        torch_optimizer=lambda model: torch_optimizers.make_optimizer(model, rate, ScheduleConfig())[0],
        jax_optimizer=make_optimizer(rate, config),
        torch_schedule=lambda optimizer: LambdaLR(optimizer, torch_schedules.make_schedule(config)),
        jax_schedule=lambda step: rate.learning_rate * make_schedule(config)(step),
        clip_norm=rate.clip_norm,
    )
    model = excite(abstract(RECIPE.model), seed=1)
    course = compare_training(load_torch(torch_ref.models.build(RECIPE.model), model), model, learning)
    assert [stage.says for stage in course.stages if stage.status != "equal"] == []
    assert len({batch[0].shape for batch in learning.batches}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_batch_in_parts_is_the_whole_batch(float64, parts):
    plain = recipe(embedding_dropout=0.0, residual_dropout=0.0)
    model = excite(abstract(plain.model), seed=1)
    twin = load_torch(torch_ref.models.build(plain.model), model).double()
    torch_optimizer, scheduler = torch_optimizers.make_optimizer(twin, plain.optimizer, plain.schedule)
    optimizer = make_optimizer(plain.optimizer, plain.schedule)
    batch = Pairs(*(side[:6] for side in BUCKETS.batch(0, 0)))
    loss = partial(pairs.pair_loss, **RULES)
    state, ours = jax.jit(partial(train_step, loss=loss, optimizer=optimizer, parts=parts))(
        train_state(to_float64(model), optimizer), batch, None
    )
    expected = torch_train_step(
        twin,
        tuple(torch.from_numpy(side).long() for side in batch),
        loss=partial(torch_pairs.pair_loss, **RULES),
        clip_norm=plain.optimizer.clip_norm,
        parts=4 - parts,
        optimizer=torch_optimizer,
        scheduler=scheduler,
    )
    check_float64("loss", ours, expected, "loss")
    for name, array in to_torch(state.model, TWIN).items():
        check_float64(name, array, twin.state_dict()[name], "parameter")


@pytest.fixture(scope="module")
def trained():
    """Trained by the recipe's own steps, until it has something to say."""
    plain = recipe(embedding_dropout=0.0, residual_dropout=0.0)
    optimizer = make_optimizer(replace(plain.optimizer, learning_rate=2e-2), replace(plain.schedule, last=150))
    with jax.numpy_dtype_promotion("standard"):
        run = make_shaped_train_steps(partial(pairs.pair_loss, **RULES), optimizer, partial(OF_ONE_SHAPE.batch, 0))
        state = train_state(build(plain.model, rngs=jax.random.key(0)), optimizer)
        return run(state, None, jax.random.key(0), 150)[0].model


@pytest.mark.slow
def test_the_same_measures(trained, float64):
    twin = load_torch(torch_ref.models.build(trained.config), trained).double().eval()
    batch = BUCKETS.batch(0, 0)
    ours = pairs.measure_pairs(to_float64(trained), Pairs(*map(jnp.asarray, batch)), pad=BUCKETS.pad)
    theirs = torch_pairs.pair_sums(twin, tuple(torch.from_numpy(side).long() for side in batch), pad=BUCKETS.pad)
    check_float64("loss", ours[0], theirs[0], "loss")
    assert [int(n) for n in ours[1:]] == [int(n) for n in theirs[1:]]
    assert int(ours[1]) / int(ours[2]) > 0.3


@pytest.mark.slow
def test_the_same_translations(trained, float64):
    """Greedily and by a beam, of sentences that training has not seen."""
    texts = sentences(12, 1).sources
    twin = load_torch(torch_ref.models.build(trained.config), trained).double().eval()
    translator = Translator(to_float64(trained), TOKENIZER)
    greedy, beams = translator.greedy(texts), translator.beam(texts, beam := BeamConfig(width=3, n_best=2))
    start, end, _ = TOKENIZER.frame
    for text, ours, found in zip(texts, greedy, beams, strict=True):
        source = torch.tensor([[*TOKENIZER.encode(text).tolist(), end]])
        room = min(trained.config.context, max(SHORTEST, 2 * bucket(source.shape[1])))
        theirs = translate(twin, source, room, start=start, eos=end)[0].tolist()
        assert ours == TOKENIZER.decode(theirs[: theirs.index(end)] if end in theirs else theirs).strip()
        wanted = translate_beam(twin, source, room, beam, start=start, eos=end)[0]
        assert [text for text, _ in found] == [TOKENIZER.decode([i for i in row if i != end]).strip() for row, _ in wanted]
        np.testing.assert_allclose([score for _, score in found], [score for _, score in wanted], rtol=1e-12)
    assert len(set(greedy)) > 3
