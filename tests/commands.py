"""`twin-graph` commands in forks of a process that has imported TensorFlow once: each import takes seconds."""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

# For each command a keeper, which says the command's process id and, when it has ended, its exit code. If asked, it
# kills a command whose caller is gone: whoever kills the caller means the command.
_SERVER = """
import gc, json, os, select, signal, sys, traceback
import twin_graph.distributed.chief, twin_graph.exchange, twin_graph.experiments.report, twin_graph.training
from twin_graph_cli.main import main

sys.path.remove("")  # as for the console script, which looks for modules in the present folder last
gc.freeze()  # or the first collection of each fork would touch all that is imported
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    call = json.loads(line)
    if os.fork():
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = os.fork()
    if process:
        with open(call["told"], "w", buffering=1) as told:
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
    os.setsid()
    os.chdir(call["cwd"])
    for number, path in enumerate((os.devnull, call["stdout"], call["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY), number)
    sys.argv = ["twin-graph", *call["arguments"]]
    code = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)  # to take everything apart would take a second
"""

# `twin-graph` for a shell: it passes its arguments to the server and stays until the command has ended. Before that it
# waits for commands that die because their callers were killed: to the shell these are dead at once.
_CALLER = """#!{python} -SE
import json, os, signal, sys, time

def alive(process):
    try:
        with open(f"/proc/{{process}}/stat") as stat:
            return stat.read().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False

def told_of(process):
    return f"{folder}/told-{{process}}"

for name in os.listdir("{folder}"):
    caller = name.removeprefix("told-")
    while caller.isdigit() and not alive(caller) and os.path.exists(told_of(caller)):
        time.sleep(0.02)
this = os.getpid()
os.mkfifo(told_of(this))
files = {{"stdout": f"/proc/{{this}}/fd/1", "stderr": f"/proc/{{this}}/fd/2", "told": told_of(this)}}
call = {{"arguments": sys.argv[1:], "cwd": os.getcwd(), "ends_with_caller": True, **files}}
os.write({server}, (json.dumps(call) + "\\n").encode())
with open(told_of(this)) as lines:
    process = int(lines.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(process, number))
    code = int(lines.readline())
os.unlink(told_of(this))
sys.exit(code % 256)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen([sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, text=True, bufsize=1)
    atexit.register(server.kill)
    return server


class Command:
    """A command in a process and session of its own, with what `subprocess.Popen` has of it."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self._folder = tempfile.TemporaryDirectory()
        files = {name: f"{self._folder.name}/{name}" for name in ("stdout", "stderr", "told")}
        self._output = [Path(files[name]) for name in ("stdout", "stderr")]
        for path in self._output:
            path.touch()
        os.mkfifo(files["told"])
        stdin = _server().stdin
        assert stdin is not None
        stdin.write(json.dumps({"arguments": arguments, "cwd": str(cwd), **files}) + "\n")
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

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        stdout, stderr = (path.read_text() for path in self._output)
        return stdout, stderr

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def twin_graph(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end in a process of its own, which imports for itself if its environment is its own."""
    if env:
        command = [sys.executable, "-m", "twin_graph_cli", *arguments]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    forked = Command(*arguments, cwd=cwd)
    stdout, stderr = forked.communicate()
    return subprocess.CompletedProcess(arguments, forked.wait(), stdout, stderr)


def bash(script: str, *, cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs a script up to the first command that fails. Its `twin-graph` is a fork, which `kill -9 $!` kills, too."""
    stdin = _server().stdin
    assert stdin is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        caller, file, output = folder / "twin-graph", folder / "script", folder / "output"
        caller.write_text(_CALLER.format(python=sys.executable, server=stdin.fileno(), folder=folder))
        caller.chmod(0o755)
        file.write_text(script)
        path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        with output.open("ab") as out:
            process = subprocess.Popen(
                ["bash", "-euxo", "pipefail", file],
                cwd=cwd,
                env={**os.environ, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=[stdin.fileno()],
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
