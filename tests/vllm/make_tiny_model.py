"""Write a tiny random Llama and a byte-level tokenizer that a real vLLM serves on a CPU: ``make_tiny_model.py
FOLDER``.

The tokenizer has no merges over the 128 ASCII bytes: one character is one token both ways, so that prompt
lengths are exact by construction and n generated tokens count as n again in any client that tokenises the
text itself. With all 256 bytes in the vocabulary half of the random output would be broken UTF-8, which the
server holds back.
"""

import pathlib
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MAX_LENGTH = 4096
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")


def byte_symbols() -> list[str]:
    """Return the printable symbol that byte-level pre-tokenisation uses for each ASCII byte."""
    printable = [byte for byte in range(256) if 33 <= byte < 127 or 161 <= byte < 173 or 174 <= byte]
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + hidden.index(byte)) for byte in range(128)]


def write_tokenizer(folder: pathlib.Path) -> int:
    """Write the tokenizer and return the size of its vocabulary."""
    vocabulary = {symbol: index for index, symbol in enumerate([*SPECIAL, *byte_symbols()])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=MAX_LENGTH,
    )
    text = "hello, world"
    if fast.decode(fast.encode(text)) != text or len(fast.encode(text, add_special_tokens=False)) != len(
        text
    ):
        raise SystemExit(
            "one character is not one token: the tokenizers library has changed its byte-level alphabet"
        )
    fast.save_pretrained(folder)
    return len(vocabulary)


def write_model(folder: pathlib.Path, vocabulary_size: int) -> None:
    """Write a two-layer model of four attention heads with seeded random weights."""
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
        tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.float32)
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder, safe_serialization=True)


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_model(target, write_tokenizer(target))
