// Marks to stages, as turngap.core.stages, until the server judges.

export const BUDGET_MS = 800, NATURAL_MS = [200, 400]; // as turngap.core.budget
const MARKS = [
	"endpoint", "transcript", "llm_request", "tool_call", "tool_result", "llm_first_token",
	"tts_request", "tts_first_audio", "tts_first_audible", "sent", "received", "agent_onset",
];
const SLACK_NS = 50e6;

/** A turn's gap, cut at its marks: [{name, ns}]. */
export function stagesOf(turn) {
	const { endNs, onsetNs, receivedNs } = turn;
	if (onsetNs < endNs) return [{ name: "unattributed", ns: onsetNs - endNs }];
	const marks = { ...heardOf(turn)?.marks, received: receivedNs, agent_onset: onsetNs }, stages = [];
	const called = marks.tool_call ?? marks.tool_result;
	let at = endNs, before = true;
	for (const name of MARKS) {
		const mark = marks[name];
		if (called === undefined && name.startsWith("tool_")) continue;
		if (mark !== undefined) {
			const instant = Math.min(Math.max(mark, at), onsetNs);
			stages.push({ name: before ? name : "unattributed", ns: instant - at });
			at = instant;
		}
		before = mark !== undefined;
	}
	return stages;
}

/** Of several agent turns the last that was sent before it arrived. */
export function heardOf({ receivedNs, agentTurns }) {
	const sent = agentTurns.filter(({ marks }) => receivedNs !== null && marks.sent <= receivedNs + SLACK_NS);
	return sent.sort((a, b) => a.marks.sent - b.marks.sent).at(-1);
}
