// What was heard on both sides in, turns out, as turngap.core.turns; but the person's are read from the
// microphone. Instants are whole ns of the page clock (docs/live.md).

import { BUDGET_MS, heardOf, stagesOf } from "./stages.js";

const MS = 1e6;
const PAUSE_NS = 1000 * MS; // within a turn; who goes on later has given up on it
const REACTION_NS = 200 * MS; // who goes on so soon had not finished
const STALE_NS = 500 * MS; // within a sentence's pause it is still the interrupted reply
const NO_REPLY_NS = 6000 * MS, QUIET_NS = 1500 * MS, QUIET_AFTER_DONE_NS = 200 * MS;
const SHORTEST_NS = 200 * MS; // less is a cough, and a turn only if the agent takes it for one
// Where the audio's clock moved so far in a turn, no gap can be trusted.
const STALL_MS = 8, STALL_MARGIN_NS = 100 * MS, READINGS = 2500;

const WHY_NO_GAP = {
	reply_done: "the reply held no audible speech",
	timeout: "no audible reply within 6 s",
	interrupted: "you did not wait for a reply",
	line_lost: "the line was lost before any reply",
};

class Turn {
	onsetNs = null;
	receivedNs = null;
	yieldNs = null;
	ended = null;
	stallMs = null;
	spokenNs = 0; // without pauses
	transcript = "";
	partial = ""; // what of the transcript may still change
	reply = "";
	agentTurns = [];

	constructor(fields) {
		Object.assign(this, fields);
		this.endNs = this.resumedNs = this.startNs;
		this.speaking = this.input === "voice";
	}

	get gapMs() {
		return this.onsetNs === null ? null : (this.onsetNs - this.endNs) / MS;
	}

	get outcome() {
		const { ended, gapMs, input } = this;
		if (ended === "line_lost") return "error";
		if (gapMs === null) return ended && (ended === "interrupted" ? "abandoned" : "no_reply");
		return gapMs < 0 ? "cut_in" : gapMs <= BUDGET_MS || input === "typed" ? "answered" : "late";
	}

	get whyNoGap() {
		return this.onsetNs === null && this.ended ? WHY_NO_GAP[this.ended] : null;
	}

	get leftOut() {
		if (this.input === "typed") return "typed";
		return this.stallMs > STALL_MS ? "device stall" : this.switched ? "LLM switched" : null;
	}

	get stages() {
		return this.judged ?? (this.onsetNs === null ? [] : stagesOf(this));
	}

	/** What the agent alone would report: from its endpoint to its audio. */
	get agentMs() {
		const { endpoint, sent } = heardOf(this)?.marks ?? {};
		return endpoint === undefined ? null : (sent - endpoint) / MS;
	}
}

/** Calls `changed(turn)` with every change, `over(turn)` once when it has ended. */
export class Tracker {
	turns = [];
	llm = null;

	constructor(changed, over) {
		Object.assign(this, { changed, over });
		this.begin();
	}

	begin() {
		// `doneNs`: when the agent called its reply complete; `target`: whose words are its words.
		Object.assign(this, { open: null, agent: [], flushes: [], drift: [], doneNs: -1, target: null });
		this.agentTurns = new Map();
	}

	get agentSpeaking() {
		return this.agent.at(-1)?.end_ns === null;
	}

	/** How the open turn ends where the person ends it. */
	get byPerson() {
		return this.open?.onsetNs === null || this.agentSpeaking ? "interrupted" : "reply_done";
	}

	get latest() {
		return this.turns.at(-1);
	}

	userStart({ ns }) {
		const { input, onsetNs, endNs } = this.open ?? {};
		const goesOn = onsetNs === null ? ns - endNs < PAUSE_NS : ns - onsetNs < REACTION_NS;
		if (input !== "voice" || !goesOn) this.start("voice", ns);
		Object.assign(this.open, { speaking: true, resumedNs: ns });
		this.changed(this.open);
	}

	userEnd({ ns }) {
		const { open } = this;
		if (!open?.speaking) return;
		Object.assign(open, { speaking: false, endNs: ns, spokenNs: open.spokenNs + ns - open.resumedNs });
		this.changed(open);
	}

	start(input, startNs, transcript = "") {
		const { llm, agentSpeaking: overReply } = this;
		this.close(startNs, this.byPerson);
		const number = (this.turns.at(-1)?.number ?? 0) + 1;
		this.open = new Turn({ number, input, startNs, transcript, overReply, llm });
		this.turns.push(this.open);
		this.changed(this.open);
		return this.open;
	}

	/** The agent became audible; `userLastNs`: the person's last audible sample by then. */
	agentStart({ ns, receivedNs, leadNs, userLastNs }) {
		const { open } = this, before = this.agent.at(-1)?.end_ns ?? -Infinity;
		this.agent.push({ onset_ns: ns, received_ns: receivedNs, lead_ns: leadNs, end_ns: null });
		if (!open || open.onsetNs !== null || this.isStale(open, ns, receivedNs, before)) return;
		Object.assign(open, { onsetNs: ns, receivedNs });
		if (open.speaking) open.endNs = Math.max(open.startNs, userLastNs); // its end is told late
		this.changed(open);
	}

