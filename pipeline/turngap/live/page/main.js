// The page: what its controls do, and what to say when something is amiss.

import { roundTrip } from "./calibrate.js";
import { element } from "./draw.js";
import { Tracker, measured } from "./turns.js";
import { View, byId } from "./view.js";

const HOST = location.hostname, PORT = location.port || 80, AGAIN = "Then stop and start again; or type your turns.";
const WORDS = {
	insecure: `Browsers give no microphone to a page from another machine without https. Run ssh -L ${PORT}:${HOST}:${PORT} ${HOST}
here and open http://localhost:${PORT}/?token=… with the token that turngap printed.`,
	tab: "turngap is open in another tab, and the two would hear each other. Stop that one first.",
	NotAllowedError: `The microphone was refused. Allow it next to the page’s address. ${AGAIN}`,
	NotFoundError: `There is no microphone. Plug one in. ${AGAIN}`,
	NotReadableError: `Another program uses the microphone. Close it. ${AGAIN}`,
	gone: `The microphone is gone. Plug it in. ${AGAIN}`,
	echo: "The agent spoke over you twice. If it hears itself, use headphones, or tick “I use loudspeakers”.",
	down: "Nothing answers. Is turngap running?",
	chirp: "Calibrating: let the microphone hear this page, and nothing else.",
	deaf: "The microphone did not hear the page. Untick “I use loudspeakers”, and turn the volume up or hold the headphones to it.",
	paused: "The browser has paused the audio. Stop and start again.",
	1006: "Is turngap running? Then start again.",
	1007: "Reload the page: the server may be of another version.",
};

export const tracker = new Tracker((turn) => view.change(turn), over);
const view = new View();
let live = null; // the audio, the worker and the microphone
let asking = false; // whether this is the only tab
let session = null; // as the server tells
let failure = ""; // of the agent, of which a closing reason holds but the beginning

async function start() {
	if (!isSecureContext) return say(WORDS.insecure);
	asking = true;
	const alone = await theOnlyTab();
	asking = false;
	if (!alone) return say(WORDS.tab);
	say("");
	renew();
	byId("talk").textContent = "Stop";
	const context = new AudioContext({ sampleRate: 48000, latencyHint: "interactive" }), own = (live = { context });
	context.onstatechange = () => live === own && context.state !== "running" && say(WORDS.paused);
	await context.audioWorklet.addModule("page/worklet.js");
	const { in_sample_rate: micRate = 16000 } = await about;
	if (live !== own) return; // stopped meanwhile
	const node = new AudioWorkletNode(context, "turngap", { outputChannelCount: [1], channelCount: 1, channelCountMode: "explicit" });
	const worker = new Worker("page/line.js", { type: "module" }), { port1, port2 } = new MessageChannel();
	worker.onmessage = ({ data }) => live === own && (TOLD[data.type] ?? (() => tracker[data.type](data)))(data);
	node.port.postMessage({ line: port1 }, [port1]);
	worker.postMessage({ port: port2, rate: context.sampleRate, micRate }, [port2]);
	node.connect(context.destination);
	Object.assign(own, { node, worker });
	await listen();
	if (live !== own) return;
	await context.resume();
	connect();
}

/** The lock is held until this tab stops or is closed. */
function theOnlyTab() {
	return new Promise((answer) => navigator.locks.request("turngap", { ifAvailable: true }, (lock) => {
		answer(lock);
		return lock && new Promise((release) => (theOnlyTab.release = release));
	}));
}

async function listen() {
	hangUpMicrophone(live);
	live.source = null;
	view.change(null, null); // another stream has another latency
	const echoCancellation = byId("speakers").checked, asked = (live.asked = {});
	const audio = { echoCancellation, noiseSuppression: echoCancellation, autoGainControl: false, channelCount: 1 };
	try {
		const stream = await navigator.mediaDevices.getUserMedia({ audio });
		if (live?.asked !== asked) return hangUpMicrophone({ stream }); // stopped or asked again meanwhile
		const source = live.context.createMediaStreamSource(stream);
		source.connect(live.node);
		stream.getTracks()[0].onended = () => say(WORDS.gone);
		Object.assign(live, { stream, source });
	} catch ({ name, message }) {
		if (live?.asked === asked) say(WORDS[name] ?? `The microphone cannot be used: ${message}. ${AGAIN}`);
	}
	hide(!live?.source, "mute", "calibrate");
}

function hangUpMicrophone({ stream, source }) {
	stream?.getTracks().forEach((track) => track.stop());
	source?.disconnect();
}

function connect() {
	const url = new URL("/live", location);
	url.protocol = url.protocol.replace("http", "ws");
	live.worker.postMessage({ open: url.href });
}

function stop(text = "") {
	const { context, node, worker } = live;
	tracker.finish();
	hangUpMicrophone(live);
	node?.disconnect();
	worker?.postMessage({ hangUp: true });
	live = null;
	setTimeout(() => { // what they have still to send is sent
		worker?.terminate();
		context.close();
	}, 5000);
	theOnlyTab.release();
	state("", "not connected");
	say(text);
	byId("talk").textContent = "Start talking";
	byId("mute").ariaPressed = false;
	byId("level").value = -70;
	hide(true, "mute", "calibrate", "models", "typing");
}

function renew() {
	session = null;
	failure = "";
	state("", "connecting");
	Object.assign(tracker, { turns: [], open: null });
	view.clear(tracker.turns);
	byId("saved").textContent = "";
	hide(true, "save");
}

