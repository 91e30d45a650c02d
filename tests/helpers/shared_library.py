"""A shared library without any code, which the system's loader opens: a stand-in for cuBLAS."""

import platform
import struct

_MACHINES = {"x86_64": 62, "aarch64": 183}
_LOAD, _DYNAMIC = 1, 2
_HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 4, 5, 6, 10, 11, 14


def shared_library(name: str) -> bytes:
    """Return an ELF file that the loader knows by `name` (its SONAME) once it is open."""
    strings = b"\0" + name.encode() + b"\0"
    head, symbol = 64 + 2 * 56, 24
    table = struct.pack("<4I", 1, 1, 0, 0)  # a hash table of no symbols
    hash_at = head
    symbols_at = hash_at + len(table)
    strings_at = symbols_at + symbol
    dynamic_at = -(-(strings_at + len(strings)) // 8) * 8
    entries = {
        _HASH: hash_at, _STRTAB: strings_at, _SYMTAB: symbols_at,
        _STRSZ: len(strings), _SYMENT: symbol, _SONAME: 1, 0: 0,
    }  # fmt: skip
    dynamic = b"".join(struct.pack("<2q", *entry) for entry in entries.items())
    size = dynamic_at + len(dynamic)
    machine = _MACHINES[platform.machine()]
    header = struct.pack(
        "<16s2HI3QI6H", b"\x7fELF\2\1\1", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0
    )
    load = struct.pack("<2I6Q", _LOAD, 6, 0, 0, 0, size, size, 0x1000)
    dyn = struct.pack(
        "<2I6Q", _DYNAMIC, 6, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8
    )
    body = header + load + dyn + table + bytes(symbol) + strings
    return body.ljust(dynamic_at, b"\0") + dynamic
