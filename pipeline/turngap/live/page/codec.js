// pipecat's protobuf `Frame` (frames.proto): one of 1 text, 2 audio (3 PCM16, 4 sample rate, 5 channels),
// 3 transcription, 4 message (1 JSON), 5 interruption.

const KINDS = ["", "text", "audio", "transcription", "message", "interruption"];
const VARINT = 0, BYTES = 2, FIXED = { 1: 8, 5: 4 };
// A rate beyond is no audio's, and would size buffers.
const MIN_RATE = 8000, MAX_RATE = 192000;

export class FrameError extends Error {}

export function encodeAudio(pcm, rate) {
	const bytes = new Uint8Array(pcm.buffer, pcm.byteOffset, pcm.byteLength);
	return field(2, joined(field(3, bytes), varint(4 * 8 + VARINT), varint(rate), [5 * 8 + VARINT, 1]));
}

export function encodeMessage(value) {
	return field(4, field(1, new TextEncoder().encode(JSON.stringify(value))));
}

/** `{kind: "audio", pcm, rate}` (mono), `{kind: "message", value}` or `{kind}`; throws FrameError. */
export function decode(buffer) {
	let kind, body;
	for (const [number, value] of fields(new Uint8Array(buffer))) {
		if (KINDS[number] && value.length !== undefined) [kind, body] = [KINDS[number], value];
	}
	if (!kind) throw new FrameError("an empty or unknown frame");
	const values = Object.fromEntries(fields(body));
	if (kind === "audio") return { kind, ...audio(values) };
	return kind === "message" ? { kind, value: json(values[1]) } : { kind };
}

function audio({ 3: bytes = new Uint8Array(0), 4: rate = 0, 5: channels = 0 }) {
	if (bytes.length % 2 || channels !== 1 || !(rate >= MIN_RATE && rate <= MAX_RATE)) {
		throw new FrameError(`audio that is no PCM16 mono (${bytes.length} bytes, ${channels} channels, ${rate} Hz)`);
	}
	return { pcm: new Int16Array(bytes.slice().buffer), rate }; // in the frame they may begin at an odd address
}

function json(bytes) {
	try {
		return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
	} catch {
		throw new FrameError("a message that is not JSON");
	}
}

/** A message's fields as [number, value]: a number, or a Uint8Array. */
function* fields(bytes) {
	let at = 0;
	const take = (length) => {
		if (length > bytes.length - at) throw new FrameError("a frame that is cut short");
		return bytes.subarray(at, (at += length));
	};
	const number = () => {
		for (let value = 0, scale = 1, n = 0; n < 10; n++, scale *= 128) {
			const [byte] = take(1);
			value += (byte & 127) * scale; // over 2^53 inexact: ids and times, which nobody reads
			if (byte < 128) return value;
		}
		throw new FrameError("a number that does not end");
	};
	while (at < bytes.length) {
		const tag = number(), type = tag % 8;
		if (tag < 8 || !(type === VARINT || type === BYTES || FIXED[type])) throw new FrameError("an unknown field");
		yield [Math.floor(tag / 8), type === VARINT ? number() : take(FIXED[type] ?? number())];
	}
}

function field(number, bytes) {
	return joined(varint(number * 8 + BYTES), varint(bytes.length), bytes);
}

function joined(...parts) {
	return Uint8Array.from(parts.flatMap((part) => [...part]));
}

function varint(value) {
	return value < 128 ? [value] : [(value % 128) | 128, ...varint(Math.floor(value / 128))];
}
