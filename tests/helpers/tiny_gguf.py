"""A language model of 115 kB in GGUF format that answers with random letters."""

from pathlib import Path

import gguf
import numpy as np
from gguf.constants import TokenType

CONTEXT = 2048
_WIDTH = 32
_SPOKEN = b"abcdefghijklmnopqrstuvwxyz ."
_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_tiny_gguf(path: Path) -> Path:
    """Write the model, in which each byte of a text is a token."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(2 * _WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // 2)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(_TEMPLATE)
    random = np.random.default_rng(0)
    wide = {"attn_q": 1, "attn_k": 1, "attn_v": 1, "attn_output": 1, "ffn_gate": 2, "ffn_up": 2}
    shapes = {f"blk.0.{name}": (n * _WIDTH, _WIDTH) for name, n in wide.items()}
    shapes |= {"blk.0.ffn_down": (_WIDTH, 2 * _WIDTH)}
    shapes |= {"token_embd": (len(tokens), _WIDTH)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.5, shape).astype(np.float32))
    output = np.zeros((len(tokens), _WIDTH), np.float32)
    output[[3 + byte for byte in _SPOKEN]] = random.normal(0, 0.5, (len(_SPOKEN), _WIDTH))
    writer.add_tensor("output.weight", output)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(_WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
