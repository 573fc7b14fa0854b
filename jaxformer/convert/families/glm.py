"""GLM and GLM-4-0414 in transformers' format: Llama's names, with gate and up projections packed, and rotary pairs side by side
in half of each head."""

from dataclasses import replace

from jaxformer.convert.axes import Part
from jaxformer.convert.decoder_keys import PART, rope_keys
from jaxformer.convert.families.llama import FIXED, LLAMA, LLAMA_TYPE, NAMES, PROJECTIONS, sizes_of_heads
from jaxformer.convert.families.llama_like import keys_of
from jaxformer.convert.family import Rule, module_rules
from jaxformer.convert.model_type import Field

PACKED = "(f + f) d -> d (f + f)"
GATE_UP = tuple(
    Rule(f"feed_forward.{own}.kernel", "mlp.gate_up_proj.weight", PACKED, Part(number, 2))
    for number, own in enumerate(("gate", "up"))
)
"""Rules of the gate and up projections as one tensor."""

_OUTPUT_NORMS = {"attention_output_norm": "post_self_attn_layernorm", "feed_forward_output_norm": "post_mlp_layernorm"}

GLM = replace(
    LLAMA, name="glm", rules=(*PROJECTIONS, *GATE_UP, *(rule for pair in NAMES.items() for rule in module_rules(*pair)))
)
"""Family for Llama's configuration with `rotary="interleaved"`, a `rotary_dim` and `qkv_bias=True`."""
GLM4 = replace(GLM, name="glm4", rules=(*GLM.rules, *(rule for pair in _OUTPUT_NORMS.items() for rule in module_rules(*pair))))
"""Family for GLM's configuration with `norm_position="sandwich"`."""

GLM_TYPE = replace(
    LLAMA_TYPE,
    name="glm",
    family=GLM,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 151552),
            "intermediate_size": Field("d_ff", 13696),
            "num_hidden_layers": Field("n_layers", 40),
            "num_key_value_heads": Field("n_kv_heads", 2),
            "head_dim": Field("head_dim", 128),
            "max_position_embeddings": Field("context", 131072),
            "rms_norm_eps": Field("norm_epsilon", 0.00000015625),
            "pad_token_id": Field("padding_idx", 151329),
            "attention_bias": Field("qkv_bias", True),
            PART: Field(PART, 0.5),
        },
        without=("mlp_bias",),
    ),
    fixed=FIXED | {"rotary": "interleaved", "output_bias": False, "feed_forward_bias": False},
    model="GlmForCausalLM",
    base="GlmModel",
    undo=lambda config: sizes_of_heads(config) | rope_keys(config, part=True),
)
GLM4_TYPE = replace(
    GLM_TYPE,
    name="glm4",
    family=GLM4,
    fixed={**GLM_TYPE.fixed, "norm_position": "sandwich"},
    model="Glm4ForCausalLM",
    base="Glm4Model",
)
