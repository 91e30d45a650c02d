"""Whether speech that begins now is made as fast as it is heard. Pure arithmetic."""

from collections.abc import Sequence

from turngap.core.speeds import VoiceSpeed


def lasts(speed: VoiceSpeed, made_ms: float, pieces: Sequence[str]) -> bool:
    """Whether `made_ms` of speech and what `pieces` will sound like never run dry.

    The pieces are made one after another, each heard only when the whole of it is there; each is
    taken for as slow to make and as short to hear as may be expected of this voice. So a voice that
    is slower than speech begins only when the rest is made by the time it is due.
    """
    dry_ms, free_ms = made_ms, 0.0
    for piece in pieces:
        least_ms, most_ms = speed.speech_ms(len(piece))
        free_ms += speed.make_ms(most_ms)
        if free_ms > dry_ms:
            return False
        dry_ms += least_ms
    return True
