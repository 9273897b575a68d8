"""`twin-graph view`."""

import secrets
import signal
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path

import click

from twin_graph.base.signals import WARNINGS, set_stops
from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.remote import reading
from twin_graph.snapshots.run import RUNS

from .params import AbsolutePath, complete_run, echo, say


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@click.option(
    "--folder",
    default=str(RUNS),
    show_default=True,
    type=AbsolutePath(file_okay=False),
    help="Where to look for runs, if no RUN is named.",
)
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port of this machine.  [default: any free one]")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Also answer to NAME, or NAME:PORT, of a proxy.")
@click.option("--allow-swaps", is_flag=True, help="Let the page restore snapshots into twins, like `twin-graph swap`.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def view(
    runs: tuple[str, ...], folder: Path, port: int, hosts: tuple[str, ...], allow_swaps: bool, no_browser: bool
) -> None:
    """Show runs in a browser, even while they train: all of them, or only each RUN. Of a URL to which a run was sent,
    the state is shown that it had when the command began.

    Only this machine can open the page, and its address holds a secret: whoever knows the address can read the runs.
    A proxy on this machine may pass it on, if it sends Host: 127.0.0.1:PORT, or --host names the host that it sends.
    The page changes nothing, unless --allow-swaps lets it swap snapshots. Ctrl-C ends the command.

    \b
    Examples:
      twin-graph view
      twin-graph view pong-seed1-1 what-if --port 8000 --no-browser
    """
    try:
        from twin_graph.view import server
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise TwinGraphError("view needs starlette and uvicorn: pip install 'twin-graph[view]'") from None
    from twin_graph.view.library import Library

    for host in hosts:
        if not server.is_host(host):
            raise UsageError(f"--host {host}: write it as NAME or NAME:PORT, as in lab.example:8443")
    if not runs and not folder.is_dir():
        raise UsageError(f"no folder {folder}; name the one with your runs with --folder")
    library = Library([reading.opened(name).folder for name in runs], None if runs else folder)
    # So that the file with the address is removed.
    set_stops(lambda number, _: sys.exit(128 + number), signal.SIGTERM, *WARNINGS)
    listening, token = server.listen(port), secrets.token_urlsafe(24)
    address = f"http://{server.ADDRESS}:{listening.getsockname()[1]}/{token}/"
    echo(address)
    say("only this machine can open it; Ctrl-C ends it")
    with tempfile.TemporaryDirectory(prefix="twin-graph-") as private:  # that nobody else may read
        if not no_browser:
            say("if your browser cannot find the file (one that is installed as a snap cannot), open the address above")
            page = Path(private) / "view.html"
            page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">')
            # Not the address: all users of the machine see the arguments of its processes.
            threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        try:
            server.serve(library, listening, token, allow_swaps=allow_swaps, hosts=hosts)
        except KeyboardInterrupt:
            say("ended")
