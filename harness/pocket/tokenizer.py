"""The pocket model's tokenizer: byte-level BPE, as Qwen's, in which every piece of the language is one token."""

from pathlib import Path
from typing import Any

from harness.pocket.transformers_cpu import import_transformers
from harness.pocket.vocabulary import PIECES

END = "<|endoftext|>"
"""The token after an answer; its id is 0."""

# As in Qwen's tokenizers; the pocket model never sees them.
_CHAT_TOKENS = ("<|im_start|>", "<|im_end|>")


def make_tokenizer() -> Any:
    """Makes the tokenizer, always the same one; any other text falls back to smaller tokens, down to bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,  # more than there is to merge, so that every piece ends up whole
        min_frequency=1,
        show_progress=False,
        special_tokens=[END, *_CHAT_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(PIECES, trainer)
    return tokenizer


def save_tokenizer(out: Path) -> None:
    """Writes it into a folder, as transformers and vLLM load it."""
    transformers = import_transformers()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(), eos_token=END, pad_token=END)
    fast.save_pretrained(out)
