"""The project's own tokenizer, the chat template, and dialogues as token ids."""

import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from training.grammar.dialogue import Dialogue, make_dialogues

PAD, UNKNOWN, END = "<pad>", "<unk>", "<|end|>"
ROLES = ("system", "user", "assistant")
SPECIAL = (PAD, UNKNOWN, END, *(f"<|{role}|>" for role in ROLES))
VOCABULARY = 1024
_DIALOGUES_TO_LEARN_FROM = 20_000
# Half-heard replies: a reply that was interrupted stays cut in the conversation's history.
_CUT = 0.05

# What a person says reaches the model as a recogniser writes it, whichever one it was: lower case,
# no marks. Facts in the system prompt keep theirs, because they part one from the next.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- set text = message['content'] | lower | trim -%}"
    "{%- if message['role'] == 'user' -%}"
    "{%- set text = text | replace(',', '') | replace('.', '') | replace('?', '')"
    " | replace('!', '') | replace(';', '') | replace(':', '') -%}"
    "{%- endif -%}"
    "{%- set role = 'system' if message['role'] == 'developer' else message['role'] -%}"
    "{{ '<|' + role + '|>' + text + '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A dialogue as token ids, with a flag for each that the model is to predict.

    Attributes:
        ids: the whole dialogue, system prompt first.
        learn: as long as `ids`; true for the tokens of replies and the mark that ends one.
        replies: for each turn the half-open range of `ids` that its reply takes, end mark included.
    """

    ids: list[int]
    learn: list[bool]
    replies: list[tuple[int, int]]


def train_tokenizer(seed: int) -> Tokenizer:
    """Train a byte-pair vocabulary on training dialogues alone."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"[’‘]"), "'")]
    )
    # A word keeps the space before it, also after a role's mark; marks stand alone.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="always"),
            pre_tokenizers.Split(Regex(r"[.,?!:;]"), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=list("abcdefghijklmnopqrstuvwxyz0123456789 .,?!:;'-"),
        show_progress=False,
    )
    dialogues = itertools.islice(make_dialogues(seed, holding=False), _DIALOGUES_TO_LEARN_FROM)
    tokenizer.train_from_iterator(
        (message["content"].lower() for d in dialogues for message in d.messages()), trainer
    )
    return tokenizer


def encode(
    tokenizer: Tokenizer, dialogue: Dialogue, *, cuts: random.Random | None = None
) -> Encoded:
    """Encode `dialogue` as the chat template writes it.

    Args:
        tokenizer: a tokenizer from `train_tokenizer`.
        dialogue: what was said.
        cuts: if given, some replies but the last are cut short at random, as an interruption
            leaves them; nothing is to be learned from those.
    """
    messages = dialogue.messages()
    texts = [f"<|{m['role']}|>{m['content'].lower()}{END}" for m in messages]
    ids: list[int] = []
    learn: list[bool] = []
    replies: list[tuple[int, int]] = []
    for index, (message, piece) in enumerate(
        zip(messages, tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True)
    ):
        part, answer = piece.ids, message["role"] == "assistant"
        last = index == len(messages) - 1
        if answer and cuts and not last and cuts.random() < _CUT:
            part, answer = [*part[: cuts.randint(2, len(part) - 1)], part[-1]], False
        if message["role"] == "assistant":
            replies.append((len(ids) + 1, len(ids) + len(part)))
        ids += part
        learn += [False] + [answer] * (len(part) - 1)
    return Encoded(ids, learn, replies)


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write a tokenizer and its chat template as files for transformers and vLLM."""
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "chat_template": CHAT_TEMPLATE,
    }
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
