"""Whether this machine has a CUDA card, without importing what would use it."""

import shutil
import subprocess
import sys
from functools import cache

# A driver that is stuck answers nothing.
_WAIT_S = 10.0
# In a container the driver's library may be there without its tools.
_BY_DRIVER = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(100)
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
    for number in range(count.value):
        cuda.cuDeviceGet(ctypes.byref(device), number)
        cuda.cuDeviceGetName(name, len(name), device)
        print(name.value.decode())
"""


@cache
def cards() -> tuple[str, ...]:
    """The CUDA cards that the driver lists, each in a line; none where it does not answer."""
    asked = "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"
    by_tool = [["nvidia-smi", *asked]] if shutil.which("nvidia-smi") else []
    for command in (*by_tool, [sys.executable, "-c", _BY_DRIVER]):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_WAIT_S, check=False
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if done.returncode == 0 and (found := done.stdout.split("\n")[:-1]):
            return tuple(found)
    return ()
