"""The pure core: no asyncio, no sockets, no files. Time is an argument."""

__version__ = "0.1.0"
