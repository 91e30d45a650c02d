"""Names that caller and agent agree on: turngap's own messages inside RTVI."""

# A client message that asks for the agent's clock; answered by a server message `pong`.
PING = "turngap.ping"
