// Mouth to ear: the page plays a chirp into its own microphone, and looks for it there.

const CHIRPS = 5, HEARD_S = 0.8, AGREE_MS = 2;
const CHIRP_S = 0.03, FROM_HZ = 800, TO_HZ = 4000;
const CLEAR = 8; // how far a match stands out from the RMS of all

export function chirp(rate) {
	const length = Math.round(CHIRP_S * rate);
	return Float32Array.from({ length }, (_, i) => {
		const t = i / rate, turns = FROM_HZ * t + ((TO_HZ - FROM_HZ) * t * t) / (2 * CHIRP_S);
		return 0.5 * Math.sin(2 * Math.PI * turns) * Math.sin((Math.PI * i) / length);
	});
}

/** How far `sound` lies behind the beginning of `heard`, in samples; null where that is not clear. */
export function delayOf(sound, heard) {
	let best = 0, at = null, squares = 0;
	const lags = heard.length - sound.length;
	for (let lag = 0; lag < lags; lag++) {
		let sum = 0; // a plain loop: fifty million products take a second with reduce()
		for (let i = 0; i < sound.length; i++) sum += sound[i] * heard[lag + i];
		const match = Math.abs(sum);
		squares += match * match;
		if (match > best) [best, at] = [match, lag];
	}
	return best > CLEAR * Math.sqrt(squares / lags) ? at : null;
}

/** The median of the chirps' delays, if most of them agree; else null. */
export async function roundTrip(node, rate) {
	const pcm = chirp(rate), frames = Math.round(HEARD_S * rate), delays = [];
	for (let i = 0; i < CHIRPS; i++) {
		const heard = new Promise((done) => (node.port.onmessage = ({ data }) => done(data)));
		node.port.postMessage({ probe: { pcm, frames } });
		const delay = delayOf(pcm, await heard);
		if (delay !== null) delays.push((delay / rate) * 1000);
	}
	const middle = delays.sort((a, b) => a - b)[Math.floor(delays.length / 2)];
	const n = delays.filter((delay) => Math.abs(delay - middle) < AGREE_MS).length;
	return n > CHIRPS / 2 ? { round_trip_ms: middle, n } : null;
}
