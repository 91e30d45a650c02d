// The page: what its controls do, and what to say when something is amiss.

import { roundTrip } from "./calibrate.js";
import { Tracker, measured } from "./turns.js";
import { View, byId } from "./view.js";

const RETRY_MS = [500, 1000, 2000, 4000, 8000], GIVE_UP_MS = 60000;
const LOST = [1001, 1005, 1006, 1012]; // worth trying again; the other closing codes are meant

const PORT = location.port || 80, AGAIN = "Then stop and start again; or type your turns.";
const WORDS = {
	insecure: `Browsers give no microphone to a page from another machine without https. Run
ssh -L ${PORT}:localhost:${PORT} ${location.hostname} on this one and open http://localhost:${PORT}.`,
	tab: "turngap is open in another tab: the two would hear each other. Stop that one, then start here.",
	NotAllowedError: `The microphone was refused. Allow it beside the page’s address. ${AGAIN}`,
	NotFoundError: `There is no microphone. Plug one in. ${AGAIN}`,
	NotReadableError: `Another program has the microphone. Close that. ${AGAIN}`,
	gone: `The microphone is gone. Plug it in. ${AGAIN}`,
	echo: "Twice the agent began while you were heard. Loudspeakers? Use headphones, or tick “I use loudspeakers”.",
	down: "Nothing answers. Is turngap running? Then start again.",
	chirp: "Calibrating: let the microphone hear this page, and be quiet.",
	deaf: "The microphone did not hear the page. Untick “I use loudspeakers”, turn the volume up or hold the headphones to it, and try again.",
	paused: "The browser has paused the audio. Stop and start again.",
	1013: "Try again when one of them has ended, or serve with a higher --max-sessions.",
	4400: "Reload the page: the server may be of another version.",
};

export const tracker = new Tracker((turn) => view.change(turn), over);
const view = new View(drawn);
let live = null; // the audio, the worker and the microphone
let about = {}, session = null; // as the server tells
let lostAt = null, retries = 0;
let pending = null; // the turn in which the line was lost: told when there is one again

async function start() {
	if (!isSecureContext) return say(WORDS.insecure);
	if (!(await theOnlyTab())) return say(WORDS.tab);
	say("");
	lostAt = null;
	renew();
	byId("talk").textContent = "Stop";
	const context = new AudioContext({ sampleRate: 48000, latencyHint: "interactive" });
	live = { context };
	context.onstatechange = () => live && context.state !== "running" && say(WORDS.paused);
	await context.audioWorklet.addModule("page/worklet.js");
	const node = new AudioWorkletNode(context, "turngap", { outputChannelCount: [1], channelCount: 1, channelCountMode: "explicit" });
	const worker = new Worker("page/line.js", { type: "module" }), { port1, port2 } = new MessageChannel();
	worker.onmessage = ({ data }) => live && (TOLD[data.type] ?? (({ type, ns }) => tracker[type](ns)))(data);
	node.port.postMessage({ line: port1 }, [port1]);
	worker.postMessage({ port: port2, rate: context.sampleRate, micRate: about.in_sample_rate }, [port2]);
	node.connect(context.destination);
	Object.assign(live, { node, worker });
	await listen();
	await context.resume();
	connect();
}

/** Two tabs would hear each other: the lock is held until this one stops or is closed. */
function theOnlyTab() {
	return new Promise((answer) => navigator.locks.request("turngap", { ifAvailable: true }, (lock) => {
		answer(lock);
		return lock && new Promise((release) => (theOnlyTab.release = release));
	}));
}

async function listen() {
	hangUpMicrophone();
	const echoCancellation = byId("speakers").checked;
	const audio = { echoCancellation, noiseSuppression: echoCancellation, autoGainControl: false, channelCount: 1 };
	try {
		live.stream = await navigator.mediaDevices.getUserMedia({ audio });
		live.source = live.context.createMediaStreamSource(live.stream);
		live.source.connect(live.node);
		live.stream.getTracks()[0].onended = () => say(WORDS.gone);
	} catch ({ name, message }) {
		say(WORDS[name] ?? `The microphone cannot be used: ${message}. ${AGAIN}`);
	}
	hide(!live.source, "mute", "calibrate");
}

function hangUpMicrophone() {
	live.stream?.getTracks().forEach((track) => track.stop());
	live.source?.disconnect();
	live.source = null;
}

function connect() {
	const url = new URL(session ? `/live?resume=${session.id}` : "/live", location);
	url.protocol = url.protocol.replace("http", "ws");
	live.worker.postMessage({ open: url.href });
}

function stop(text = "") {
	const { context, worker } = live;
	hangUpMicrophone();
	worker?.postMessage({ hangUp: true });
	live = null;
	setTimeout(() => worker?.terminate(), 1000); // what it has still to send is sent
	context.close();
	theOnlyTab.release();
	state("", "not connected");
	say(text);
	byId("talk").textContent = "Start talking";
	byId("mute").ariaPressed = false;
	hide(true, "mute", "calibrate", "models", "typing");
}

function renew() {
	session = pending = null;
	state("", "connecting");
	Object.assign(tracker, { turns: [], open: null });
	view.clear(tracker.turns);
}

