// Marks to stages, as turngap.core.stages has it: stages sum to the gap exactly.

export const BUDGET_MS = 800, NATURAL_MS = [200, 400]; // as turngap.core.budget
const MARKS = [
	"endpoint", "transcript", "llm_request", "llm_first_token", "tts_request", "tts_first_audio",
	"tts_first_audible", "sent", "received", "agent_onset",
];
// Audio cannot arrive before it was sent, but the agent's clock is known to half a round trip only.
const SENT_SLACK_NS = 50e6;

/** An answered turn's gap, cut at its marks: [{name, ns}], whole ns. */
export function stagesOf(turn) {
	const { endNs, onsetNs, receivedNs } = turn;
	if (onsetNs < endNs) return [{ name: "unattributed", ns: onsetNs - endNs }];
	const marks = { ...heardOf(turn)?.marks, received: receivedNs, agent_onset: onsetNs }, stages = [];
	let at = endNs, before = true;
	for (const name of MARKS) {
		const mark = marks[name];
		if (mark !== undefined) {
			const instant = Math.min(Math.max(mark, at), onsetNs);
			stages.push({ name: before ? name : "unattributed", ns: instant - at });
			at = instant;
		}
		before = mark !== undefined;
	}
	return stages;
}

/** Of several agent turns (after a false endpoint) the last that was sent before it arrived. */
export function heardOf({ receivedNs, agentTurns }) {
	const sent = agentTurns.filter(({ marks }) => receivedNs !== null && marks.sent <= receivedNs + SENT_SLACK_NS);
	return sent.sort((a, b) => a.marks.sent - b.marks.sent).at(-1);
}
