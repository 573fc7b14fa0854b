"""The certificate lists what a run cannot notice, all of it and nothing else."""

import numpy as np
import pytest
import torch
import transformers

import torch_ref.models
from jaxformer.errors import InputError
from jaxformer.evaluation.ladder import adversarial_inputs, call_torch, load_torch
from jaxformer.models import abstract
from jaxformer.parity.probe import excite, probe
from jaxformer.parity.report.summarize import ranges
from jaxformer.parity.trace.coverage import sensitivity
from parity_tests.support.helpers import gpt_config, noise, seq2seq_config

V, B, T, D = 13, 5, 8, 6
IDS, VALID = probe(V, B, T, seed=1)
EVERY_ID = np.arange(B * T, dtype=np.int32).reshape(B, T) % V


class Toy(torch.nn.Module):
    """Attention over ids, with everything that may go wrong as an option."""

    def __init__(self, **options):
        super().__init__()
        self.options = options
        self.table, self.places = torch.nn.Embedding(V, D, padding_idx=0), torch.nn.Embedding(T, D)
        self.attention = torch.nn.MultiheadAttention(D, 2, batch_first=True)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(D, D) for _ in range(3)])
        self.spare = torch.nn.Linear(D, 3) if options.get("spare") else None

    def forward(self, ids, hidden=None):
        x = self.embed(ids)
        mask = None if hidden is None or self.options.get("blind") else hidden
        x = x + self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0]
        for i, layer in enumerate(self.layers):
            dead = i in self.options.get("dead", ())
            x = x + torch.tanh(layer(x) - (layer.bias if dead else 0))
        return x if hidden is None else x * ~hidden[..., None]

    def embed(self, ids):
        table = self.table.weight.detach() if self.options.get("detached") else self.table.weight
        x = self.table(ids) if self.options.get("looked_up", True) else table[ids]
        places = self.places(torch.arange(ids.shape[1])) if self.options.get("placed", True) else 0
        return x + places


def toy(**options):
    return excite(Toy(**options), seed=2)


class Places(torch.nn.Embedding):
    """Positions of the ids that it is given, `1 T D`, as transformers has them."""

    def forward(self, ids):
        return super().forward(torch.arange(ids.shape[1])[None])


class Shaped(torch.nn.Embedding):
    """Positions of a shape, as Blenderbot has them."""

    def forward(self, shape):
        return super().forward(torch.arange(shape[1]).expand(shape))


class Placed(Toy):
    """With one of those."""

    def __init__(self, places):
        super().__init__()
        self.places = places(T + 1, D)

    def embed(self, ids):
        return self.table(ids) + self.places(ids.shape if isinstance(self.places, Shaped) else ids)


KEY_BIAS = "attention.in_proj_bias: 6-11 of 18"


@pytest.mark.parametrize("places", [Places, Shaped])
def test_a_table_that_only_counts_the_ids_it_is_given(places):
    assert sensitivity(excite(Placed(places), seed=2), (EVERY_ID,)) == ["places.weight: row 8 of 9", KEY_BIAS]


def test_a_key_bias_alone():
    assert sensitivity(toy(), (EVERY_ID,)) == [KEY_BIAS]


def test_rows_of_ids_that_do_not_occur_and_not_that_of_the_padding_index():
    ids = np.where((EVERY_ID == 3) | (EVERY_ID == 4), 0, EVERY_ID)
    assert sensitivity(toy(), (ids,)) == ["table.weight: rows 3-4 of 13", KEY_BIAS]
    many = EVERY_ID // 2 * 2 % V
    unused = V - np.unique(many).size
    assert sensitivity(toy(), (many,))[0] == f"table.weight: {unused} of 13 rows"


def test_a_parameter_that_is_never_used():
    assert sensitivity(toy(spare=True), (EVERY_ID,)) == [KEY_BIAS, "spare.weight", "spare.bias"]


def test_a_table_of_positions_that_is_not_added():
    assert sensitivity(toy(placed=False), (EVERY_ID,)) == [
        "places.weight",
        KEY_BIAS,
        "input 0: the order of neighbours",
    ]


def test_fewer_positions_than_the_table_has():
    assert sensitivity(toy(), (EVERY_ID[:, :6],))[0] == "places.weight: rows 6-7 of 8"


@pytest.mark.parametrize(("dead", "name"), [((0, 1, 2), "layers.*.bias"), ((0, 2), "layers.0,2.bias"), ((1,), "layers.1.bias")])
def test_layers_are_named_together(dead, name):
    assert sensitivity(toy(dead=dead), (EVERY_ID,)) == [KEY_BIAS, name]


def test_what_a_mask_hides_is_said_to_be_masked():
    assert sensitivity(toy(), (IDS, ~VALID))[-1] == f"input 0: {(~VALID).sum()} positions masked by input 1"
    assert sensitivity(toy(), (IDS, VALID), lambda model, ids, valid: model(ids, ~valid))[-1].endswith("masked by input 1")
    wide = VALID[:, None, None] & np.ones((1, 1, T, 1), bool)
    found = sensitivity(toy(), (wide, IDS), lambda model, mask, ids: model(ids, ~mask[:, 0, 0]))
    assert found[-1] == f"input 1: {(~VALID).sum()} positions masked by input 0"


