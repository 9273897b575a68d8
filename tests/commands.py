"""Commands and Python programs in forks of a process that has imported TensorFlow once: each import takes seconds.

`Command` and `twin_graph()` run `twin-graph`; `bash()` runs scripts that do; `python()` is an interpreter for programs
that start others. Files are not fsynced there: what is killed loses nothing that the kernel has.
"""

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from filelock import FileLock

#: Of bootstraps, in commands: with the 2,000 of the package, a report takes three times as long.
RESAMPLES = 200

# Each line of the pipe `asks` in its folder is the path of a file with a call: calls are longer than what a pipe takes
# at once. For each a keeper says the program's process id and, when it has ended, its exit code. If asked, it kills a
# program whose caller is gone: whoever kills the caller means the program.
_SERVER = """
import contextlib, faulthandler, gc, json, os, runpy, select, shutil, signal, sys, time, traceback, types, warnings

folder, owner = sys.argv[1:]
import twin_graph.distributed.chief, twin_graph.exchange.export, twin_graph.exchange.importing
import twin_graph.distributed.server, twin_graph.distributed.worker, twin_graph.experiments.report
import twin_graph.training.doctor
import gymnasium.envs.classic_control.cartpole, twin_graph.envs.atari, twin_graph.envs.gym, twin_graph.envs.open_spiel
import twin_graph_cli.evaluate, twin_graph_cli.experiment, twin_graph_cli.records, twin_graph_cli.train
import multiprocessing.spawn  # which keeps what is `sys.executable` now: its processes inherit open files
import twin_graph_cli.main
from twin_graph_cli import run as run_command

sys.path.remove("")  # as for the console script, which looks for modules in the present folder last
os.fsync = lambda descriptor: None
twin_graph.experiments.statistics.RESAMPLES = RESAMPLES
asks = open(os.open(f"{folder}/asks", os.O_RDWR | os.O_NONBLOCK), buffering=1)  # also for writing: it never ends
gc.freeze()  # or the first collection of each fork would touch all that is imported
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup

def run(program):
    what, *sys.argv = program
    if what == "-c":
        code, sys.argv[0] = sys.argv[0], "-c"
        sys.modules["__main__"] = main_module = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main_module.__dict__)
    elif what == "-m":
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # it was imported before
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv.insert(0, what)
        if what.endswith(".py"):
            sys.path.insert(0, os.path.dirname(os.path.abspath(what)))
            runpy.run_path(what, run_name="__main__")
        else:
            run_command()

# The pipe on which a caller hears; ends with the program if the caller died before it could hear.
def heard_by_caller(call, process):
    while True:
        try:
            return os.open(call["told"], os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # it has not made it yet, or does not read yet
            if not os.path.exists(f"/proc/{call['caller']}"):
                os.kill(process, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.unlink(call["told"])
                os._exit(0)
            time.sleep(0.002)

# The lines of the pipe, until the owner is gone.
def lines():
    begun = ""
    while os.path.exists(f"/proc/{owner}"):
        if select.select([asks], [], [], 1)[0]:
            *whole, begun = (begun + os.read(asks.fileno(), 65536).decode()).split("\\n")
            yield from whole

for line in lines():
    with open(line) as file:
        call = json.load(file)
    os.unlink(file.name)
    if os.fork():
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = os.fork()
    if process:
        # Where the caller dies at this moment, nobody else removes the pipe, for which other callers would wait.
        with contextlib.suppress(BrokenPipeError), open(heard_by_caller(call, process), "w", buffering=1) as told:
            print(process, file=told)
            if call.get("ends_with_caller"):
                ended, heard = os.pidfd_open(process), select.poll()
                heard.register(ended, select.POLLIN)
                heard.register(told, 0)  # POLLERR: its reader is gone
                if any(file != ended for file, _ in heard.poll()):
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                    os.unlink(call["told"])
                    os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), file=told)
            os._exit(0)
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(process, os.WNOHANG) == (0, 0):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.unlink(call["told"])
        os._exit(0)
    os.setsid()
    os.chdir(call["cwd"])
    for number, path in enumerate((call.get("stdin", os.devnull), call["stdout"], call["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY), number)
    sys.stdin = open(0, closefd=False)
    faulthandler.enable(open(2, "w", closefd=False))  # SIGABRT: where it is
    if environment := call.get("environment"):
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(":"))
    sys.executable = call.get("python", sys.executable)
    code = 1
    try:
        run(call["program"])
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)  # to take everything apart would take a second
shutil.rmtree(folder, ignore_errors=True)
os.unlink(f"{folder}.lock")
"""

