// Figures over turns, with the rules of turngap.core.stats and turngap.core.summary.

const Z = 1.959964; // 95 %

/** The median of values and `slower` more above them all; null below five. */
export function median(values, slower = 0) {
	const n = values.length + slower;
	if (n < 5) return null;
	const ordered = [...values].sort((a, b) => a - b), half = (n - 1) / 2;
	const value = (ordered[Math.floor(half)] + ordered[Math.ceil(half)]) / 2;
	return Number.isFinite(value) ? value : null;
}

/** Wilson's 95 % interval of a share; null for n = 0. */
export function wilson(hits, n) {
	if (n === 0) return null;
	const share = hits / n, square = (Z * Z) / n;
	const spread = Z * Math.sqrt((share * (1 - share) + square / 4) / n);
	return [-spread, spread].map((side) => Math.min(1, Math.max(0, (share + square / 2 + side) / (1 + square))));
}

/** Turns that are left out are counted among the `others` only. */
export function figuresOf(turns) {
	const counted = turns.filter(({ leftOut }) => !leftOut);
	const having = (...outcomes) => counted.filter(({ outcome }) => outcomes.includes(outcome));
	const hits = having("answered").length, n = counted.length;
	return {
		n, hits, interval: wilson(hits, n),
		p50: median(having("answered", "late").map(({ gapMs }) => gapMs), having("no_reply", "error").length),
		others: count([...counted.map(({ outcome }) => outcome), ...turns.map(({ leftOut }) => leftOut && `left out: ${leftOut}`)]),
	};
}

function count(words) {
	const counts = new Map();
	for (const word of words) if (word && word !== "answered") counts.set(word, (counts.get(word) ?? 0) + 1);
	return [...counts];
}
