"""`twin-graph cluster`."""

import signal
from pathlib import Path

import click

from twin_graph.distributed.cluster import Cluster
from twin_graph.errors import UsageError

from .params import PATH, say, trust_option

WARNING = (
    "TensorFlow's servers obey everyone who can reach them: there is no password and no encryption, and whoever sends "
    "them a graph can read and write files as you. Use a network that only you can reach."
)


@click.command()
@click.argument("file", type=PATH)
@click.option("--task", required=True, metavar="JOB:N", help="Which task: ps:0, worker:0, worker:1 ...")
@click.option("--listen", metavar="ADDRESS", help="This server's address in FILE, to let other machines reach it.")
@click.option("--insecure-network", is_flag=True, help="Confirm that you trust everyone who can reach that address.")
@trust_option
def cluster(file: Path, task: str, listen: str | None, insecure_network: bool) -> None:
    """Run one task of the cluster described in FILE: a parameter server or a worker.

    FILE gives the run's folder, on storage shared by all machines, the address of each server, and the number of
    workers:

    \b
      run = "/shared/checkpoints/pong"
      ps = ["10.0.0.1:4000"]
      workers = 2

    `twin-graph train PRESET --cluster FILE` starts the run, before or after its tasks; they end with it. Addresses
    beyond this machine need --listen and --insecure-network: TensorFlow's servers obey everyone who can reach them,
    without a password, and whoever sends them a graph can read and write files as you.

    \b
    Examples:
      twin-graph cluster pong.toml --task worker:0
      twin-graph cluster pong.toml --task ps:0 --listen 10.0.0.1 --insecure-network
    """
    from twin_graph.distributed.task import parse, relay_for, run_task

    described = Cluster.described(file)
    job, index = parse(described, task)
    listening = ""
    if job == "ps":
        address = described.ps[index]
        listening = f", listening on {address}"
        host = address.rpartition(":")[0]
        if listen and listen != host:
            raise UsageError(f"{task} is at {address} in {file}: leave out --listen {listen}, or change the address")
        if address in described.beyond_this_machine and not (listen and insecure_network):
            raise UsageError(
                f"{task} is at {address}, beyond this machine: give --listen {host} --insecure-network. {WARNING}"
            )
    elif listen:
        raise UsageError(f"{task} does not listen; leave out --listen {listen}")
    relay = relay_for(described, task)
    say(f"{task} of {described.run}{listening}; ends with the run{f'; {relay.protection}' if relay else ''}")
    # Of a server, Python would first wait for the session's answer; a shell's background tasks would ignore it.
    signal.signal(signal.SIGINT, signal.SIG_DFL if job == "ps" else signal.default_int_handler)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm warns all tasks: the chief needs this one to save
    run_task(described, task, relay)
