"""Train the Whisper that reads the scenario library, and tell how well it reads.

    python -m training.whisper.train OUT

It is for turngap's own tests and benchmarks, not for people: it knows the library's kind of talk in
synthetic voices. With the recipe as committed, the same machine and number of threads, the same
weights come out. Needs Debian's flite, as the library's recordings do.
"""

# torch and transformers are in the group `training`, not in what the checks run with.
# pyright: reportMissingImports=false

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from faster_whisper.feature_extractor import FeatureExtractor

from training.whisper.files import make_tokenizer
from training.whisper.net import Net, export, spelling
from training.whisper.read import evaluate
from training.whisper.recipe import Recipe
from training.whisper.speech import TRAINED, available, on_the_line, sentences, speak
from turngap.core.audio import FULL_SCALE, Pcm

_PACES = (0.8, 1.2)
_REPORT_EVERY = 50


def utterances(recipe: Recipe) -> list[tuple[str, Pcm]]:
    """What is heard in training: sentences, each by one voice. A few minutes' work.

    Raises:
        SystemExit: an engine is missing, without which other weights would come out.
    """
    if available(TRAINED) != list(TRAINED):
        raise SystemExit("flite is missing: apt-get install flite")
    draw = np.random.default_rng(recipe.seed)
    longest = (recipe.window_s - 1) * 16_000
    made: list[tuple[str, Pcm]] = []
    for text in sentences(recipe.utterances, recipe.seed):
        voice = TRAINED[draw.integers(len(TRAINED))]
        pcm = speak(voice, text, float(draw.uniform(*_PACES)))
        if len(pcm) < longest:
            made.append((text, pcm))
    return made


def features(sounds: Iterable[Pcm], recipe: Recipe) -> torch.Tensor:
    """(utterances, mels, frames), as faster-whisper hears them: what follows the sound is 0."""
    extractor = FeatureExtractor(hop_length=recipe.hop, chunk_length=recipe.window_s)
    rows = []
    for pcm in sounds:
        found = extractor(pcm.astype(np.float32) / np.float32(FULL_SCALE))
        row = np.zeros((found.shape[0], extractor.nb_max_frames), np.float32)
        row[:, : found.shape[1]] = found[:, : row.shape[1]]
        rows.append(row)
    return torch.from_numpy(np.stack(rows))


def train(recipe: Recipe, heard: list[tuple[str, Pcm]], directory: Path) -> None:
    """Train from `heard` and write the model into `directory`."""
    tokenizer = make_tokenizer((text for text, _ in heard), recipe.pieces)
    net = Net(recipe, tokenizer)
    optimiser = torch.optim.AdamW(net.parameters(), lr=recipe.rate, weight_decay=0.01)
    draw = np.random.default_rng(recipe.seed + 1)
    begun = time.monotonic()
    net.train()
    for step in range(recipe.steps):
        chosen = [heard[at] for at in draw.integers(len(heard), size=recipe.batch)]
        gently = step < recipe.gentle_steps
        sounds = [on_the_line(pcm, draw, gently=gently) for _, pcm in chosen]
        texts = [tokenizer.encode(f" {text}").ids for text, _ in chosen]
        with torch.autocast("cpu", torch.bfloat16):
            loss = net.loss(features(sounds, recipe), texts, [spelling(t) for t, _ in chosen])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate_at(step)
        optimiser.step()
        optimiser.zero_grad()
        if (step + 1) % _REPORT_EVERY == 0:
            spent_s = time.monotonic() - begun
            print(f"{step + 1:6d}/{recipe.steps} {spent_s:6.0f} s  {loss.item():.4f}", flush=True)
    export(net, tokenizer, recipe, directory)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--steps", type=int, help="fewer of them, to try it out")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    recipe = Recipe() if arguments.steps is None else replace(Recipe(), steps=arguments.steps)
    train(recipe, utterances(recipe), arguments.directory)
    told = {"recipe": recipe.as_json(), "read": evaluate(arguments.directory)}
    path = arguments.directory / "made.json"
    path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    for name, count in told["read"].items():
        print(f"{name}: {count['wrong']} of {count['words']} words wrong ({count['wer']:.1%})")


if __name__ == "__main__":
    main()
