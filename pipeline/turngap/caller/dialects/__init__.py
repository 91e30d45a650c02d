"""The wire protocols that the caller can speak, one module each."""

from turngap.caller.dialects import (
    deepgram_agent,
    elevenlabs,
    exotel,
    gemini_live,
    gpt_live,
    openai_realtime,
    pipecat,
    pipecat_eval,
    plivo,
    telnyx,
    twilio,
    vonage,
    webrtc,
)

SPECS = (
    *(pipecat.SPEC, pipecat_eval.SPEC, webrtc.SPEC, webrtc.OPENAI),
    *(openai_realtime.SPEC, gpt_live.SPEC),
    *(twilio.SPEC, telnyx.SPEC, plivo.SPEC, exotel.SPEC, vonage.SPEC),
    *(deepgram_agent.SPEC, elevenlabs.SPEC, gemini_live.SPEC),
)
