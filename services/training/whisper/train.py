"""Train the Whisper that reads the scenario library, and report how well it reads.

    python -m training.whisper.train OUT

It is for turngap's own tests and benchmarks, not for people: it knows the library's kind of talk in
synthetic voices. It continues from its last checkpoint in OUT, where it also keeps the takes. From
the same takes, on the same machine with as many threads, the committed recipe makes the same
weights; new takes differ in the breath of two of espeak-ng's voices. Needs Debian's flite, as the
library's recordings do.
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
from training.whisper.speech import on_the_line
from training.whisper.takes import heard
from turngap.core.audio import FULL_SCALE, Pcm

CHECKPOINT = "checkpoint.pt"
_CHECKPOINT_S = 120
_REPORT_EVERY = 50
_POOL = 8  # batches whose takes are sorted by length
_MOST_MORE = 50  # frames beyond the longest sound, where the encoder reads no more than needed


def features(sounds: Iterable[Pcm], recipe: Recipe, more: int | None = None) -> torch.Tensor:
    """Compute faster-whisper's features (utterances, mels, frames), 0 after the sound.

    They have as many frames as the window, or as the longest sound and `more` if fewer.
    """
    extractor = FeatureExtractor(hop_length=recipe.hop, chunk_length=recipe.window_s)
    found = [extractor(pcm.astype(np.float32) / np.float32(FULL_SCALE)) for pcm in sounds]
    frames = extractor.nb_max_frames
    if more is not None:
        frames = min(frames, max(each.shape[1] for each in found) + more)
    every = np.zeros((len(found), len(found[0]), frames), np.float32)
    for row, each in zip(every, found, strict=True):
        row[:, : each.shape[1]] = each[:, :frames]
    return torch.from_numpy(every)


class Run:
    """A training run: the net, and all that decides what its next step does.

    Args:
        recipe: how it is trained.
        takes: what is heard, with its words.
    """

    def __init__(self, recipe: Recipe, takes: list[tuple[str, Pcm]]) -> None:
        self.step = 0
        self.net = Net(recipe, tokenizer := make_tokenizer((t for t, _ in takes), recipe.pieces))
        self.net.train()
        self._tokenizer = tokenizer
        self._recipe = recipe
        self._takes = sorted(takes, key=lambda take: len(take[1]))
        self._optimisers = self.net.optimisers()
        self._draw = np.random.default_rng(recipe.seed + 1)
        self._next: list[list[int]] = []  # batches of takes, each of about equal length

    def take_step(self) -> tuple[float, float]:
        """Learn from a batch; return its losses (see `Net.losses`)."""
        recipe = self._recipe
        chosen = [self._takes[at] for at in self._batch()]
        narrow = self._draw.random() < recipe.narrow_share
        more = int(self._draw.integers(_MOST_MORE)) if narrow else None
        gently = self.step < recipe.gentle_steps
        sounds = [on_the_line(pcm, self._draw, gently=gently) for _, pcm in chosen]
        texts = [self._tokenizer.encode(f" {text}").ids for text, _ in chosen]
        with torch.autocast("cpu", torch.bfloat16):
            written, spelt = self.net.losses(
                features(sounds, recipe, more), texts, [spelling(text) for text, _ in chosen]
            )
        ((1 - recipe.ctc_share) * written + recipe.ctc_share * spelt).backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["highest"] * recipe.height_at(self.step)
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        return written.item(), spelt.item()

    def _batch(self) -> list[int]:
        if not self._next:
            gently = self.step < self._recipe.gentle_steps
            known = len(self._takes) // 2 if gently else len(self._takes)
            pool = self._draw.integers(known, size=_POOL * self._recipe.batch)
            groups = np.split(np.sort(pool), _POOL)
            self._next = [groups[at].tolist() for at in self._draw.permutation(_POOL)]
        return self._next.pop()

    def export(self, directory: Path) -> None:
        """Write what faster-whisper loads."""
        export(self.net, self._tokenizer, self._recipe, directory)

    def keep(self, path: Path) -> None:
        """Write the whole state of the run."""
        state = {
            "recipe": self._recipe.as_json(),
            "step": self.step,
            "net": self.net.state_dict(),
            "optimisers": [each.state_dict() for each in self._optimisers],
            "draw": self._draw.bit_generator.state,
            "next": self._next,
            "torch": torch.get_rng_state(),
        }
        partial = path.with_suffix(".part")
        torch.save(state, partial)
        partial.replace(path)

    def go_on_from(self, path: Path) -> None:
        """Continue from what `keep` wrote.

        Raises:
            SystemExit: it was made by another recipe.
        """
        state = torch.load(path)
        if not self._recipe.continues(Recipe(**state["recipe"]), state["step"]):
            raise SystemExit(f"{path} is of another recipe: remove it, or give another directory")
        self.net.load_state_dict(state["net"])
        for each, saved in zip(self._optimisers, state["optimisers"], strict=True):
            each.load_state_dict(saved)
        self._draw.bit_generator.state = state["draw"]
        self._next = state["next"]
        torch.set_rng_state(state["torch"])
        self.step = state["step"]


def train(recipe: Recipe, directory: Path) -> None:
    """Train to the end, from the last checkpoint in `directory`, and write the model there."""
    directory.mkdir(parents=True, exist_ok=True)
    run = Run(recipe, heard(recipe, directory))
    checkpoint = directory / CHECKPOINT
    if checkpoint.exists():
        run.go_on_from(checkpoint)
    kept = time.monotonic()
    while run.step < recipe.steps:
        written, spelt = run.take_step()
        if run.step % _REPORT_EVERY == 0:
            spent_s = time.process_time()
            told = f"written {written:.4f}  spelt {spelt:.4f}"
            print(f"{run.step:6d}/{recipe.steps} {spent_s:6.0f} CPU s  {told}", flush=True)
        if time.monotonic() - kept > _CHECKPOINT_S or run.step == recipe.steps:
            kept = time.monotonic()
            run.keep(checkpoint)
    run.export(directory / "model")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="for checkpoints; the model is in OUT/model")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--steps", type=int, help="another number of them")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    recipe = Recipe() if arguments.steps is None else replace(Recipe(), steps=arguments.steps)
    train(recipe, arguments.directory)
    model = arguments.directory / "model"
    told = {"recipe": recipe.as_json(), "read": evaluate(model)}
    path = model / "made.json"
    path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    for name, count in told["read"].items():
        print(f"{name}: {count['wrong']} of {count['words']} words wrong ({count['wer']:.1%})")


if __name__ == "__main__":
    main()