const TOLD = {
	meter, lost,
	rtvi: ({ rtvi: { type, data }, ns }) => RTVI[type]?.(data, ns),
	typed: ({ ns, text }) => tell("turngap.say", { turn: tracker.start("typed", ns, text).number, text }),
};
const RTVI = {
	"bot-ready": ready,
	"server-message": (data, ns) => OWN[data.turngap]?.(data, ns),
	"user-transcription": heard,
	"bot-llm-started": () => tracker.replyBegins(),
	"bot-llm-text": (data) => tracker.replyText(data),
	"bot-stopped-speaking": (_, ns) => (tracker.doneNs = ns),
	error: fault,
	"error-response": fault,
};
const OWN = {
	session: begin, llm: models,
	kept({ turn, record, figures, relay_ms: relayMs }) {
		const own = tracker.turns.find(({ number }) => number === turn);
		if (own) own.relayMs = relayMs;
		if (own?.input === "voice") own.judged = record.stages;
		view.told = figures;
		view.change(own);
	},
	refused(data) {
		OWN.notice(data);
		byId("llm").value = tracker.llm;
	},
	notice: (data) => say(sentence(data)),
	failed: (data) => (failure = sentence(data)),
};

function meter({ rms, level, speaking, drift, ns }) {
	Object.assign(byId("level"), { value: rms, low: level, ariaValueText: speaking ? "you are heard" : "quiet" });
	if (ns !== null) tracker.tick(ns, drift);
}

function ready() {
	state("on", "connected");
	tracker.begin();
}

function heard({ text, final }) {
	if (!tracker.transcript(text, final) && final) view.note(`The agent heard “${text}”, but this page did not: the microphone is too quiet.`);
}

function fault(data) {
	say(`${data?.relay ? "On the line to the agent" : "The agent reports"}: ${data?.error ?? data?.message}`);
}

function begin(data) {
	session = data;
	byId("run").href = `/api/runs/${data.id}.zip`;
	hide(data.foreign, "typing");
	document.body.classList.toggle("foreign", !!data.foreign);
}

function models({ current, offered, switched }, ns) {
	tracker.switched(current, switched?.cancelled, ns);
	hide(offered.length < 2, "models");
	view.simulated = new Set(offered.filter(({ simulated }) => simulated).map(({ name }) => name));
	byId("llm").replaceChildren(...offered.map(({ name, state: at, why }) => {
		const shown = view.named(name), option = element("option", { value: name }, at === "ready" ? shown : `${shown} (${why ?? at})`);
		return Object.assign(option, { disabled: at === "failed", selected: name === current });
	}));
}

function over(turn) {
	const { number, outcome, gapMs, whyNoGap } = turn, recent = tracker.turns.slice(-2), trip = view.roundTripMs;
	byId("spoken").textContent = `Turn ${number}: ${outcome}, ${whyNoGap ?? `${Math.round(gapMs)} ms`}`;
	if (!byId("speakers").checked && recent.length > 1 && recent.every((each) => each.outcome === "cut_in")) say(WORDS.echo);
	const message = measured(turn);
	message.view.mouth_to_ear_ms = gapMs === null || trip === null ? null : gapMs + trip;
	if (turn.ended !== "line_lost") tell("turngap.turn", message);
	hide(!session, "save");
}

function lost({ code, reason, ns }) {
	tracker.close(ns, "line_lost");
	stop(failure || `${reason || `The line to the server is lost (${code})`}. ${WORDS[code] ?? "Start again."}`);
}

function tell(t, d) {
	live?.worker.postMessage({ send: { t, d } });
}

function say(text) {
	byId("notice").textContent = text;
}

function sentence({ message, hint }) {
	return hint ? `${message}: ${hint}.` : `${message}.`;
}

function state(className, textContent) {
	Object.assign(byId("state"), { className, textContent });
}

function hide(hidden, ...ids) {
	for (const id of ids) byId(id).hidden = hidden;
}

byId("talk").onclick = () => (live ? stop() : asking || start().catch(({ message }) => live && stop(`The audio cannot be started: ${message}`)));
byId("mute").onclick = ({ currentTarget: button }) => {
	const muted = button.ariaPressed !== "true";
	button.ariaPressed = muted;
	live.node.port.postMessage({ muted });
};
byId("speakers").onchange = () => live?.node && listen();
byId("llm").onchange = ({ target }) => tell("turngap.llm", { use: target.value });
byId("typing").onsubmit = (event) => {
	event.preventDefault();
	const text = byId("text").value.trim();
	if (!text) return;
	live.worker.postMessage({ typed: text, at: performance.timeOrigin + event.timeStamp });
	byId("text").value = "";
};
byId("calibrate").onclick = async () => {
	say(WORDS.chirp);
	const found = await roundTrip(live.node, live.context.sampleRate);
	say(found ? "" : WORDS.deaf);
	view.change(null, found?.round_trip_ms ?? null);
	if (found) tell("turngap.calibrated", found);
};
// Other devices have other latencies.
navigator.mediaDevices?.addEventListener("devicechange", () => view.change(null, null));
byId("save").onsubmit = async (event) => {
	event.preventDefault();
	const body = JSON.stringify({ name: byId("name").value }), saved = byId("saved");
	const answer = await fetch(`/api/runs/${session.id}/scenario`, { method: "POST", body }).catch(() => null);
	if (!answer) return (saved.textContent = WORDS.down);
	const { error, turns, zip, folder, replay } = await answer.json();
	saved.textContent = error ? sentence(error) : `${turns} turns saved${folder ? `; play them with: ${replay}` : ""}. `;
	if (zip) saved.append(element("a", { href: zip, download: "" }, "Download them"));
	return null;
};

const about = fetch("/api/about").then((answer) => answer.json()).then((told) => {
	byId("agent").textContent = told.agent;
	byId("say").append(told.say, ...told.examples.map((text) => element("q", {}, text)));
	return told;
}).catch(() => ({}));
