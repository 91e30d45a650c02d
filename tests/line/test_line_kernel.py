"""The comparison with a kernel, where a machine has no TUN devices."""

from pathlib import Path

import line_kernel
import pytest


def test_without_tun_devices_it_names_them_and_exits_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(line_kernel, "TUN", Path("/dev/net/none"))
    assert line_kernel.main(["--case", "plain"]) == 3
    assert "/dev/net/none" in capsys.readouterr().err
