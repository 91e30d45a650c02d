"""The names of what is sent: where OpenTelemetry's conventions for GenAI have one, it is theirs.

docs/telemetry.md lists them all; a test holds the two together.
"""

# --- spans ------------------------------------------------------------------------------------

# The span of a conversation is called this and the agent's name, as the conventions have it.
INVOKE_AGENT = "invoke_agent"
TURN_SPAN = "turngap.turn"
# A stage's span: this and its name, as in `turngap.llm_first_token`.
STAGE_SPAN = "turngap."

# What each attribute says, in words; docs/telemetry.md has these sentences.
CONVERSATION = {
    "gen_ai.operation.name": "Always `invoke_agent`.",
    "gen_ai.agent.name": "The agent's name: the stack's, or of a URL its host, port and path.",
    "gen_ai.conversation.id": "The run, the scenario, the round and the phase, with slashes.",
    "error.type": "What kind of error ended the call, such as `agent.line_lost`, if one did; in "
    "`load` what became of the turn that was missed, such as `refused`.",
    "server.address": "The host of the agent's URL.",
    "server.port": "The port of the agent's URL.",
    "turngap.run": "The name of the run's folder.",
    "turngap.scenario": "The scenario's name.",
    "turngap.repeat": "The round, from 1.",
    "turngap.phase_ms": "By how much the audio was shifted against the agent's VAD frames.",
    "turngap.label": "What `--label` gave.",
    "turngap.commit": "The commit of the repository around the working directory.",
    "turngap.dialect": "The protocol that was spoken.",
    "turngap.turns": "How many turns were played.",
    "turngap.call": "`load`: the call's number in its step.",
    "turngap.step": "`load`: the step's number.",
    "turngap.sessions": "`load`: how many calls at once the step held.",
}
TURN = {
    "gen_ai.conversation.id": "The conversation's.",
    "error.type": "`error` or `no_reply`, if the outcome is one of these.",
    "turngap.turn": "The turn's number in its conversation, from 1.",
    "turngap.llm": "The LLM that answered, where the agent may change it.",
    "turngap.outcome": "`answered`, `late`, `no_reply`, `cut_in`, `abandoned` or `error`.",
    "turngap.gap_ms": "The heard gap: the agent's first audible sample after the person's last.",
    "turngap.why_no_gap": "Why there is no gap, where there is none.",
    "turngap.cut_in": "Whether the agent became audible before the person had finished.",
    "turngap.budget_ms": "The budget of this turn.",
    "turngap.within_budget": "Whether the turn counts as a hit.",
    "turngap.agent.gap_ms": "The same gap as the agent itself claims it, where it told.",
    "turngap.agent.gap_source": "Where the claim comes from: `pipecat`, which is the figure of "
    "its `turn.user_bot_latency_seconds`, or `marks`, from the agent's own marks.",
    "turngap.gap_difference_ms": "The heard gap minus the claimed one.",
    "turngap.lead_ms": "The part of the gap in which the agent played silence.",
    "turngap.waited_ms": "`load`: how much later than intended the person could begin. The "
    "histogram of gaps includes it.",
    "turngap.yield_ms": "Barge-in: from the person's onset to silence at the caller's ear.",
    "turngap.right": "Whether the answer was right, where that was judged.",
    "turngap.tools": "The tools that the agent called.",
    "turngap.error": "What the agent said that kept it from replying.",
    "turngap.left_out": "Why no figure of the run counts this turn.",
    "turngap.starved": "Whether turngap itself was late, so that the gap may be too long.",
    "turngap.late_ms": "How late turngap's own packets were at most.",
    "turngap.say": "What the person said. Only if message contents are wanted, see below.",
    "turngap.transcript": "What the agent understood. Only if message contents are wanted.",
    "turngap.reply": "What the agent says it answered. Only if message contents are wanted.",
}
STAGE = {
    "turngap.stage": "The stage's name; `unattributed` is what no mark explains.",
    "turngap.stage_ms": "What it took. The stages of a turn sum to its gap.",
}

# --- metrics ----------------------------------------------------------------------------------

# Each with its unit, its attributes and what it counts.
GAP = "turngap.turn.gap"
CLAIMED = "turngap.turn.agent_gap"
STAGES = "turngap.stage.duration"
YIELD = "turngap.turn.yield"
# Not `turngap.turns`: in Prometheus, `turngap serve` has `turngap_turns_total`.
TURNS = "turngap.turn.outcomes"
METRICS = {
    GAP: ("s", "histogram", "The heard gap of turns with a reply after the person's end."),
    CLAIMED: ("s", "histogram", "The same gap as the agent claims it, where it told."),
    STAGES: ("s", "histogram", "What each stage of these turns took; `turngap.stage` names it."),
    YIELD: ("s", "histogram", "Barge-in: from the person's onset to silence."),
    TURNS: (
        "{turn}",
        "counter",
        "Turns by `turngap.outcome`; of `load` also those that were missed, as `refused`.",
    ),
}
METRIC_ATTRIBUTES = ("gen_ai.agent.name", "turngap.outcome", "turngap.stage")

# Edges of the buckets of a stage and of an engine, in seconds; those of a gap are GAP_BUCKETS_S.
STAGE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.5, 3.0, 6.0)
