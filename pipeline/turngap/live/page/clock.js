const READINGS = 150; // 3 s: devices drift, and stalls shift
const EXCHANGES = 40;

/** This thread's clock less the audio's, from the earliest of the latest blocks. */
export class AudioClock {
	readings = [];

	push(value) {
		this.readings.push(value);
		if (this.readings.length > READINGS) this.readings.shift();
		this.offsetMs = Math.min(...this.readings);
	}
}

/** The agent's clock less ours, from the fastest exchange: half its round trip bounds the error. */
export class AgentClock {
	asked = new Map();
	exchanges = [];
	n = 0;

	answer(number, atMs, agentNs) {
		const askedMs = this.asked.get(number);
		if (askedMs === undefined || !Number.isFinite(agentNs)) return;
		this.asked.clear();
		this.n++;
		this.exchanges.push({ roundTripMs: atMs - askedMs, offsetMs: agentNs / 1e6 - (askedMs + atMs) / 2 });
		if (this.exchanges.length > EXCHANGES) this.exchanges.shift();
		this.best = this.exchanges.reduce((a, b) => (b.roundTripMs < a.roundTripMs ? b : a));
	}
}
