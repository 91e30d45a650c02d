"""turngap's marks for any pipecat bot: `MarksObserver`.

It runs in bots whose environment has pipecat 1.8 or later and nothing else that turngap needs: it
imports only the standard library, pipecat and what pipecat itself depends on.
"""
