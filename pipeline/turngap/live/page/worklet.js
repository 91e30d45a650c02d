// Both directions of the audio on one clock, the number of the sample frame. At the other end is the worker
// that owns the socket (line.js), not the page.

import { NoiseFloor, SpeechDetector } from "./speech.js";

const MS = sampleRate / 1000; // in frames
const BLOCK_MS = 20, METER_BLOCKS = 4;
// Queued before playing begins, so that a late chunk leaves no hole: more after each hole, half of it less
// after a reply without one. Pipecat sends two chunks at once before it keeps real time: 15 ms cost nothing.
const QUEUE_MS = { least: 15, most: 120, more: 5 };
const LATE_MS = 100; // what comes so soon after a hole was late; later, the agent paused

class Turngap extends AudioWorkletProcessor {
	block = new Float32Array(Math.round(BLOCK_MS * MS));
	filled = 0;
	blocks = 0;
	drift = Infinity;
	floor = new NoiseFloor(sampleRate);
	ear = new SpeechDetector(sampleRate); // the person
	mouth = new SpeechDetector(sampleRate); // the agent
	queue = [];
	queued = 0; // frames
	target = QUEUE_MS.least;
	waited = 0;
	dryAt = -Infinity;
	unbroken = 0; // since this frame the agent's audio plays without a hole
	stretches = []; // what was played, and when
	told = []; // those of the latest report
	cutTo = 0; // drop what is of an older stream

	constructor() {
		super();
		this.port.onmessage = ({ data: { line, muted, probe } }) => {
			if (line) this.line = Object.assign(line, { onmessage: ({ data }) => this.take(data) });
			else if (probe) this.probe = { ...probe, heard: new Float32Array(probe.frames) };
			else this.muted = muted;
		};
	}

	take(message) {
		if (message.flush) this.cutTo = message.flush;
		else if (message.report) this.report("asked");
		else this.enqueue(message);
	}

	say(type, frame, more) {
		this.line.postMessage({ type, frame, ...more });
	}

	process([[mic]], [[out]]) {
		if (!this.line) return true;
		this.play(out);
		if (this.cutTo) this.fade(out);
		if (this.probe) this.sound(out, mic);
		const open = mic && !this.muted && !this.probe;
		for (let i = 0; i < out.length; i++) {
			this.listen(open ? mic[i] : 0, currentFrame + i, open, mic);
			this.hear(out[i], currentFrame + i);
		}
		if (this.cutTo) this.silence(currentFrame + out.length);
		// A callback can be late, never early.
		this.drift = Math.min(this.drift, Date.now() - currentFrame / MS);
		return true;
	}

	listen(sample, at, open, mic) {
		const { ear, floor, block } = this;
		if (open) floor.push(sample);
		ear.setLevel(floor.level);
		const event = ear.push(sample, at);
		if (event) this.say(`user${event}`, event === "Start" ? ear.first : ear.last);
		block[this.filled++] = sample;
		if (this.filled < block.length) return;
		this.say("block", at + 1 - block.length, { pcm: mic && block, end: at + 1 });
		this.filled = 0;
		if (++this.blocks % METER_BLOCKS) return;
		if (this.stretches.length) this.report();
		this.say("meter", at + 1, { drift: this.drift, rms: open ? floor.rms : -100, level: floor.level, speaking: ear.speaking });
		this.drift = Infinity;
	}

	hear(sample, at) {
		const { mouth, ear } = this, before = mouth.last;
		const event = this.probe ? "" : mouth.push(sample, at);
		if (event === "End") this.say("agentEnd", mouth.last);
		if (event !== "Start") return;
		const { received } = [...this.told, ...this.stretches].findLast(({ frame }) => frame <= mouth.first) ?? {};
		const lead = mouth.first - Math.max(this.unbroken, before);
		this.say("agentStart", mouth.first, { received, lead, userLast: ear.last });
	}

	enqueue(chunk) {
		if (!this.queue.length) this.waited = 0;
		if (!this.playing && !this.queue.length && currentFrame - this.dryAt < LATE_MS * MS) {
			this.target = Math.min(QUEUE_MS.most, this.target + QUEUE_MS.more);
			this.holed = true;
		}
		this.queue.push({ ...chunk, at: 0 });
		this.queued += chunk.pcm.length;
	}

	play(out) {
		if (!this.playing && this.queue.length) {
			this.waited += out.length;
			if (Math.max(this.queued, this.waited) >= this.target * MS) this.begin();
		}
		if (!this.playing) return;
		let n = 0;
		while (n < out.length && this.queue.length) {
			const [chunk] = this.queue, { pcm, at, stream, step, sample, received } = chunk;
			const frames = Math.min(out.length - n, pcm.length - at);
			out.set(pcm.subarray(at, at + frames), n);
			const last = this.stretches.at(-1), frame = currentFrame + n;
			if (last?.received === received && last.frame + last.frames === frame) last.frames += frames;
			else this.stretches.push({ frame, frames, stream, step, sample: sample + at * step, received });
			n += frames;
			this.queued -= frames;
			if ((chunk.at += frames) === pcm.length) this.queue.shift();
		}
		if (n === out.length) return;
		this.playing = false;
		this.dryAt = currentFrame + n;
	}

	begin() {
		this.playing = true;
		this.unbroken = currentFrame;
		if (!this.holed) this.target = (this.target + QUEUE_MS.least) / 2;
		this.holed = false;
	}

	report(why) {
		this.told = this.stretches.splice(0);
		this.say("played", currentFrame, { stretches: this.told, why });
	}

	/** Silence at once, but for 3 ms of fading against the click. */
	fade(out) {
		for (let i = 0; i < out.length; i++) out[i] *= 1 - (i + 1) / out.length;
		this.queue = this.queue.filter(({ stream }) => stream >= this.cutTo);
		this.queued = this.queue.reduce((sum, { pcm }) => sum + pcm.length, 0);
		this.playing = false;
		this.dryAt = -Infinity;
	}

	silence(at) {
		this.cutTo = 0;
		if (this.mouth.speaking) this.say("agentEnd", this.mouth.last);
		this.mouth.cut(at);
		this.say("flushed", at);
		this.report("flushed");
	}

	/** Play a sound, and keep what the microphone hears from its beginning on. */
	sound(out, mic) {
		const { probe } = this, at = currentFrame - (probe.from ??= currentFrame);
		out.fill(0);
		out.set(probe.pcm.subarray(at, at + out.length));
		if (mic) probe.heard.set(mic.subarray(0, Math.max(0, probe.frames - at)), at);
		if (at + out.length < probe.frames) return;
		this.port.postMessage(probe.heard);
		this.probe = null;
	}
}

registerProcessor("turngap", Turngap);
