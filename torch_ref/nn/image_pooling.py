"""Pooling of an image: the states of its tokens -> one vector; and the logits of an image."""

from dataclasses import replace

from torch import Tensor, nn

from jaxformer.config.vision import VisionEncoderConfig
from torch_ref.nn.attention import MultiHeadAttention
from torch_ref.nn.embeddings import Embedding
from torch_ref.nn.feedforward import ACTIVATIONS, FeedForward
from torch_ref.nn.norms import make_norm


class DensePooling(nn.Module):
    """activation(dense(x)) of the class token's state (BERT's and ViT's pooler)."""

    def __init__(self, config: VisionEncoderConfig):
        super().__init__()
        self.activation = config.pooler_activation
        self.dense = nn.Linear(config.d_model, config.d_model)

    def forward(self, states: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](self.dense(states[:, 0]))


class AttentionPooling(nn.Module):
    """x + feed_forward(norm(x)) of x, what one learned query attends to (Zhai et al. 2022, section 3.4; SigLIP)."""

    def __init__(self, config: VisionEncoderConfig):
        super().__init__()
        self.query = Embedding(1, config.d_model)
        self.attention = MultiHeadAttention(replace(config, attention_dropout=0.0), cross=True)
        self.norm = make_norm(config.norm, config)
        self.feed_forward = FeedForward(config)

    def forward(self, states: Tensor) -> Tensor:
        query = self.query.weight.expand(states.shape[0], -1, -1)
        x = self.attention(query, states)
        return (x + self.feed_forward(self.norm(x)))[:, 0]


class ImageHead(nn.Module):
    """output(pooled), or the mean of it and of distilled(the distillation token's state)."""

    def __init__(self, config: VisionEncoderConfig):
        super().__init__()
        distilled = config.head == "distilled_image_classification"
        self.output = nn.Linear(config.pooled_width, len(config.labels))
        self.distilled = nn.Linear(config.d_model, len(config.labels)) if distilled else None

    def forward(self, pooled: Tensor, states: Tensor) -> Tensor:
        logits = self.output(pooled)
        return logits if self.distilled is None else (logits + self.distilled(states[:, 1])) / 2


def make_pooler(config: VisionEncoderConfig) -> DensePooling | AttentionPooling | None:
    """Build the pooling of a configuration; None for one without parameters."""
    match config.pooling:
        case "dense":
            return DensePooling(config)
        case "attention":
            return AttentionPooling(config)
    return None


def make_image_head(config: VisionEncoderConfig) -> ImageHead | None:
    """Build the head of a configuration; None without one."""
    return None if config.head == "none" else ImageHead(config)
