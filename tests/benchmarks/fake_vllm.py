"""A vLLM as its wire has it: streamed chat completions, and its own counters."""

import json
from collections import Counter
from typing import Any

from aiohttp import web

PROMPT_TOKENS = 31


class FakeVllm:
    """Answers at once, with as many tokens as it is asked for, and counts them as vLLM does."""

    def __init__(self) -> None:
        self.generated = 0
        self.priorities: Counter[int | None] = Counter()

    async def metrics(self, _: web.Request) -> web.Response:
        lines = [
            "# TYPE vllm:generation_tokens counter",
            f"vllm:generation_tokens_total {self.generated}",
        ]
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name} 0.5"]
        of_requests = ("request_queue_time_seconds", "request_prefill_time_seconds")
        for name in (*of_requests, "iteration_tokens_total"):
            lines += [f"# TYPE vllm:{name} histogram", f'vllm:{name}_bucket{{le="+Inf"}} 1']
            lines += [f"vllm:{name}_sum 0.1", f"vllm:{name}_count 1"]
        return web.Response(text="\n".join([*lines, ""]))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        assert body["ignore_eos"] is body["stream"] is True
        self.priorities[body.get("priority")] += 1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        told = body.get("stream_options") or {}
        for number in range(1, body["max_tokens"] + 1):
            chunk: dict[str, Any] = {"choices": [{"delta": {"content": "x"}}]}
            if told.get("continuous_usage_stats"):
                chunk["usage"] = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": number}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.generated += 1
        if told.get("include_usage"):
            usage = {"choices": [], "usage": {"prompt_tokens": PROMPT_TOKENS}}
            await response.write(f"data: {json.dumps(usage)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response
