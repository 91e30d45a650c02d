// A polyphase FIR resampler for a stream: any whole rates, linear phase. The filter delays when a sample is
// known (1 ms at 16 kHz), not where it lies.

const CROSSINGS = 16; // of the sinc on either side, at the lower rate
const CUTOFF = 0.88; // of the lower rate's half: what lies beyond would fold back

export class Resampler {
	constructor(from, to) {
		const divisor = greatest(from, to);
		[this.up, this.down] = [to / divisor, from / divisor];
		this.half = Math.ceil((CROSSINGS * from) / Math.min(from, to)); // input samples on either side
		this.kernels = from === to ? null : kernels(this.up, this.half, Math.min(1, to / from) * CUTOFF);
		this.rest = Array(this.half - 1).fill(0); // silence before the stream
		this.at = this.phase = 0; // the input sample before the output's next one, and the rest in 1 / up
	}

	/** The stream's next samples in, what is known of the output by them out. */
	push(samples) {
		if (!this.kernels) return samples;
		const input = Float32Array.from([...this.rest, ...samples]), output = [];
		for (; this.at + 2 * this.half <= input.length; this.at += Math.floor(this.phase / this.up), this.phase %= this.up) {
			output.push(this.kernels[this.phase].reduce((sum, weight, i) => sum + weight * input[this.at + i], 0));
			this.phase += this.down;
		}
		const done = Math.min(this.at, input.length);
		this.rest = input.subarray(done);
		this.at -= done;
		return Float32Array.from(output);
	}
}

/** For each phase the weights of the input samples from half - 1 before to half after. */
function kernels(up, half, cutoff) {
	return Array.from({ length: up }, (_, phase) => {
		const weights = Float32Array.from({ length: 2 * half }, (__, i) => weight(i - (half - 1) - phase / up, half, cutoff));
		const sum = weights.reduce((a, b) => a + b);
		return weights.map((each) => each / sum); // a constant stays what it is, in every phase
	});
}

/** A sinc under a Blackman window. */
function weight(x, half, cutoff) {
	const turn = (Math.PI * x) / half, angle = Math.PI * x * cutoff;
	return (0.42 + 0.5 * Math.cos(turn) + 0.08 * Math.cos(2 * turn)) * (x === 0 ? 1 : Math.sin(angle) / angle);
}

function greatest(a, b) {
	return b ? greatest(b, a % b) : a;
}