# `twin-graph` for a shell, and `python` for a program: each passes its arguments to the server and stays until the
# program has ended. Before that it waits for programs that die because their callers were killed: to the shell these
# are dead at once.
_CALLER = """#!{python} -SE
import json, os, select, signal, sys, time

def alive(process):
    try:
        with open(f"/proc/{{process}}/stat") as stat:
            return stat.read().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False

def told_of(process):
    return f"{folder}/told-{{process}}"

name, *program = sys.argv
if os.path.basename(name) == "twin-graph":
    program = ["twin-graph", *program]
elif program[0] == "-P":
    del program[0]
leash = 0
if program[:2] == ["-m", "twin_graph.base.leash"]:  # this process is what the leash has
    leash = int(program[2])
    program[1:] = program[3:]
elif program[:2] == ["-m", "twin_graph.distributed"]:
    leash = int(program.pop())
if program[0] not in ("-c", "-m", "twin-graph") and not program[0].endswith(".py"):
    os.execv("{python}", ["{python}", *sys.argv[1:]])

for name in os.listdir("{folder}"):
    caller = name.removeprefix("told-")
    while caller.isdigit() and not alive(caller) and os.path.exists(told_of(caller)):
        time.sleep(0.02)
this = os.getpid()
streams = {{name: f"/proc/{{this}}/fd/{{i}}" for i, name in enumerate(("stdin", "stdout", "stderr"))}}
call = {{"program": program, "cwd": os.getcwd(), "environment": dict(os.environ), "python": "{folder}/python"}}
call |= {{"ends_with_caller": True, "told": told_of(this), "caller": this, **streams}}
with open(f"{folder}/call-{{this}}", "x") as file:
    json.dump(call, file)
with open("{folder}/asks", "wb", buffering=0) as asks:
    asks.write(f"{{file.name}}\\n".encode())
os.mkfifo(told_of(this))
with open(told_of(this)) as lines:
    process = int(lines.readline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda number, _: os.kill(process, number))
    while leash and not select.select([lines], [], [], 0.2)[0]:
        if os.getppid() != leash:
            os._exit(1)
    code = int(lines.readline())
os.unlink(told_of(this))
if code < 0:  # the signal that ended it is what is to be seen
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(this, -code)
sys.exit(code)
"""


@functools.cache
def _folder() -> Path:
    """Where the server of this session is asked, with the programs `twin-graph` and `python`.

    The workers of pytest-xdist have one server, which ends with the process that started them.
    """
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(tempfile.gettempdir(), f"twin-graph-commands-{session}")
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            os.mkfifo(folder / "asks")
            for name in ("twin-graph", "python"):
                (folder / name).write_text(_CALLER.format(python=sys.executable, folder=folder))
                (folder / name).chmod(0o755)
            owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
            subprocess.Popen(
                [sys.executable, "-c", _SERVER.replace("= RESAMPLES", f"= {RESAMPLES}"), folder, str(owner)],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
    return folder


def _asks() -> int:
    """The server's pipe, once it listens; fails if it does not: it may have found a mistake in what it imports."""
    ends = time.monotonic() + 90
    while True:
        try:
            return os.open(_folder() / "asks", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert time.monotonic() < ends, "no server of commands: what it says when it begins is on stderr"
            time.sleep(0.05)


def python() -> str:
    """An interpreter in place of `sys.executable`: `-c`, `-m` and files run in a fork that has TensorFlow.

    What it starts by `sys.executable` does, too.
    """
    return str(_folder() / "python")


class Command:
    """A command in a process and session of its own, with what `subprocess.Popen` has of it."""

    def __init__(self, *arguments: str, cwd: Path, env: dict[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        files = {name: f"{self._folder.name}/{name}" for name in ("stdout", "stderr", "told")}
        self._output = [Path(files[name]) for name in ("stdout", "stderr")]
        for path in self._output:
            path.touch()
        os.mkfifo(files["told"])
        call = {"program": ["twin-graph", *arguments], "cwd": str(cwd), "environment": env, "python": python()}
        asked = Path(f"{self._folder.name}/call")
        asked.write_text(json.dumps({**call, "caller": os.getpid(), **files}))
        with open(_asks(), "wb", buffering=0) as asks:
            asks.write(f"{asked}\n".encode())
        self._told = Path(files["told"]).open()  # noqa: SIM115 - for as long as the command
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise TimeoutError(f"process {self.pid} has not ended")
            self.returncode = int(self._told.readline())
            self._told.close()
        return self.returncode

    def wait_for(self, path: Path) -> None:
        """Until there is a file whose name begins with this one's: fails with what the command said, or where it is."""
        deadline = time.monotonic() + 90
        while not any(path.parent.glob(f"{path.name}*")):
            if late := time.monotonic() > deadline:
                self.send_signal(signal.SIGABRT)
            if late or select.select([self._told], [], [], 0.02)[0]:
                raise AssertionError(f"no {path}: {self.communicate(10)[1]}")

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        stdout, stderr = (path.read_text() for path in self._output)
        return stdout, stderr

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def twin_graph(
    *arguments: str, cwd: Path, env: dict[str, str] | None = None, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end in a process of its own, which imports for itself if it is to be `fresh`."""
    if fresh:
        command = [sys.executable, "-m", "twin_graph_cli", *arguments]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    forked = Command(*arguments, cwd=cwd, env=env)
    stdout, stderr = forked.communicate()
    return subprocess.CompletedProcess(arguments, forked.wait(), stdout, stderr)


def bash(script: str, *, cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs a script up to the first command that fails. Its `twin-graph` is a fork, which `kill -9 $!` kills, too."""
    with tempfile.TemporaryDirectory() as name:
        file, output = Path(name, "script"), Path(name, "output")
        file.write_text(script)
        path = f"{_folder()}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        with output.open("ab") as out:
            process = subprocess.Popen(
                ["bash", "-euxo", "pipefail", file],
                cwd=cwd,
                env={**os.environ, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"not done after {timeout} s:\n{output.read_text()}") from late
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it left in the background
        return subprocess.CompletedProcess(script, process.returncode, output.read_text())
