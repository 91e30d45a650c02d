"""The pure core: no asyncio, no sockets, no files. Time is an argument."""