def test_a_mask_that_is_ignored():
    found = sensitivity(toy(blind=True), (IDS, ~VALID), lambda model, ids, hidden: Toy.forward(model, ids))
    assert found[-1] == "input 1: all of it"
    assert not any("masked" in phrase or "input 0" in phrase for phrase in found)


def test_a_mask_that_hides_nothing_where_it_hides_everything():
    """One number subtracted from all scores changes nothing, from one of them it does."""

    class Scores(Toy):
        def forward(self, ids, seen):
            x = self.embed(ids)
            scores = x @ x.transpose(1, 2) - 9.0 * ~seen[:, None]
            return scores.softmax(-1) @ x

    model = excite(Scores(), seed=0)
    assert not any("input" in phrase for phrase in sensitivity(model, (EVERY_ID, np.ones((B, T), bool))))
    found = sensitivity(model, (EVERY_ID, np.ones((B, T), np.int32)), lambda model, ids, seen: model(ids, seen == 1))
    assert found[-1] == "input 1: holds 1 alone"


def test_a_mask_of_numbers():
    config = transformers.BertConfig(
        vocab_size=V, hidden_size=D, num_hidden_layers=1, num_attention_heads=2, intermediate_size=7, max_position_embeddings=T
    )
    model = excite(transformers.BertModel(config, add_pooling_layer=False), seed=0)

    def call(model, ids, mask):
        return model(ids.long(), attention_mask=mask).last_hidden_state

    assert not any("input" in phrase for phrase in sensitivity(model, (IDS, VALID.astype(np.int64)), call))


def test_rows_that_give_nan():
    """A query that sees nothing gives NaN; what is noticed in the other rows can be told all the same."""
    ids = np.where((IDS == 3) | (IDS == 4), 0, IDS)

    found = sensitivity(toy(spare=True), (ids, ~VALID))
    unread = np.setdiff1d(np.arange(V), ids[VALID])
    assert {3, 4} < set(unread)
    assert f"table.weight: rows {', '.join(ranges(unread.tolist()))} of 13" in found
    assert "spare.bias" in found


def test_positions_that_nobody_reads():
    found = sensitivity(toy(), (EVERY_ID,), lambda model, ids: model(ids[:, :5]))
    assert found == ["places.weight: rows 5-7 of 8", KEY_BIAS, "input 0: positions 5-7"]

    def call(model, ids):
        return model(torch.cat([ids[:2], torch.zeros_like(ids[2:4, :3]).repeat(1, 3)[:, :T], ids[4:]]))

    assert sensitivity(toy(), (EVERY_ID,), call)[-1] == "input 0: rows 2-3"

    def some(model, ids):
        return model(torch.where(torch.tensor([[False], [True], [False], [True], [False]]) & (torch.arange(T) > 4), 0, ids))

    assert sensitivity(toy(), (EVERY_ID,), some)[-1] == "input 0: positions 5-7 of rows 1, 3"


@pytest.mark.parametrize("options", [{"looked_up": False}, {"looked_up": False, "detached": True}], ids=["index", "detached"])
def test_what_has_no_gradient_is_tried(options):
    found = sensitivity(toy(**options), (EVERY_ID,), lambda model, ids: model(ids[:, :5]))
    assert found == ["places.weight: rows 5-7 of 8", KEY_BIAS, "input 0: positions 5-7"]


def test_the_padding_that_is_found_in_the_ids():
    """Its embedding is hidden, but that it is the padding id counts."""
    found = sensitivity(toy(), (IDS,), lambda model, ids: model(ids, ids == 0))
    assert not any("input" in phrase for phrase in found)


