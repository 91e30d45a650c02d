"""Names that caller and agent agree on: turngap's own messages inside RTVI.

They are types of client messages; what the agent answers is a server message whose key `turngap`
names it.
"""

# Asks for the agent's clock; answered by `pong`.
PING = "turngap.ping"
# Picks another LLM, `{"use": NAME}`; answered by `llm` or `refused`.
LLM = "turngap.llm"
# Says something in writing, `{"turn": n, "text": …}`; answered by `said` or `refused`.
SAY = "turngap.say"
