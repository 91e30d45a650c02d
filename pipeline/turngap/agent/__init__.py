"""The built-in voice agent: engines assembled to a pipecat pipeline and served over WebSocket."""
