"""WebRTC: RTP with the instant of each packet's arrival, Opus, and a peer connection on aiortc."""
