import { Domain, element, ms, shortOnes } from "./draw.js";
import { figuresOf } from "./stats.js";

const SYMBOLS = { answered: "✓", late: "!", no_reply: "∅", cut_in: "«", abandoned: "–", error: "✗" };
export const byId = (id) => document.getElementById(id);

/** Draws what has changed once a frame, and calls `drawn(turn)`. */
export class View {
	cards = new Map();
	changed = new Set();
	turns = [];
	roundTripMs = null;
	budgetMs = 800;

	constructor(drawn) {
		this.drawn = drawn;
	}

	change(turn, roundTripMs = this.roundTripMs) {
		if (turn) this.changed.add(turn);
		this.roundTripMs = roundTripMs;
		this.frame ??= requestAnimationFrame(() => this.draw());
	}

	clear(turns) {
		this.turns = turns;
		byId("turns").replaceChildren();
		this.cards.clear();
		this.change();
	}

	draw() {
		const { domain } = this;
		this.frame = null;
		this.domain = new Domain(this.turns, this.budgetMs);
		const same = domain?.low === this.domain.low && domain.high === this.domain.high;
		for (const turn of new Set([...(same ? [] : this.turns), ...this.changed])) {
			if (this.turns.includes(turn)) this.card(turn);
			else this.cards.get(turn)?.remove();
		}
		for (const turn of this.changed) this.drawn(turn);
		this.changed.clear();
		this.figures(this.turns.filter(({ ended }) => ended));
	}

	note(text) {
		byId("turns").prepend(element("li", { class: "note" }, text));
	}

	card(turn) {
		if (!this.cards.has(turn)) {
			// Only the latest turn's waterfall is open, and what the reader opened.
			for (const details of document.querySelectorAll("#turns details:not(.kept)")) details.open = false;
			const made = element("li", {}, element("div"), element("details", { open: "" }, element("summary"), element("div")));
			made.querySelector("summary").onclick = ({ currentTarget }) => currentTarget.parentNode.classList.add("kept");
			byId("turns").prepend(made);
			this.cards.set(turn, made);
		}
		const [words, { children: [summary, stages] }] = this.cards.get(turn).children;
		words.replaceChildren(...wordsOf(turn));
		summary.replaceChildren(this.domain.waterfall(turn, true));
		summary.ariaLabel = `Stages of turn ${turn.number}`;
		stages.replaceChildren(this.domain.waterfall(turn), element("p", { class: "small" }, shortOnes(turn)));
	}

	figures(turns) {
		const last = this.turns.findLast(({ gapMs }) => gapMs !== null), trip = this.roundTripMs;
		const show = (id, value) => (byId(id).textContent = value === null || value === undefined ? "–" : `${ms(value)} ms`);
		show("page-ms", last?.gapMs);
		show("agent-ms", last?.agentMs);
		show("ear-ms", last && trip !== null ? last.gapMs + trip : null);
		if (trip === null) byId("ear-ms").textContent = "not calibrated";
		const all = figuresOf(turns), models = [...new Set(turns.map(({ llm }) => llm))];
		byId("rate").textContent = all.n ? `${Math.round((100 * all.hits) / all.n)} %` : "–";
		byId("rate-n").textContent = this.rateWords(all);
		byId("gaps").replaceChildren(...models.map((llm, index) => {
			const own = turns.filter((turn) => turn.llm === llm), figures = figuresOf(own), name = llm ?? "agent";
			const words = `p50 ${figures.p50 === null ? "from n=5 on" : `${ms(figures.p50)} ms`} · ${this.rateWords(figures)}`;
			return element("figure", {}, element("figcaption", {}, element("b", {}, name), ` ${words}`),
				this.domain.dots(own, figures.p50, `Gaps with ${name}: ${words}`, index === models.length - 1));
		}));
	}

	rateWords({ n, hits, interval, others }) {
		const rate = `${hits} of ${n} within ${this.budgetMs} ms`;
		const known = n ? [`${rate} (95 % interval ${interval.map((share) => Math.round(100 * share)).join("–")} %)`] : [];
		return [...known, ...others.map(([word, times]) => `${times} ${word}`)].join(" · ") || "no turns yet";
	}
}

function wordsOf(turn) {
	const { outcome, gapMs, leftOut, stallMs, ended, speaking, yieldNs, number, llm, input } = turn;
	const sure = ended || gapMs !== null, rows = element("dl");
	const row = (name, ...content) => rows.append(element("dt", {}, name), element("dd", {}, ...content));
	const why = leftOut === "device stall" ? `left out: device stall of ${ms(stallMs)} ms` : leftOut;
	if (turn.whyNoGap) row("why", turn.whyNoGap);
	row(input === "typed" ? "typed" : "you", turn.transcript, element("span", { class: "dim" }, ` ${turn.partial}`));
	if (turn.reply) row("agent", turn.reply.trim());
	if (yieldNs !== null) row("barge-in", `silent ${ms(yieldNs / 1e6)} ms after you began`);
	return [
		element("h3", {}, element("span", { class: sure ? outcome : "" }, sure ? `${SYMBOLS[outcome]} ${outcome}` : speaking ? "you speak" : "waiting"),
			gapMs === null ? "" : ` ${ms(gapMs)} ms`, element("span", { class: "dim" }, [` turn ${number}`, llm, why].filter(Boolean).join(" · "))),
		rows,
	];
}
