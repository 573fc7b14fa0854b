"""A small Whisper in a folder of transformers, and audio that a test makes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import transformers

import jaxformer as jf

EOS, SOT, NO_TIMESTAMPS = 40, 41, 47
LANGUAGES, TASKS = {"<|en|>": 42, "<|de|>": 43, "<|fr|>": 44}, {"transcribe": 46, "translate": 45}
V, SECONDS = NO_TIMESTAMPS + 52, 1
"""Ids, with a timestamp for every place of a window of one second."""
SIZES = {"vocab_size": V, "num_mel_bins": 8, "d_model": 24, "encoder_layers": 1, "decoder_layers": 2}
SIZES |= {f"{stack}_attention_heads": 3 for stack in ("encoder", "decoder")}
SIZES |= {f"{stack}_ffn_dim": 20 for stack in ("encoder", "decoder")}
SIZES |= {"max_source_positions": 50, "max_target_positions": 40, "decoder_start_token_id": SOT, "begin_suppress_tokens": None}
SIZES |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), EOS)
GENERATION: dict[str, Any] = {  # of one likeliest token, which is drawn for certain
    "suppress_tokens": [3, 5, 41, 42, 43, 44, 45, 46],
    "begin_suppress_tokens": [7, EOS],
    "lang_to_id": LANGUAGES,
    "task_to_id": TASKS,
    "no_timestamps_token_id": NO_TIMESTAMPS,
    "max_initial_timestamp_index": 9,
    "is_multilingual": True,
    "return_timestamps": False,
    "forced_decoder_ids": [[1, None], [2, 46]],
    "max_length": 40,
    "no_repeat_ngram_size": 3,
    "prev_sot_token_id": 4,
    "top_k": 1,
}


def write_whisper(folder: Path, seed: int) -> Any:
    """Write a model with random excited weights; return transformers' model of the folder."""
    config = transformers.WhisperConfig(**SIZES)
    jf.excite(transformers.WhisperForConditionalGeneration(config), seed=seed).save_pretrained(folder)
    path = folder / "generation_config.json"
    said = {key: value for key, value in json.loads(path.read_text()).items() if key != "_from_model_config"}
    path.write_text(json.dumps(said | GENERATION))
    transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=SECONDS).save_pretrained(folder)
    return transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()


def chirp(seed: int, seconds: float) -> np.ndarray:
    """A tone that comes and goes, and rises or falls, in noise."""
    draw, time = np.random.default_rng(seed), np.arange(int(seconds * 16000)) / 16000
    tone = 0.4 * np.sin(2 * np.pi * (100 + draw.uniform(0, 2000) + draw.uniform(-300, 900) * time) * time)
    gate = np.sin(2 * np.pi * draw.uniform(0.3, 3) * time + draw.uniform(0, 6)) > -0.4
    return (gate * (tone + draw.choice([0.0, 0.02, 0.1]) * draw.standard_normal(time.size))).astype(np.float32)