	/** Whether this is still the reply to the turn before. */
	isStale({ startNs, overReply }, ns, receivedNs, before) {
		const flushed = this.flushes.some((at) => at >= startNs);
		return receivedNs < startNs || (overReply && !flushed && ns - Math.max(before, startNs) < STALE_NS);
	}

	agentEnd({ ns }) {
		const { open } = this;
		if (!this.agentSpeaking) return;
		this.agent.at(-1).end_ns = ns;
		if (open?.overReply && open.onsetNs === null && ns >= open.startNs) open.yieldNs = ns - open.startNs;
	}

	flushed({ ns }) {
		this.flushes.push(ns);
	}

	switched(llm, cancelled, ns) {
		const { open } = this;
		this.llm = llm;
		if (!cancelled || !open || open.speaking) return;
		open.switched = open.onsetNs === null;
		this.close(ns, "interrupted");
	}

	/** False where there is no turn to take it. */
	transcript(text, final) {
		const { latest: turn } = this;
		if (!turn || turn.input === "typed" || (turn.ended && turn.onsetNs !== null)) return false;
		if (final) turn.transcript = `${turn.transcript} ${text}`.trim();
		turn.partial = final ? "" : text;
		this.changed(turn);
		return true;
	}

	/** What the model said before in the same turn was never heard. */
	replyBegins() {
		const turn = (this.target = this.latest);
		if (turn) turn.reply = turn.onsetNs === null ? "" : `${turn.reply} `;
	}

	replyText({ text }) {
		const turn = this.target ?? this.latest;
		if (!turn) return;
		turn.reply += text;
		this.changed(turn);
	}

	/** Marks of an agent's turn come in pieces, and late. */
	marks({ turn: number, marks, llm }) {
		const known = this.agentTurns.get(number) ?? { marks: {} };
		Object.assign(known.marks, marks);
		this.agentTurns.set(number, known);
		const at = known.marks.sent ?? Math.max(...Object.values(known.marks));
		const turn = this.turns.findLast(({ startNs }) => startNs <= at);
		if (!turn) return;
		for (const each of this.turns) each.agentTurns = each.agentTurns.filter((other) => other !== known);
		turn.agentTurns.push(known);
		turn.llm = llm ?? turn.llm;
		this.changed(turn);
	}

	/** Time passes; `drift`: the machine's clock less the audio's, ms. */
	tick(ns, drift) {
		this.drift.push({ ns, drift });
		if (this.drift.length > READINGS) this.drift.shift();
		const reason = this.open && !this.open.speaking && this.reasonToClose(this.open, ns);
		if (reason) this.close(ns, reason);
	}

	reasonToClose({ onsetNs, endNs }, ns) {
		const waited = ns - endNs > NO_REPLY_NS;
		if (onsetNs === null) return waited && "timeout";
		const { end_ns: quietNs, received_ns: receivedNs } = this.agent.at(-1);
		if (quietNs === null) return null;
		// It cut in: it owes an answer to the rest.
		if (quietNs < endNs) return waited && "reply_done";
		return ns - quietNs > (this.doneNs > receivedNs ? QUIET_AFTER_DONE_NS : QUIET_NS) && "reply_done";
	}

	stallOf({ startNs, onsetNs, endNs }) {
		const within = ({ ns }) => ns >= startNs - STALL_MARGIN_NS && ns <= (onsetNs ?? endNs) + STALL_MARGIN_NS;
		const readings = this.drift.filter(within).map(({ drift }) => drift);
		return readings.length < 2 ? null : Math.max(...readings) - Math.min(...readings);
	}

	/** The person hangs up; who was in mid-sentence has said no turn. */
	finish() {
		const { open } = this;
		if (open && (!open.speaking || open.onsetNs !== null)) this.close(this.drift.at(-1)?.ns ?? open.endNs, this.byPerson);
	}

	close(ns, ended) {
		const turn = this.open;
		if (!turn) return;
		this.userEnd({ ns }); // if in mid-sentence
		this.open = null;
		if (ended !== "line_lost" && isNoise(turn)) {
			this.turns.pop();
			this.changed(turn);
			return;
		}
		Object.assign(turn, {
			ended, endedNs: Math.max(ns, turn.endNs), partial: "", stallMs: this.stallOf(turn),
			flushes: this.flushes.filter((at) => at >= turn.startNs), agent: this.agent.map((each) => ({ ...each })),
		});
		this.agent = this.agent.filter(({ end_ns: end }) => end === null); // to be told with its end
		this.changed(turn);
		this.over(turn);
	}
}

/** A short sound, or an "mm-hm" that stopped no reply, in which the agent heard no words. */
function isNoise({ input, onsetNs, transcript, spokenNs, overReply, yieldNs }) {
	const ignored = input === "voice" && onsetNs === null && !transcript;
	return ignored && (spokenNs < SHORTEST_NS || (overReply && yieldNs === null));
}

/** A finished turn as the server takes it. */
export function measured(turn) {
	const { number, input, agent, ended } = turn;
	return {
		turn: number, input, agent, ended, start_ns: turn.startNs, end_ns: turn.endNs, ended_ns: turn.endedNs,
		over_reply: turn.overReply, flushed_ns: turn.flushes, stall_ms: turn.stallMs,
		view: { page_ms: turn.gapMs, agent_ms: turn.agentMs },
	};
}
