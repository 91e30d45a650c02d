"""A short soak: what one server holds after fifty conversations is what it held after twenty."""

from pathlib import Path

import numpy as np
from live_server import serving, silence, tone
from soak import soak

from turngap.agent.access import Limits


async def test_conversations_leave_no_descriptor_and_no_task(tmp_path: Path) -> None:
    limits = Limits(request_s=120)
    speech = np.concatenate((silence(100), tone(300), silence(400)))
    async with serving(tmp_path, limits=limits) as server:
        soaked = await soak(server.port, server.seats, 50, speech, warm_up=20)
    assert sum(soaked.came.values()) == 50
    assert set(soaked.came) == {"greeted", "answered"}
    _, warm, after = soaked.figures
    assert after.descriptors <= warm.descriptors
    assert after.tasks <= warm.tasks
    assert after.threads <= warm.threads + 2
