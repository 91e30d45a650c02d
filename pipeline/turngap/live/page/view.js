import { dots, element, ms, shortOnes, waterfall } from "./draw.js";

const SYMBOLS = { answered: "✓", late: "!", no_reply: "∅", cut_in: "«", abandoned: "–", error: "✗" };
export const byId = (id) => document.getElementById(id);

/** Draws what has changed, once a frame. */
export class View {
	cards = new Map();
	changed = new Set();
	turns = [];
	told = {}; // by the server: figures of all turns, and of each model's
	roundTripMs = null;
	simulated = new Set(); // the LLMs that are, by name

	change(turn, roundTripMs = this.roundTripMs) {
		if (turn) this.changed.add(turn);
		this.roundTripMs = roundTripMs;
		this.frame ??= requestAnimationFrame(() => this.draw());
	}

	named(llm) {
		return this.simulated.has(llm) ? `${llm} (simulated)` : llm;
	}

	clear(turns) {
		Object.assign(this, { turns, told: {} });
		byId("turns").replaceChildren();
		this.cards.clear();
		this.change();
	}

	draw() {
		this.frame = null;
		for (const turn of this.changed) {
			if (this.turns.includes(turn)) this.card(turn);
			else this.cards.get(turn)?.remove();
		}
		this.changed.clear();
		this.numbers();
		this.gaps();
	}

	note(text) {
		byId("turns").prepend(element("li", { class: "note" }, text));
	}

	card(turn) {
		if (!this.cards.has(turn)) {
			const details = element("details", { name: "stages" }, element("summary"), element("div"));
			this.cards.set(turn, element("li", {}, element("div"), details));
			byId("turns").prepend(this.cards.get(turn));
			details.open = true; // and no other of that name
		}
		const [words, { children: [summary, stages] }] = this.cards.get(turn).children;
		words.replaceChildren(...wordsOf(turn, this.named(turn.llm)));
		summary.replaceChildren(waterfall(turn, true));
		summary.ariaLabel = `Stages of turn ${turn.number}`;
		stages.replaceChildren(waterfall(turn), element("p", { class: "small" }, shortOnes(turn)));
	}

	numbers() {
		const last = this.turns.findLast(({ gapMs, leftOut }) => gapMs !== null && !leftOut), trip = this.roundTripMs;
		const show = (id, value) => (byId(id).textContent = value == null ? "–" : `${ms(value)} ms`);
		show("page-ms", last?.gapMs);
		show("agent-ms", last?.agentMs);
		byId("agent-ms").closest("div").hidden = document.body.classList.contains("foreign") && last?.agentMs == null;
		show("ear-ms", trip === null ? null : last && last.gapMs + trip);
		byId("ear-note").textContent = `with your audio devices${trip === null ? ": not calibrated" : ""}`;
	}

	gaps() {
		const { told: { all, llms = {} }, turns } = this, last = Object.keys(llms).at(-1);
		const show = (id, { percent = "–", words = "no turn" } = {}) => {
			byId(id).textContent = percent;
			byId(`${id}-n`).textContent = words;
		};
		show("rate", all);
		show("cut-ins", all?.cut_ins);
		byId("so-far").hidden = !last;
		byId("gaps").replaceChildren(...Object.entries(llms).map(([name, { p50_ms, caption }]) => {
			const own = turns.filter(({ ended, llm }) => ended && (llm ?? "agent") === name);
			return element("figure", {}, element("figcaption", {}, element("b", {}, this.named(name)), ` ${caption}`),
				dots(own, p50_ms, `Gaps: ${this.named(name)}, ${caption}`, name === last));
		}));
	}
}

function wordsOf(turn, llm) {
	const { outcome, gapMs, leftOut, stallMs, ended, speaking, yieldNs, number, input, whyNoGap, relayMs } = turn;
	const sure = ended || gapMs !== null, rows = element("dl");
	const row = (name, ...content) => rows.append(element("dt", {}, name), element("dd", {}, ...content));
	const why = leftOut === "device stall" ? `left out: device stall of ${ms(stallMs)} ms` : leftOut;
	if (whyNoGap) row("why", whyNoGap);
	row(input === "typed" ? "typed" : "you", turn.transcript, element("span", { class: "dim" }, ` ${turn.partial}`));
	if (turn.reply) row("agent", turn.reply.trim());
	if (relayMs != null) row("relay", `${ms(relayMs)} ms of the gap is turngap’s own`);
	if (yieldNs !== null) row("barge-in", `silent ${ms(yieldNs / 1e6)} ms after you began`);
	return [
		element("h3", {}, element("span", { class: sure ? outcome : "" }, sure ? `${SYMBOLS[outcome]} ${outcome}` : speaking ? "you speak" : "waiting"),
			gapMs === null ? "" : ` ${ms(gapMs)} ms`, element("span", { class: "dim" }, [` turn ${number}`, llm, why].filter(Boolean).join(" · "))),
		rows,
	];
}
