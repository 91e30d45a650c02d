"""CTranslate2 on a CUDA card: what is chosen, and what is said where it cannot be."""

import subprocess
import sys
from pathlib import Path

import ctranslate2
import pytest
from loguru import logger
from shared_library import shared_library

from turngap.core.errors import AgentError
from turngap_services import loading
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.small.model import SmallModel
from turngap_services.loading import (
    LIBRARIES,
    Compute,
    Device,
    Place,
    cuda_trouble,
    engine_trouble,
    place,
)

NOT_FOUND = OSError("Library libcublas.so.12 is not found or cannot be loaded")
NO_DRIVER = RuntimeError(
    "CUDA failed with error CUDA driver version is insufficient for CUDA runtime version"
)


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """A folder in which the extra `cuda` has put its libraries, as far as the loader can tell."""
    folder = tmp_path / "nvidia" / "cublas" / "lib"
    folder.mkdir(parents=True)
    for name in LIBRARIES:
        (folder / name).write_bytes(shared_library(name))
    return tmp_path


def card(
    monkeypatch: pytest.MonkeyPatch, *, supports: set[str] | Exception, missing: bool = False
) -> None:
    """Pretend that there is a card; with an exception, that CTranslate2 cannot use it."""

    def supported(device: str) -> set[str]:
        assert device == "cuda"
        if isinstance(supports, Exception):
            raise supports
        return supports

    def load() -> None:
        if missing:
            raise NOT_FOUND

    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 1)
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", supported)
    monkeypatch.setattr(loading, "load_libraries", load)


@pytest.mark.parametrize(
    ("device", "compute_type", "chosen"),
    [
        ("cpu", None, Place("cpu", "int8")),
        ("auto", None, Place("cuda", "float16")),
        ("cuda", None, Place("cuda", "float16")),
        ("cuda", "int8_float16", Place("cuda", "int8_float16")),
        ("cpu", "float32", Place("cpu", "float32")),
    ],
)
def test_the_device_chooses_what_is_not_set(
    monkeypatch: pytest.MonkeyPatch, device: Device, compute_type: Compute | None, chosen: Place
) -> None:
    card(monkeypatch, supports={"float32", "int8", "int8_float16", "float16"})
    assert place(device, compute_type, "stt") == chosen


@pytest.mark.parametrize(
    ("supports", "chosen"),
    [({"float32", "int8"}, "int8"), ({"float32"}, "float32"), (set[str](), "default")],
)
def test_an_older_card_calculates_with_what_it_has(
    monkeypatch: pytest.MonkeyPatch, supports: set[str], chosen: str
) -> None:
    card(monkeypatch, supports=supports)
    assert place("cuda", None, "stt").compute_type == chosen


def test_without_a_card_auto_is_the_cpu_and_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), level="WARNING")
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 0)
    assert place("auto", None, "stt") == Place("cpu", "int8")
    logger.remove(sink)
    assert said == []


def test_where_the_cards_libraries_are_missing_auto_is_the_cpu_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), level="WARNING")
    card(monkeypatch, supports={"float16"}, missing=True)
    assert place("auto", None, "llm") == Place("cpu", "int8")
    logger.remove(sink)
    assert len(said) == 1
    assert "llm runs on the CPU" in said[0]
    assert "pip install 'turngap[cuda]'" in said[0]


@pytest.mark.parametrize(
    ("supports", "missing", "kind"),
    [({"float16"}, True, "cuda.library"), (NO_DRIVER, True, "cuda.failed")],
)
def test_cuda_that_was_asked_for_and_cannot_be_had_is_an_error(
    monkeypatch: pytest.MonkeyPatch, supports: set[str] | Exception, missing: bool, kind: str
) -> None:
    card(monkeypatch, supports=supports, missing=missing)
    with pytest.raises(AgentError) as e:
        place("cuda", None, "stt")
    assert e.value.kind == kind
    assert "--set stt.device=cpu" in e.value.hint


@pytest.mark.parametrize(
    ("said", "kind", "hint"),
    [
        (str(NO_DRIVER), "cuda.failed", "525 or newer"),
        ("CUDA failed with error no CUDA-capable device is detected", "cuda.failed", "--gpus all"),
        ("This CTranslate2 package was compiled without CUDA", "cuda.failed", "device=cpu"),
        (str(NOT_FOUND), "cuda.library", "pip install 'turngap[cuda]'"),
        ("CUDA failed with error out of memory", "cuda.memory", "what shares the card"),
        ("cuBLAS failed with status CUBLAS_STATUS_ALLOC_FAILED", "cuda.memory", "vLLM"),
        ("cuBLAS failed with status CUBLAS_STATUS_NOT_SUPPORTED", "cuda.failed", "device=cpu"),
    ],
)
def test_what_fails_on_a_card_is_about_the_card(said: str, kind: str, hint: str) -> None:
    error = RuntimeError(f"{said}\nat cuda.cc:7")
    found = engine_trouble(error, "the model in DIR", "stt", "a smaller model needs less")
    assert found is not None
    assert found.kind == kind
    assert "the model in DIR" in found.message
    assert "\n" not in found.message
    assert hint in found.hint
    assert "--set stt.device=cpu" in found.hint
    assert "convert" not in found.hint
    assert ("a smaller model needs less" in found.hint) == (kind == "cuda.memory")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_compute_type_that_a_device_lacks_is_left_to_turngap(device: Device) -> None:
    error = ValueError(
        "Requested float16 compute type, but the target device or backend do not support "
        "efficient float16 computation."
    )
    found = engine_trouble(error, "the model in DIR", "llm", "")
    assert found is not None
    assert found.kind == "model.compute_type"
    assert "float16" in found.message
    assert "leave llm.compute_type out" in found.hint


def test_what_is_not_about_cuda_is_left_to_others() -> None:
    assert cuda_trouble(RuntimeError("Unable to open file 'model.bin'"), "it", "stt") is None
    memory = engine_trouble(MemoryError("std::bad_alloc"), "it", "stt", "less")
    assert memory is not None
    assert memory.kind == "model.memory"


def test_small_says_it_too() -> None:
    # CTranslate2 itself refuses here, as a CPU calculates with no float16.
    with pytest.raises(AgentError) as e:
        SmallModel(SmallSettings(compute_type="float16"))
    assert e.value.kind == "model.compute_type"
    assert "llm.compute_type" in e.value.hint


# In a process of its own, as a library that was opened once is never closed again.
OPENS = """
import ctypes, pathlib, sys
from turngap_services.loading import LIBRARIES, load_libraries
folder = pathlib.Path(sys.argv[1], "nvidia", "cublas", "lib")
sys.path.append(sys.argv[1])
for name in LIBRARIES:
    whole = (folder / name).read_bytes()
    for spoil in (lambda: (folder / name).write_bytes(b"nothing"), (folder / name).unlink):
        spoil()
        try:
            load_libraries()
        except OSError as e:
            print(e)
    (folder / name).write_bytes(whole)
load_libraries()
print([ctypes.CDLL(name)._name for name in LIBRARIES])  # as CTranslate2 opens it
"""


def test_the_extras_libraries_are_found_by_name_and_named_where_they_are_missing_or_damaged(
    site_packages: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPENS, str(site_packages)],
        capture_output=True,
        text=True,
        check=False,
    )
    *errors, found = done.stdout.splitlines()
    assert found == str(list(LIBRARIES)), done.stderr
    for error in errors:
        trouble = cuda_trouble(OSError(error), "it", "stt")
        assert trouble is not None
        assert trouble.kind == "cuda.library"
    assert [sum(name in error for error in errors) for name in LIBRARIES] == [2, 2]
