// The worker that owns the socket: a page that is busy drawing delays neither audio nor stamps. It tells
// the page what happened, in ns of the page clock (docs/live.md).

import { AgentClock, AudioClock } from "./clock.js";
import { FrameError, decode, encodeAudio, encodeMessage } from "./codec.js";
import { Resampler } from "./resample.js";

const RTVI = "rtvi-ai";
const QUICK_PINGS = 12, QUICK_MS = 60, SLOW_MS = 2000;
// Of silence; after it another reply begins: what the resampler holds of the one before must not be heard at its head.
const PAUSE_MS = 60;

const audioClock = new AudioClock();
let rate, micRate, audio, line;
let streams = 0; // of the agent's audio, each until it pauses or is cut off

class Line {
	clock = new AgentClock();
	pings = 0; // begin when the agent is ready
	zero = null; // the frame at which the page clock is 0: the first of the microphone that is sent
	received = 0; // of the agent's samples
	since = streams;
	turns = []; // to be told after what was played in them
	leaving = false; // once that is told

	constructor(url) {
		this.socket = Object.assign(new WebSocket(url), {
			binaryType: "arraybuffer",
			onopen: () => this.send("client-ready", { version: "2.2.0", about: { library: "turngap" } }),
			onmessage: ({ data }) => this.take(data, performance.now()),
			onclose: ({ code, reason }) => this.close(code, reason),
		});
	}

	close(code = 1000, reason = "") {
		clearTimeout(this.pinging);
		this.socket.close(1000);
		if (line !== this) return;
		line = null;
		postMessage({ type: "lost", code, reason, ns: this.nsOf(performance.now()) });
	}

	write(frame) {
		if (this.socket.readyState === WebSocket.OPEN) this.socket.send(frame);
	}

	send(type, data) {
		this.write(encodeMessage({ label: RTVI, type, id: String(this.pings), data }));
	}

	message(t, d) {
		this.send("client-message", { t, d });
	}

	/** Page clock of a frame of the audio, and of this thread's ms. */
	ns(frame) {
		return Math.round(((frame - (this.zero ?? frame)) / rate) * 1e9);
	}
	nsOf(ms) {
		return this.ns(((ms - audioClock.offsetMs) / 1000) * rate);
	}

	ping() {
		this.clock.asked.set(++this.pings, performance.now());
		this.message("turngap.ping", { ping: this.pings });
		this.pinging = setTimeout(() => this.ping(), this.pings < QUICK_PINGS ? QUICK_MS : SLOW_MS);
	}

	take(data, atMs) {
		try {
			if (typeof data === "string") throw new FrameError("a text message");
			const frame = decode(data);
			if (frame.kind === "audio") this.play(frame, atMs);
			if (frame.kind === "interruption") this.flush();
			if (frame.kind === "message" && frame.value?.label === RTVI) this.rtvi(frame.value, atMs);
		} catch (error) {
			if (!(error instanceof FrameError)) throw error;
			this.close(1007, `The server sent ${error.message}`);
		}
	}

	rtvi(rtvi, atMs) {
		const own = rtvi.type === "server-message" && rtvi.data;
		if (own?.turngap === "pong") this.clock.answer(own.ping, atMs, own.agent_ns);
		else if (own?.turngap === "marks") this.marks(own);
		else postMessage({ type: "rtvi", rtvi, ns: this.nsOf(atMs) });
		if (rtvi.type === "bot-ready" && !this.pings) this.ping();
	}

	/** The agent's instants have a place once the clocks are compared. */
	marks({ turn, llm, marks }) {
		if (!this.offset) return;
		const placed = Object.entries(marks).map(([name, at]) => [name, this.nsOf(at / 1e6 - this.clock.best.offsetMs)]);
		postMessage({ type: "marks", turn, llm, marks: Object.fromEntries(placed) });
	}