def test_a_unit_that_is_off_is_woken_up():
    """No gradient at relu's zero side; a change of its weights is noticed all the same."""
    x = np.random.default_rng(0).standard_normal((B, D)).astype(np.float32)
    model = torch.nn.Sequential(torch.nn.Linear(D, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    model = excite(model, seed=0)
    with torch.no_grad():
        model[0].bias[1] = -0.01 - (torch.from_numpy(x) @ model[0].weight[1]).max()
    assert sensitivity(model, (x,)) == ["2.weight: column 1 of 3"]


def test_hidden_states():
    states, valid = probe(width=D, batch=B, length=T)

    class States(Toy):
        def embed(self, ids):
            return ids

    found = sensitivity(excite(States(), seed=0), (states, ~valid))
    assert found == ["table.weight", "places.weight", KEY_BIAS, f"input 0: {(~valid).sum()} positions masked by input 1"]


def test_the_batch_on_the_second_axis():
    """Each row reaches all others there: what is said stays true."""

    def call(model, ids):
        return model(ids.T)[:, :-2].transpose(0, 1)

    assert sensitivity(toy(), (EVERY_ID.T.copy(),), call) == [KEY_BIAS]

    def short(model, ids):
        return model(ids.T[:, :6]).transpose(0, 1)

    assert sensitivity(toy(), (EVERY_ID.T.copy(),), short)[-1] == "input 0: rows 6-7"


def test_rows_that_reach_others():
    """Each row's output is another one's: what is not read in some rows cannot be told, and nothing false is."""

    def call(model, ids):
        unread = torch.tensor([[False], [True], [False], [True], [False]]) & (torch.arange(T) > 4)
        return model(torch.where(unread, 0, ids)).roll(1, 0)

    model = toy(looked_up=False)
    assert sensitivity(model, (EVERY_ID,), call) == [KEY_BIAS]
    assert sensitivity(model, (EVERY_ID,), lambda model, ids: call(model, ids).roll(-1, 0))[-1].endswith("of rows 1, 3")


def test_rows_that_reach_others_where_some_give_nan():
    """Without the rows that give NaN this model reads what it does not read with them."""

    def nan_at_the_end(model, ids):
        if len(ids) < B:
            return model(ids)
        return torch.cat([model(ids[:-1] * (torch.arange(T) < 5)), torch.full((1, T, D), torch.nan)])

    found = sensitivity(toy(), (EVERY_ID,), nan_at_the_end)
    assert found[-2:] == ["input 0: positions 5-7 of rows 0-3", "input 0: row 4"]


def test_two_inputs_alike():
    def call(model, unread, ids):
        return model(ids)

    assert sensitivity(toy(), (EVERY_ID, EVERY_ID.copy()), call) == [KEY_BIAS, "input 0: all of it"]


def test_what_a_model_refuses_is_noticed():
    def call(model, ids, starts):
        if not torch.equal(starts, torch.arange(B)):
            raise ValueError("these are no starts")
        return model(ids)

    assert sensitivity(toy(), (EVERY_ID, np.arange(B)), call) == [KEY_BIAS]


def test_it_takes_few_passes():
    calls = []

    def call(model, ids):
        calls.append(ids)
        return model(ids)

    sensitivity(toy(spare=True, dead=(1,)), (EVERY_ID,), call)
    # the output, with casts and without, its gradients, all suspects at once, and the order of ids, also in the output
    assert len(calls) == 6


def test_a_gpt_notices_everything_but_key_biases():
    config = gpt_config(context=8, vocab_size=V)
    model = load_torch(torch_ref.models.build(config), excite(abstract(config), seed=0))
    assert sensitivity(model, (EVERY_ID,)) == ["stack.blocks.*.attention.key.bias"]


def test_an_encoder_decoder_with_padding():
    config = seq2seq_config()
    model = load_torch(torch_ref.models.build(config), excite(abstract(config), seed=0))
    inputs = adversarial_inputs(config, B, config.context, seed=2)
    found = [phrase for phrase in sensitivity(model, inputs, call_torch) if "table" not in phrase and "embed" not in phrase]
    assert [phrase for phrase in found if not phrase.endswith("key.bias")] == [
        f"input 0: {(~inputs[1]).sum()} positions masked by input 1"
    ]
    assert len(found) == 4


def test_the_model_is_left_as_it_was():
    model = toy().train()
    model.spare = torch.nn.Linear(2, 2).requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sensitivity(model, (EVERY_ID,))
    assert model.training
    assert not model.spare.weight.requires_grad
    assert model.table.padding_idx == 0
    assert not model.table._forward_hooks
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_an_output_without_numbers():
    with pytest.raises(InputError) as refused:
        sensitivity(toy(), (IDS,), lambda model, ids: model(ids) * torch.nan)
    assert str(refused.value) == "the torch model's output holds no finite number, so it shows nothing; give it other inputs"


def test_ranges():
    assert ranges([4, 0, 3, 5]) == ["0", "3-5"]
    assert ranges([]) == []


class Suppressing(torch.nn.Module):
    """Its first two logits are out of reach."""

    def __init__(self, out_of_reach):
        super().__init__()
        self.head = torch.nn.Linear(4, 7)
        self.register_buffer("mask", torch.tensor([out_of_reach] * 2 + [0.0] * 5))

    def forward(self, x):
        return self.head(x) + self.mask


@pytest.mark.parametrize("out_of_reach", [-1e9, -1e30, torch.finfo(torch.float32).min])
def test_a_huge_mask_hides_no_influence(out_of_reach):
    """What is added to -1e9 shows; beside the larger ones it is lost in rounding."""
    found = sensitivity(excite(Suppressing(out_of_reach).eval(), seed=0), (noise(3, 5, 4, seed=1),))
    assert found == ([] if out_of_reach == -1e9 else ["head.weight: rows 0-1 of 7", "head.bias: 0-1 of 7"])


def test_inputs_of_one_axis():
    """Nodes of two graphs, of which some are hidden."""

    class Pooled(torch.nn.Linear):
        def forward(self, x, graph, seen):
            return torch.zeros(2, D, dtype=x.dtype).index_add(0, graph, super().forward(x) * seen[:, None])

    graph, seen = np.array([0, 1, 1, 0, 0]), np.array([True, True, False, True, True])
    found = sensitivity(excite(Pooled(D, D), seed=0), (noise(5, D, seed=1), graph, seen))
    assert found == ["input 0: row 2", "input 1: 1 positions masked by input 2"]
