"""The built-in voice agent: engines assembled into a pipecat pipeline and served over WebSocket."""