	get offset() {
		const { best, n } = this.clock;
		if (!best || this.zero === null) return null;
		const offsetMs = best.offsetMs + audioClock.offsetMs + (this.zero / rate) * 1000;
		return { offset_ns: Math.round(offsetMs * 1e6), bound_ns: Math.ceil(best.roundTripMs * 5e5), n };
	}

	/** The agent's audio, to the worklet; `sample`: its place in all that was received. */
	play({ pcm, rate: from }, atMs) {
		if (this.stream?.from !== from || atMs - this.stream.endMs > PAUSE_MS) {
			this.stream = { from, number: ++streams, resampler: new Resampler(from, rate), sample: this.received, endMs: atMs };
		}
		const { stream } = this, step = from / rate;
		stream.endMs = Math.max(stream.endMs, atMs) + (pcm.length / from) * 1000; // of its playing
		this.received += pcm.length;
		const samples = stream.resampler.push(Float32Array.from(pcm, (x) => x / 32768));
		audio.postMessage({ pcm: samples, stream: stream.number, sample: stream.sample, step, received: atMs });
		stream.sample += samples.length * step;
	}

	flush() {
		this.stream = null;
		this.cut = this.received;
		audio.postMessage({ flush: streams + 1 });
	}

	/** What sounded, as [agent's sample, samples, at_ns]; where asked, the turns that waited for it. */
	played({ stretches, why }) {
		const own = stretches.filter(({ stream }) => stream > this.since);
		const played = own.map(({ sample, frames, step, frame }) => [Math.round(sample), Math.ceil(frames * step), this.ns(frame)]);
		const flushed = why === "flushed" && { dropped_to: this.cut };
		if (played.length || flushed) this.message("turngap.played", { played, ...flushed });
		if (why !== "asked") return;
		for (const turn of this.turns.splice(0)) this.message("turngap.turn", { offset: this.offset, ...turn });
		if (this.leaving) this.close();
	}

	/** The microphone's. Cut to equal packets, each would wait for the block after it. */
	block({ pcm, frame }) {
		if (!this.pings) return;
		if (this.zero === null) this.mic = new Resampler(rate, micRate);
		this.zero ??= frame;
		if (pcm) this.write(encodeAudio(Int16Array.from(this.mic.push(pcm), toInt16), micRate));
	}
}

function toInt16(x) {
	return Math.max(-32768, Math.min(32767, Math.round(x * 32768)));
}

function fromWorklet(event) {
	const { type, frame } = event, ns = line?.zero == null ? null : line.ns(frame);
	if (type === "block") {
		audioClock.push(performance.now() - (event.end / rate) * 1000);
		line?.block(event);
	} else if (type === "played") line?.played(event);
	else if (type === "meter" || ns !== null) postMessage({ ...event, ns, ...(type === "agentStart" && onset(event, ns)) });
}

function onset({ received, lead, userLast }, ns) {
	const leadNs = Math.max(0, Math.round((lead / rate) * 1e9));
	return { receivedNs: Math.min(ns, received ? line.nsOf(received) : ns), leadNs, userLastNs: line.ns(userLast) };
}

/** Let the worklet report what it has played; a worklet that was disconnected may not answer. */
function ask(asked) {
	audio.postMessage({ report: true });
	setTimeout(() => asked.played({ stretches: [], why: "asked" }), 2000);
}

onmessage = ({ data: { port, open, typed, send, ...more } }) => {
	if (port) {
		[audio, { rate, micRate }] = [port, more];
		audio.onmessage = ({ data }) => fromWorklet(data);
	} else if (open) line = new Line(open);
	else if (typed) postMessage({ type: "typed", text: typed, ns: line.nsOf(more.at - performance.timeOrigin) });
	else if (send && send.t !== "turngap.turn") line?.message(send.t, send.d);
	else if (line) {
		if (send) line.turns.push(send.d);
		else line.leaving = true;
		ask(line);
	}
};
