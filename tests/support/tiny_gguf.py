"""Makes a tiny llama model with random weights, for a real llama.cpp server without a download.

What it says is nonsense in syllables, but always valid text and never an end of turn: a stream runs to
`max_tokens`. The same shape and seed give the same file. Needs the packages `gguf` and `numpy`.

How the nonsense is kept in bounds: a llama has no bias on its output, so one is built. Coordinate 0 of the
residual stream holds the same constant for every token (the embeddings set it and no layer writes to it),
which makes column 0 of the output matrix a bias per token: high for syllables, low for everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

CONSONANTS: Final = "bdfgklmnprstvz"
VOWELS: Final = "aeiou"
SPACE: Final = "\u2581"

TEMPLATE: Final = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """How big the model is; the defaults decode some hundred tokens a second on one old core."""

    layers: int = 4
    width: int = 256
    inner: int = 512
    heads: int = 4
    context: int = 16384
    seed: int = 1

    @property
    def head_width(self) -> int:
        """Return the size of one attention head."""
        return self.width // self.heads


@dataclass
class Vocabulary:
    """Pieces of a SentencePiece tokenizer: specials, bytes, printable characters, syllables."""

    pieces: list[str]
    kinds: list[int]
    scores: list[float]

    @property
    def spoken(self) -> list[int]:
        """Return the ids that the model may say: the space and the syllables."""
        return [
            number
            for number, piece in enumerate(self.pieces)
            if piece == SPACE or (len(piece) == 2 and piece[0] in CONSONANTS and piece[1] in VOWELS)
        ]


def vocabulary() -> Vocabulary:
    """Return the vocabulary: a syllable is one token, all other text goes by character or by byte."""
    made = Vocabulary([], [], [])

    def add(piece: str, kind: int, score: float = 0.0) -> None:
        made.pieces.append(piece)
        made.kinds.append(kind)
        made.scores.append(score)

    add("<unk>", gguf.TokenType.UNKNOWN)
    add("<s>", gguf.TokenType.CONTROL)
    add("<|end|>", gguf.TokenType.CONTROL)
    for value in range(256):
        add(f"<0x{value:02X}>", gguf.TokenType.BYTE)
    # Merges prefer the higher score: a syllable before its letters.
    for consonant in CONSONANTS:
        for vowel in VOWELS:
            add(consonant + vowel, gguf.TokenType.NORMAL, -1.0)
    add(SPACE, gguf.TokenType.NORMAL, -2.0)
    for code in range(0x21, 0x7F):
        add(chr(code), gguf.TokenType.NORMAL, -3.0)
    return made


def write(path: Path, shape: Shape | None = None) -> None:
    """Write the model to `path`; some megabytes, well under a second."""
    shape = shape or Shape()
    words = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, shape, words)
    for name, tensor in _weights(shape, words).items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, shape: Shape, words: Vocabulary) -> None:
    writer.add_name("tiny-random")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words.pieces))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words.pieces)
    writer.add_token_types(words.kinds)
    writer.add_token_scores(words.scores)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)


def _weights(shape: Shape, words: Vocabulary) -> dict[str, Matrix]:
    random = np.random.default_rng(shape.seed)

    def normal(rows: int, columns: int, gain: float = 1.0) -> Matrix:
        matrix = random.standard_normal((rows, columns), dtype=np.float32)
        return matrix * np.float32(gain / np.sqrt(columns))

    def silent_on_0(matrix: Matrix) -> Matrix:
        matrix[0] = 0
        return matrix

    def ones() -> Matrix:
        return np.ones(shape.width, dtype=np.float32)

    tokens, width, inner = len(words.pieces), shape.width, shape.inner
    embeddings = random.standard_normal((tokens, width), dtype=np.float32)
    embeddings[:, 0] = 3.0
    output = normal(tokens, width, gain=1.5)
    output[:, 0] = -20.0
    output[words.spoken, 0] = 10.0
    weights = {"token_embd": embeddings, "output_norm": ones(), "output": output}
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        weights |= {
            f"{block}.attn_norm": ones(),
            f"{block}.attn_q": normal(width, width),
            f"{block}.attn_k": normal(width, width),
            f"{block}.attn_v": normal(width, width),
            f"{block}.attn_output": silent_on_0(normal(width, width, gain=0.5)),
            f"{block}.ffn_norm": ones(),
            f"{block}.ffn_gate": normal(inner, width),
            f"{block}.ffn_up": normal(inner, width),
            f"{block}.ffn_down": silent_on_0(normal(width, inner, gain=0.5)),
        }
    return weights
