// SVG drawings: places are per cent of the width, so that they follow the page.

const ROW = 19, DOTS = 34, SHORT_MS = 1;
const NATURAL_MS = [200, 400];
const GROUPS = { endpoint: "listen", transcript: "listen", llm: "think", tts: "speak", sent: "line", received: "line", agent: "line" };

/** Strings among the content become text, never markup. */
export function element(name, attributes = {}, ...content) {
	const svg = /^(svg|rect|line|text|circle|title)$/.test(name);
	const made = document.createElementNS(`http://www.w3.org/${svg ? "2000/svg" : "1999/xhtml"}`, name);
	for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
	made.append(...content);
	return made;
}

export function ms(value) {
	return `${Math.abs(value) < 9.95 ? value.toFixed(1) : value.toFixed(0)}`.replace("-", "−");
}

/** The part of time that is drawn: one for all turns, so that they can be compared by eye. */
export class Domain {
	constructor(turns, budgetMs) {
		const gaps = turns.map(({ gapMs }) => gapMs ?? 0), far = 1.1;
		this.budgetMs = budgetMs;
		this.low = Math.max(Math.min(0, ...gaps) * far, -0.3 * budgetMs);
		this.high = Math.min(Math.max(1.25 * budgetMs, Math.max(0, ...gaps) * far), 2.5 * budgetMs);
	}

	x(value) {
		return Math.min(100, Math.max(0, (100 * (value - this.low)) / (this.high - this.low)));
	}

	ground(height, label, ticks) {
		const upright = (kind, at) => element("line", { class: kind, x1: `${this.x(at)}%`, x2: `${this.x(at)}%`, y1: 0, y2: height });
		const [from, to] = NATURAL_MS.map((at) => this.x(at));
		const svg = element("svg", { height: height + (ticks ? 20 : 0), role: "img", "aria-label": label },
			element("rect", { class: "band", x: `${from}%`, width: `${to - from}%`, height }), upright("zero", 0), upright("rule", this.budgetMs));
		for (const at of ticks ? [0, ...NATURAL_MS, this.budgetMs] : []) {
			const budget = at === this.budgetMs;
			svg.append(element("text", { x: `${this.x(at)}%`, y: height + 14, class: budget ? "tick budget" : "tick" }, budget ? `${at} ms` : `${at}`));
		}
		svg.upright = upright;
		return svg;
	}

	/** A turn's stages: each that can be seen in a row of its own, or (`compact`) all in one. */
	waterfall({ stages, ended }, compact) {
		const spoken = stages.map(({ name, ns }) => `${name} ${ms(ns / 1e6)}`).join(", ") || (ended ? "no reply" : "");
		const shown = stages.filter(({ ns }) => compact || Math.abs(ns) >= SHORT_MS * 1e6);
		const height = compact ? 12 : Math.max(1, shown.length) * ROW;
		const svg = this.ground(height, `Stages in ms: ${spoken}`, !compact);
		let at = 0, row = 0;
		for (const { name, ns } of stages) {
			const value = ns / 1e6, [from, to] = [at, at + value].sort((a, b) => a - b).map((each) => this.x(each));
			at += value;
			if (!shown.some((each) => each.name === name && each.ns === ns)) continue;
			const y = compact ? 0 : row++ * ROW + 3;
			svg.append(element("rect", { class: `bar ${GROUPS[name.split("_")[0]] ?? "unknown"}`, x: `${from}%`, width: `${Math.max(to - from, 0.3)}%`, y, height: compact ? 12 : 13 }));
			if (!compact) svg.append(named(`${value < 0 ? "cut in" : name} ${ms(value)}`, from, to, y + 11));
		}
		if (ended && !stages.length) svg.append(element("line", { class: "silence", x1: `${this.x(0)}%`, x2: "100%", y1: height / 2, y2: height / 2 }));
		return svg;
	}

	/** One dot a turn; the upright stroke is the median. */
	dots(turns, p50, label, ticks) {
		const svg = this.ground(DOTS, label, ticks);
		for (const { gapMs, input, outcome, leftOut, number } of turns) {
			if (gapMs === null || input === "typed") continue;
			const dot = { class: `dot ${leftOut ? "out" : outcome}`, cx: `${this.x(gapMs)}%`, cy: 7 + ((number * 7) % 21), r: 4 };
			svg.append(element("circle", dot, element("title", {}, `turn ${number}: ${ms(gapMs)} ms, ${leftOut ?? outcome}`)));
		}
		if (p50 !== null) svg.append(svg.upright("median", p50));
		return svg;
	}
}

/** A label where there is room: right of the bar, left of it, or on it. */
function named(text, from, to, y) {
	if (to <= 64) return element("text", { x: `${to}%`, y, dx: 5, class: "name" }, text);
	const inside = from <= 40;
	return element("text", { x: `${inside ? to : from}%`, y, dx: -5, class: inside ? "name inside" : "name", "text-anchor": "end" }, text);
}

/** Stages too short for a bar, in words. */
export function shortOnes({ stages }) {
	const names = new Set(stages.filter(({ ns }) => Math.abs(ns) < SHORT_MS * 1e6).map(({ name }) => name));
	return names.size ? `${[...names].join(", ")}: under ${SHORT_MS} ms` : "";
}
