// Drives pipecat's official JavaScript client against an agent, without a browser: it plays a WAV's
// samples as its microphone, at the speed of speech, and notes when what comes.
//
//   node client.mjs MODULES URL SPEECH.pcm        (PCM16, mono, 16 kHz)
//
// MODULES is a folder in which `npm install @pipecat-ai/client-js @pipecat-ai/websocket-transport`
// was run. One JSON document is printed.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, url, speech] = process.argv.slice(2);

// What the packages touch as they are loaded, though nothing of it is used here.
globalThis.window ??= globalThis;
globalThis.self ??= globalThis;
globalThis.addEventListener ??= () => {};
globalThis.removeEventListener ??= () => {};
globalThis.location ??= new URL("http://localhost/");
globalThis.document ??= { addEventListener() {}, removeEventListener() {}, createElement: () => ({}) };

const require = createRequire(join(modules, "package.json"));
const { PipecatClient } = require("@pipecat-ai/client-js");
const { WebSocketTransport } = require("@pipecat-ai/websocket-transport");

const CHUNK = 320; // 20 ms
const begun = performance.now();
const now = () => performance.now() - begun;
const said = { events: [], chunks: [], errors: [] };
process.on("unhandledRejection", (error) => said.errors.push(String(error)));

// The client's own media managers need a browser's sound devices. This one has samples instead.
class Samples {
  setUserAudioCallback(callback) { this.callback = callback; }
  setClientOptions() {}
  async initialize() {}
  async connect() {}
  async disconnect() { clearInterval(this.timer); }
  async userStartedSpeaking() { said.events.push([now(), "flushed"]); }
  bufferBotAudio(data) {
    const samples = new Int16Array(data.buffer ?? data);
    said.chunks.push([now(), Array.from(samples)]);
    return samples;
  }
  async getAllMics() { return []; }
  async getAllCams() { return []; }
  async getAllSpeakers() { return []; }
  get selectedMic() { return {}; }
  get selectedCam() { return {}; }
  get selectedSpeaker() { return {}; }
  enableMic() {}
  enableCam() {}
  get isMicEnabled() { return true; }
  get isCamEnabled() { return false; }
  get isSharingScreen() { return false; }
  tracks() { return { local: {}, bot: {} }; }

  speak(pcm) {
    said.began = now();
    let sent = 0;
    this.timer = setInterval(() => {
      for (; sent * 20 <= now() - said.began; sent++) {
        const chunk = new Int16Array(CHUNK);
        chunk.set(pcm.subarray(sent * CHUNK, (sent + 1) * CHUNK));
        this.callback(chunk.buffer);
      }
    }, 5);
  }
}

const file = readFileSync(speech);
const pcm = new Int16Array(file.buffer, file.byteOffset, file.length >> 1);
const media = new Samples();
const note = (name) => (data) => said.events.push([now(), name, data?.text ?? data?.ttfb ?? null]);
const client = new PipecatClient({
  transport: new WebSocketTransport({ mediaManager: media }),
  enableMic: true,
  enableCam: false,
  callbacks: {
    onConnected: note("connected"),
    onBotReady: note("bot-ready"),
    onUserStartedSpeaking: note("user-started-speaking"),
    onUserStoppedSpeaking: note("user-stopped-speaking"),
    onUserTranscript: (data) => data.final && note("user-transcription")(data),
    onBotStartedSpeaking: note("bot-started-speaking"),
    onBotStoppedSpeaking: note("bot-stopped-speaking"),
    onMetrics: note("metrics"),
    onServerMessage: (data) => note(`server-message ${data.turngap ?? ""}`)(data),
    onError: (message) => said.errors.push(JSON.stringify(message.data)),
    onDisconnected: note("disconnected"),
  },
});

await client.connect({ wsUrl: url });
media.speak(pcm);
const quiet = (pcm.length / 16) + 6000;
await new Promise((resolve) => setTimeout(resolve, quiet));
await client.disconnect();
process.stdout.write(JSON.stringify(said) + "\n", () => process.exit(0));
