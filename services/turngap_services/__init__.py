"""The engines that ship with turngap, as `BackendSpec`s for its registry.

Importing this package imports no engine: each is imported by its spec's `create` or `prepare`.
"""

from turngap.backends import BackendSpec
from turngap_services.llm.combine import SPECS as COMBINED
from turngap_services.llm.hosted import ANTHROPIC, CEREBRAS, GROQ, OPENAI
from turngap_services.llm.llama import SPEC as LLAMA
from turngap_services.llm.local import SPEC as LOCAL
from turngap_services.llm.sim import SERVED
from turngap_services.llm.sim import SPEC as SIM
from turngap_services.llm.small import SPEC as SMALL
from turngap_services.llm.vllm import SPEC as VLLM
from turngap_services.stt import POCKETSPHINX, WHISPER
from turngap_services.tts import ESPEAK, PIPER
from turngap_services.turn import ADAPTIVE, SMART_TURN, VAD

SPECS: tuple[BackendSpec, ...] = (
    *(VAD, SMART_TURN, ADAPTIVE),
    *(POCKETSPHINX, WHISPER),
    *(SIM, *SERVED, *COMBINED, SMALL, LLAMA, LOCAL, VLLM, OPENAI, CEREBRAS, GROQ, ANTHROPIC),
    *(ESPEAK, PIPER),
)