const TOLD = {
	meter, lost, agentStart,
	rtvi: ({ rtvi: { type, data }, ns }) => RTVI[type]?.(data, ns),
	marks: (data) => tracker.marks(data),
	typed: ({ ns, text }) => tell("turngap.say", { turn: tracker.start("typed", ns, text).number, text }),
};
const RTVI = {
	"bot-ready": ready,
	"server-message": (data, ns) => OWN[data.turngap]?.(data, ns),
	"user-transcription": heard,
	"bot-llm-started": () => tracker.replyBegins(),
	"bot-llm-text": ({ text }) => tracker.replyText(text),
	"bot-stopped-speaking": (_, ns) => (tracker.doneNs = ns),
	error: fault,
	"error-response": fault,
};
const OWN = {
	session: begin, llm: models,
	refused({ message, hint = "" }) {
		say(`${message}. ${hint}`);
		byId("llm").value = tracker.llm;
	},
	notice: ({ kind, in_s: s }) => say(`The server hangs up in ${s} s${kind === "idle_soon" ? " unless somebody speaks" : ""}.`),
};

function meter({ rms, level, speaking, drift, ns }) {
	Object.assign(byId("level"), { value: rms, low: level, ariaValueText: speaking ? "you are heard" : "quiet" });
	if (ns !== null) tracker.tick(ns, drift);
}

function agentStart(data) {
	if (tracker.open) tracker.open.told = { nowNs: data.nowNs, at: performance.now() };
	tracker.agentStart(data);
}

function ready() {
	if (lostAt) say("");
	lostAt = null;
	retries = 0;
	state("on", "connected");
	tracker.begin(tracker.connection + 1);
}

function heard({ text, final }) {
	if (!tracker.transcript(text, final) && final) view.note(`The agent heard “${text}”, this page nothing: the microphone is too quiet.`);
}

function fault(data) {
	say(`The agent reports: ${data?.error ?? data?.message}`);
}

function begin(data) {
	session = data;
	tracker.budgetMs = view.budgetMs = data.budget_ms;
	tracker.begin(data.connection);
	byId("run").href = `/api/runs/${data.id}.zip`;
	hide(false, "typing");
	hide(!data.kept, "save");
	if (pending) tell("turngap.turn", pending);
	pending = null;
}

function models({ current, offered, switched }, ns) {
	tracker.switched(current, switched?.cancelled, ns);
	hide(offered.length < 2, "models");
	byId("llm").replaceChildren(...offered.map(({ name, state: at, why }) => {
		const option = new Option(at === "ready" ? name : `${name} (${why ?? at})`, name, false, name === current);
		return Object.assign(option, { disabled: at === "failed" });
	}));
}

function over(turn) {
	const { number, outcome, gapMs, whyNoGap } = turn, recent = tracker.turns.slice(-2), trip = view.roundTripMs;
	byId("spoken").textContent = `Turn ${number}: ${outcome}, ${gapMs === null ? whyNoGap : `${Math.round(gapMs)} ms`}`;
	if (!byId("speakers").checked && recent.length > 1 && recent.every((each) => each.outcome === "cut_in")) say(WORDS.echo);
	const message = measured(turn);
	Object.assign(message.view, { mouth_to_ear_ms: gapMs === null || trip === null ? null : gapMs + trip, drawn_ms: turn.drawnMs ?? null });
	if (turn.ended === "line_lost") pending = message;
	else tell("turngap.turn", message);
}

/** From the onset to its waterfall. */
function drawn(turn) {
	if (turn.told && turn.onsetNs !== null) turn.drawnMs ??= (turn.told.nowNs - turn.onsetNs) / 1e6 + performance.now() - turn.told.at;
}

function lost({ code, reason, offset, ns }) {
	tracker.close(ns, "line_lost");
	if (pending) pending.offset ??= offset;
	if (code === 4404) {
		renew();
		view.note("The server had ended the conversation. This is a new one.");
		return connect();
	}
	lostAt ??= performance.now();
	if (!LOST.includes(code)) return stop(`${reason || `The server hung up (${code})`}. ${WORDS[code] ?? "Start again."}`);
	if (performance.now() - lostAt > GIVE_UP_MS) return stop(WORDS.down);
	state("lost", "line lost");
	say(`${reason || "The line to the server is lost"}. Connecting again …`);
	return setTimeout(() => live && connect(), RETRY_MS[Math.min(retries++, RETRY_MS.length - 1)]);
}

function tell(t, d) {
	live?.worker.postMessage({ send: { t, d } });
}

function say(text) {
	byId("notice").textContent = text;
}

function state(className, textContent) {
	Object.assign(byId("state"), { className, textContent });
}

function hide(hidden, ...ids) {
	for (const id of ids) byId(id).hidden = hidden;
}

byId("talk").onclick = () => (live ? stop() : start().catch(({ message }) => stop(`The audio cannot be started: ${message}`)));
byId("mute").onclick = ({ currentTarget: button }) => {
	const muted = button.ariaPressed !== "true";
	button.ariaPressed = muted;
	live.node.port.postMessage({ muted });
};
byId("speakers").onchange = () => live && listen();
byId("llm").onchange = ({ target }) => tell("turngap.llm", { use: target.value });
byId("typing").onsubmit = (event) => {
	event.preventDefault();
	const text = byId("text").value.trim();
	if (text) live.worker.postMessage({ typed: text, at: performance.timeOrigin + event.timeStamp });
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
	const body = JSON.stringify({ name: byId("name").value }), headers = { "Content-Type": "application/json" };
	const answer = await fetch(`/api/runs/${session.id}/scenario`, { method: "POST", headers, body });
	const { error, turns, zip, folder, replay } = await answer.json(), saved = byId("saved");
	saved.textContent = error ? `${error.message}. ${error.hint ?? ""}` : `${turns} turns saved${folder ? `; play them with: ${replay}` : ""}. `;
	if (zip) saved.append(Object.assign(document.createElement("a"), { href: zip, textContent: "Download them", download: "" }));
};

fetch("/api/about").then((answer) => answer.json()).then((told) => {
	about = told;
	byId("agent").textContent = told.agent;
}, () => {});
