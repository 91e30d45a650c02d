// SVG drawings: places are per cent of the width, so that they follow the page.

import { BUDGET_MS, NATURAL_MS } from "./stages.js";

const LOW_MS = -0.2 * BUDGET_MS, WIDTH_MS = 2 * BUDGET_MS; // what is drawn: the budget in the middle
const ROW = 19, BAR = 12, DOTS = 34, SHORT_MS = 1;

/** Strings among the content become text, never markup. */
export function element(name, attributes = {}, ...content) {
	const svg = /^(svg|rect|line|text|circle|title)$/.test(name);
	const made = document.createElementNS(`http://www.w3.org/${svg ? "2000/svg" : "1999/xhtml"}`, name);
	for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
	made.append(...content);
	return made;
}

export function ms(value) {
	return value.toFixed(Math.abs(value) < 9.95 ? 1 : 0).replace("-", "−");
}

function place(atMs) {
	return Math.min(100, Math.max(0, (100 * (atMs - LOW_MS)) / WIDTH_MS));
}

function upright(kind, atMs, height) {
	const x = `${place(atMs)}%`;
	return element("line", { class: kind, x1: x, x2: x, y2: height });
}

function bar(kind, from, to, y, height) {
	return element("rect", { class: kind, x: `${from}%`, width: `${Math.max(to - from, 0.3)}%`, y, height });
}

function ground(height, label, ticks) {
	const tick = (at) => element("text", { x: `${place(at)}%`, y: height + 14, class: "tick" }, at === BUDGET_MS ? `${at} ms` : at);
	return element("svg", { height: height + (ticks ? 20 : 0), role: "img", "aria-label": label },
		bar("band", ...NATURAL_MS.map(place), 0, height), upright("zero", 0, height), upright("rule", BUDGET_MS, height),
		...(ticks ? [0, ...NATURAL_MS, BUDGET_MS].map(tick) : []));
}

/** A turn's stages: each that can be seen in a row of its own, or (`compact`) all in one. */
export function waterfall({ stages, ended }, compact) {
	const spoken = stages.map(({ name, ns }) => `${name} ${ms(ns / 1e6)}`).join(", ") || (ended ? "no reply" : "");
	const height = compact ? BAR : Math.max(1, stages.filter(isSeen).length) * ROW;
	const svg = ground(height, `Stages in ms: ${spoken}`, !compact), rule = svg.querySelector(".rule");
	if (!compact) svg.classList.add("named");
	let at = 0, y = compact ? 0 : 4;
	for (const stage of stages) {
		const { name, ns } = stage, value = ns / 1e6, ends = [place(at), place((at += value))].sort((a, b) => a - b);
		if (!compact && !isSeen(stage)) continue;
		rule.before(bar(name.split("_")[0], ...ends, y, BAR)); // which shows where it is crossed
		if (compact) continue;
		const label = `${value < 0 ? "cut in" : name} ${ms(value)}`; // left of the drawing, clear of the rule
		svg.append(element("text", { x: 0, y: y + 10, dx: -8, class: "name" }, label));
		y += ROW;
	}
	if (ended && !stages.length) svg.append(element("line", { class: "silence", x1: `${place(0)}%`, x2: "100%", y1: 6, y2: 6 }));
	return svg;
}

function isSeen({ ns }) {
	return Math.abs(ns) >= SHORT_MS * 1e6;
}

/** Stages too short for a bar, in words. */
export function shortOnes({ stages }) {
	const names = new Set(stages.filter((stage) => !isSeen(stage)).map(({ name }) => name));
	return names.size ? `${[...names].join(", ")}: under ${SHORT_MS} ms` : "";
}

/** One dot a turn; the upright stroke is the median. */
export function dots(turns, p50, label, ticks) {
	const svg = ground(DOTS, label, ticks);
	for (const { gapMs, input, outcome, leftOut, number } of turns) {
		if (gapMs === null || input === "typed") continue;
		const dot = { class: `dot ${leftOut ? "out" : outcome}`, cx: `${place(gapMs)}%`, cy: 7 + ((number * 7) % 21), r: 4 };
		svg.append(element("circle", dot, element("title", {}, `turn ${number}: ${ms(gapMs)} ms, ${leftOut ?? outcome}`)));
	}
	if (p50 !== null) svg.append(upright("median", p50, DOTS));
	return svg;
}
