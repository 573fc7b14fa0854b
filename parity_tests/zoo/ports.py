"""Ports of torch's own transformers, which read states, not tokens."""

from flax import nnx

from jaxformer.config.models import BlockConfig
from jaxformer.nn.norms import make_norm
from jaxformer.nn.stack import Stack


class StackOfStates(nnx.Module):
    """`torch.nn.TransformerEncoder`'s port: blocks, and a norm after them."""

    def __init__(self, config: BlockConfig):
        self.stack = Stack(config)
        self.norm = make_norm("layer", config)

    def __call__(self, x, mask=None):
        return self.norm(self.stack(x, mask))


class TwoStacksOfStates(nnx.Module):
    """`torch.nn.Transformer`'s port."""

    def __init__(self, config: BlockConfig, decoder: BlockConfig):
        self.encoder = Stack(config)
        self.encoder_norm = make_norm("layer", config)
        self.decoder = Stack(decoder, cross=True)
        self.decoder_norm = make_norm("layer", config)

    def __call__(self, source, target, source_mask, target_mask):
        memory = self.encoder_norm(self.encoder(source, source_mask))
        return self.decoder_norm(self.decoder(target, target_mask, memory, source_mask))
