"""Make a Llama of 0.4 million random parameters and a tokenizer for it, without any download.

Shell. Runs inside the vLLM environment. The weights are the same each time, so that two engines
that load them agree token for token. Not a model to talk to: see ``convert_smollm2.py`` for one.

Usage: ``make_tiny_model.py FOLDER``.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MAX_POSITIONS = 4096
WORDS = (
    "prefill decode lease block token engine cache heartbeat transfer a the of and "
    "to in is kept read held sent until before after while pinned renewed released"
)
SPECIAL = ("<|pad|>", "<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}"
    "{{ message['content'] }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on sentences of our own: every input has an encoding."""
    rng = random.Random(20)
    sentences = [" ".join(rng.choices(WORDS.split(), k=32)) for _ in range(256)]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
    )
    core.train_from_iterator(sentences, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2]
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = MAX_POSITIONS
    return tokenizer


def make_model(vocabulary_size: int) -> LlamaForCausalLM:
    """Draw two layers of weights; the wide range keeps greedy choices far from ties."""
    torch.manual_seed(135)
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        initializer_range=0.25,
    )
    return LlamaForCausalLM(config).to(torch.float32)


def main() -> None:
    """Write tokenizer and weights."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(len(tokenizer)).save_pretrained(folder, safe_serialization=True)


if __name__ == "__main__":
    main()
