"""Published weights: what is here already, and fetching what is not.

They lie in the cache of the hub's own client (`HF_HUB_CACHE`), where other programs find them too.
What is here is used without any connection: the client is not even imported.
"""
