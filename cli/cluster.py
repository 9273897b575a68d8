"""`twin-graph cluster`."""

from pathlib import Path

import click

from twin_graph.distributed.cluster import Cluster
from twin_graph.errors import UsageError

from .params import say

WARNING = (
    "TensorFlow's servers take orders from everyone who can reach them: no password, no encryption, and whoever sends "
    "a graph can read and write files as you. Use a network where that is nobody else."
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--task", required=True, metavar="JOB:N", help="Which: ps:0, worker:0, worker:1 ...")
@click.option(
    "--listen", metavar="ADDRESS", help="The address of this server in FILE, if other machines are to reach it."
)
@click.option("--insecure-network", is_flag=True, help="Yes, everyone who can reach that address may do anything.")
def cluster(file: Path, task: str, listen: str | None, insecure_network: bool) -> None:
    """Be one task of the cluster that FILE describes: a parameter server or a worker.

    FILE names the run's folder, on storage that all machines see, where each server listens, and how many workers there
    are, which listen nowhere:

    \b
      run = "/shared/checkpoints/pong"
      ps = ["10.0.0.1:4000"]
      workers = 2

    The training itself is started by `twin-graph train PRESET --cluster FILE`, before or after the tasks; they end with
    it. Addresses beyond this machine need --listen and --insecure-network: TensorFlow's servers take orders from
    everyone who can reach them, without a password, and whoever sends a graph can read and write files as you.

    \b
    Examples:
      twin-graph cluster pong.toml --task worker:0
      twin-graph cluster pong.toml --task ps:0 --listen 10.0.0.1 --insecure-network
    """
    from twin_graph.distributed.task import parse, run_task

    described = Cluster.described(file)
    job, index = parse(described, task)
    listening = ""
    if job == "ps":
        address = described.ps[index]
        listening = f", listening on {address}"
        host = address.rpartition(":")[0]
        if address in described.beyond_this_machine and (listen != host or not insecure_network):
            raise UsageError(
                f"{task} is at {address}, beyond this machine: give --listen {host} --insecure-network. {WARNING}"
            )
    elif listen:
        raise UsageError(f"{task} listens nowhere: leave out --listen {listen}")
    say(f"{task} of {described.run}{listening}; ends with the training")
    run_task(described, task)
