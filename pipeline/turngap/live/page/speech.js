// Where speech audibly begins and ends: turngap.core.audio, sample by sample. Samples are counted as
// int16, so that running sums are exact.

const AUDIBLE_DBFS = -40;
const WINDOW_S = 0.01;
const GAP_S = 0.3; // silence that ends speech
const CLICK_DB = 12;
const FULL_SCALE = 32768;

// In a room: the default level where that lies so far over the noise, else the nearest such. The -58 dBFS
// under turngap's own recordings give -40.
const OVER_NOISE_DB = [12, 18], LEVELS_DBFS = [-50, -15];
// Speech pauses for a tenth of any 8 s; a new steady noise does not, and becomes the floor.
const BLOCKS = 800, SHARE = 0.1, ENOUGH = 50;

export class SpeechDetector {
	constructor(rate) {
		this.window = Math.round(rate * WINDOW_S);
		this.gap = Math.round(rate * GAP_S);
		this.ring = new Int32Array(this.window);
		this.setLevel(AUDIBLE_DBFS);
		this.cut(0);
	}

	setLevel(dbfs) {
		if (dbfs === this.dbfs) return;
		this.dbfs = dbfs;
		this.threshold = FULL_SCALE * 10 ** (dbfs / 20);
		this.cap = Math.floor(this.threshold * 10 ** (CLICK_DB / 20));
		this.wanted = this.threshold ** 2 * this.window;
		this.energy = this.ring.reduce((sum, each) => sum + Math.min(each, this.cap) ** 2, 0);
	}

	/** The stream goes on at `position`, as if after silence. */
	cut(position) {
		this.ring.fill(0);
		this.energy = 0;
		this.judged = position - 1; // the last sample judged in a loud window
		this.last = -1; // the last audible sample
		this.speaking = false;
	}

	/** Take the sample (-1 to 1) at position `at`. Returns "Start" (at `first`), "End" (at `last`) or "". */
	push(sample, at) {
		const level = Math.min(FULL_SCALE, Math.abs(Math.round(sample * FULL_SCALE))), slot = at % this.window;
		this.energy += Math.min(level, this.cap) ** 2 - Math.min(this.ring[slot], this.cap) ** 2;
		this.ring[slot] = level;
		if (this.energy >= this.wanted) return this.loud(at);
		if (!this.speaking || at - this.last <= this.gap + this.window) return "";
		this.speaking = false;
		return "End";
	}

	loud(at) {
		const before = this.speaking;
		for (let i = Math.max(this.judged + 1, at - this.window + 1); i <= at; i++) {
			if (this.ring[i % this.window] < this.threshold) continue;
			if (!this.speaking) this.first = i;
			this.speaking = true;
			this.last = i;
		}
		this.judged = at;
		return this.speaking && !before ? "Start" : "";
	}
}

/** The level over which a microphone hears speech, from its own noise. */
export class NoiseFloor {
	blocks = new Float32Array(BLOCKS);
	filled = 0;
	sum = 0;
	n = 0;
	level = AUDIBLE_DBFS;
	rms = -100;

	constructor(rate) {
		this.size = Math.round(rate * WINDOW_S);
	}

	push(sample) {
		this.sum += sample * sample;
		if (++this.n < this.size) return;
		this.rms = Math.max(-100, 10 * Math.log10(this.sum / this.n));
		this.sum = this.n = 0;
		this.blocks[this.filled++ % BLOCKS] = this.rms;
		if (this.filled >= ENOUGH && this.filled % 10 === 0) this.settle();
	}

	settle() {
		const known = this.blocks.slice(0, this.filled).sort();
		const floor = Math.round(known[Math.floor(known.length * SHARE)]);
		const [least, most] = OVER_NOISE_DB.map((over) => floor + over);
		this.level = between(between(AUDIBLE_DBFS, least, most), ...LEVELS_DBFS);
	}
}

function between(value, low, high) {
	return Math.min(high, Math.max(low, value));
}
