"""`twin-graph` commands in forks of a process that has imported TensorFlow once: each import takes seconds."""

import atexit
import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

_SERVER = """
import gc, json, os, sys, traceback
import twin_graph.distributed.chief, twin_graph.exchange, twin_graph.experiments.report, twin_graph.training
from twin_graph_cli.main import main

sys.path.remove("")  # as for the console script, which looks for modules in the present folder last
gc.freeze()  # or the first collection of each fork would touch all that is imported
for line in sys.stdin:
    call = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(call["cwd"])
        for number, path in enumerate((os.devnull, call["stdout"], call["stderr"])):
            os.dup2(os.open(path, os.O_WRONLY if number else os.O_RDONLY), number)
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
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    atexit.register(server.kill)
    return server


def twin_graph(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end in a process of its own, which imports for itself if its environment is its own."""
    if env:
        command = [sys.executable, "-m", "twin_graph_cli", *arguments]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile("r+") as stdout, tempfile.NamedTemporaryFile("r+") as stderr:
        call = {"arguments": arguments, "cwd": str(cwd), "stdout": stdout.name, "stderr": stderr.name}
        server.stdin.write(json.dumps(call) + "\n")
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, stdout.read(), stderr.read())
