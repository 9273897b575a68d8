r"""Asynchronous training: what more machines would give, from costs that can be measured on one.

    python benchmarks/async_model.py [--seconds 5] [--rounds 1] [--gigabits 1 --gigabits 10 --gigabits 25]
                                     [--json benchmarks/results/async_model.json]
                                     [--picture benchmarks/results/async_model.png]

Measured are the parts of one worker's update on Pong, by the code that workers run, in one thread on one core: acting,
environments, claims of steps, sampling, target, gradient, a pull and a push; and the processor time of a parameter
server, a process beside it, for these. For the last, networks of several sizes and depths are taken, and fitted: what
messages cost, what a variable in them and what a byte. Pushes are of the gradient of one transition, whose own time is
subtracted.

`queueing.py` makes rates of them. What is assumed:

- A worker has one core, and an update is one chain: its parts take turns there. Acting does go on while a gradient is
  computed, but on one core it is over before the gradient is, so that nothing is left to be done during the messages.
- A server has `--server-cores` cores (1), and every variable lies where `placement` puts it. Of the 2015 network 95% of
  all bytes are one variable, so that a second server takes little from the first.
- Gradients come in and variables go out through a server's network at `--gigabits` (10) each way; workers' networks are
  not shared. A round trip takes `--round-trip` ms (0.1), and an update two of them: the push and the pull.
- Variables, targets and environments cost the same however many workers there are; the chief costs nothing.

The check: runs as `async.py` times them, of 1 and 2 workers, 1 and 4 accumulated minibatches, 1 and 2 servers,
beside the model of this machine. There the wires cost nothing, and servers and workers share the cores: a worker whose
message is under way leaves its core to the server, so that up to one worker a core they do not meet; beyond that all
updates of a second must fit into the cores' seconds, the servers' part included.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import psutil
import queueing
from fresh import in_a_process
from rich.console import Console
from rich.table import Table

from twin_graph import config
from twin_graph.base import machine
from twin_graph.snapshots.run import VERSIONED

ENVIRONMENTS, BATCH, EVERY = 8, 32, 4  # agent steps for each minibatch
ACCUMULATE = (1, 4)
WORKERS, SERVERS = (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8)
CHECKED = [(accumulate, workers, servers) for accumulate in ACCUMULATE for workers in (1, 2) for servers in (1, 2)]
NATURE = "nature"
DENSE = ("64x1", "64x7", "512x3", "1024x1", "1024x3")  # widths and numbers of hidden layers
ROUND_TRIPS = 2

Figures = dict[str, Any]


def settings_of(network: str) -> config.Settings:
    """Of the preset, as a worker has them; for `nature`, or a network of dense layers."""
    chosen: dict[str, Any] = {
        "train.accumulate": 2,
        "train.every_steps": 2 * EVERY,
        "train.batch_size": BATCH,
        "twin.threads": 1,
    }
    if network != NATURE:
        width, layers = map(int, network.split("x"))
        chosen |= {"network": "mlp", "model.hidden_units": [width] * layers}
    return config.load("pong", chosen.items())


@contextlib.contextmanager
def cluster_of_one(spec: Any) -> Iterator[tuple[Any, Any, psutil.Process]]:
    """A worker in this process, pinned to one core, and the server that it speaks with."""
    from twin_graph.distributed.cluster import Cluster
    from twin_graph.distributed.copy import Copy
    from twin_graph.distributed.shared import Counts, Shared
    from twin_graph.twin.twin import Twin

    with contextlib.ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory()))
        cluster = Cluster.on_this_machine(folder, workers=1, servers=1)
        cluster.write(folder / "cluster.json")
        command = [
            sys.executable,
            "-m",
            "twin_graph.distributed",
            str(folder / "cluster.json"),
            "ps:0",
            str(os.getpid()),
        ]
        server = open_.enter_context(subprocess.Popen(command))
        open_.callback(server.kill)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        twin = open_.enter_context(Twin("worker-0", spec, seed=1, threads=1))
        shared = Shared(cluster, twin, 10**9)
        open_.callback(shared.close)
        shared.begin(twin.all_variables(), Counts(0, 0, 0), attempt=1)
        yield shared, Copy(shared, twin), psutil.Process(server.pid)


def timed(action: Callable[[], object], seconds: float, server: psutil.Process) -> Figures:
    """Of one call: the median by the clock, this process' and the server's processor time, bytes over loopback."""

    def spent() -> tuple[float, float, float]:
        theirs = server.cpu_times()
        network = psutil.net_io_counters(pernic=True).get("lo")
        return time.process_time(), theirs.user + theirs.system, network.bytes_recv if network else 0

    for _ in range(3):
        action()
    times: list[float] = []
    before, until = spent(), time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        action()
        times.append(time.perf_counter() - began)
    own, theirs, received = ((now - then) / len(times) for now, then in zip(spent(), before, strict=True))
    figures = {"calls": len(times), "seconds": statistics.median(times), "worker": own, "server": theirs}
    return {**figures, "loopback_bytes": received}


def measure(network: str, seconds: float) -> Figures:
    """The costs of messages for a network; for `nature` also those of everything else that a worker does."""
    import numpy as np

    from twin_graph import envs
    from twin_graph.agent.prefetched import feeds
    from twin_graph.envs import EnvSpec
    from twin_graph.replay import sampling
    from twin_graph.replay.ring import Replay, Transition
    from twin_graph.snapshots.store import Variable
    from twin_graph.twin.model import ModelSpec
    from twin_graph.twin.twin import Twin

    settings = settings_of(network)
    with contextlib.ExitStack() as open_:
        env = open_.enter_context(contextlib.closing(envs.make(settings.env, count=ENVIRONMENTS)))
        n_actions = env.spec.n_actions
        seen = env.spec if network == NATURE else EnvSpec((settings.model.hidden_units[0],), n_actions)
        shape, dtype = seen.observation_shape, seen.observation_dtype
        spec = ModelSpec.of(settings, seen)
        shared, copy, server = open_.enter_context(cluster_of_one(spec))
        model, random = copy.twin.model, np.random.default_rng(0)

        def minibatch(size: int) -> dict[Any, np.ndarray]:
            return {
                model.s_tm1: random.integers(0, 256, (size, *shape)).astype(dtype),
                model.a_tm1: random.integers(0, n_actions, size),
                model.r_t: random.normal(size=size),
                model.discount_t: np.full(size, 0.99),
                model.q_target_t: random.normal(size=(size, n_actions)),
            }

        def gradient(size: int) -> Callable[[], object]:
            fed = minibatch(size)
            return lambda: copy.twin.run((model.td_error, model.accumulate_op), fed)

        one = minibatch(1)
        figures: Figures = {
            "network": network,
            "loads": [loads_of([Variable.of(v) for v in model.trainables], count) for count in SERVERS],
            "pull": timed(copy.pull, seconds, server),
            "gradient of one": timed(gradient(1), seconds, server),
            "push with it": timed(lambda: copy.apply([one], 1e-4), seconds, server),
        }
        if network != NATURE:
            return figures

        target = open_.enter_context(Twin("target", spec, seed=2, threads=1))
        replay = Replay(
            capacity_steps=settings.replay.capacity_steps // 2,
            environments=ENVIRONMENTS,
            observation_shape=shape,
            dtype=dtype,
            stack=env.spec.stack,
            n_step=settings.train.n_step,
            discount=settings.train.discount,
        )
        now = [env.reset(np.arange(ENVIRONMENTS))]

        def step() -> None:
            actions = random.integers(0, n_actions, ENVIRONMENTS)
            answer = env.step(actions)
            replay.add(Transition(now[0], actions, answer.r_t, answer.terminal_t, answer.last_t, answer.s_t))
            now[0] = answer.s_next

        for _ in range(200):
            step()
        figures |= {
            "claim": timed(lambda: shared.claim_step(1), seconds, server),
            "act": timed(lambda: copy.twin.q_values(now[0]), seconds, server),
            "environment": timed(step, seconds, server),
            "gradient": timed(gradient(BATCH), seconds, server),
        }
        for accumulate in ACCUMULATE:
            own = config.replace(settings, [("train.accumulate", accumulate)])
            sampler, fed = sampling.of(replay, own), minibatch(BATCH * accumulate)[model.s_tm1]

            def sample(sampler: Any = sampler, own: Any = own) -> None:
                batch = sampler.sample(range(7, 8))
                q_target_t = np.zeros((len(batch.r_t), n_actions), np.float32)
                feeds(model, own.train, {**batch._asdict(), "q_target_t": q_target_t})

            figures[f"sample {accumulate}"] = timed(sample, seconds, server)
            figures[f"target {accumulate}"] = timed(functools.partial(target.q_values, fed), seconds, server)
        return figures


def loads_of(trainables: Sequence[Any], servers: int) -> list[queueing.Load]:
    """What each server holds, where `placement` puts it."""
    from twin_graph.distributed.shared import placement

    sizes = [[4 * math.prod(variable.shape) for variable in held] for held in placement(trainables, servers)]
    return [queueing.Load(len(each), sum(each)) for each in sizes]


class Costs(NamedTuple):
    """Of one update with so many accumulated minibatches, in seconds.

    Attributes:
      agent_steps: that it goes with.
      worker: core time of the worker, its side of the messages included.
      waits: what the messages take beyond the processors' times; below 0 as far as these work at once.
      processor: of a server, for the messages.
      claims: of the first server, for the agent steps.
    """

    agent_steps: int
    worker: float
    waits: float
    processor: queueing.Cost
    claims: float


def costs_of(accumulate: int, nature: Figures, others: Sequence[Figures]) -> Costs:
    """From what was measured."""
    agent_steps = EVERY * accumulate
    vector_steps = agent_steps / ENVIRONMENTS

    def message(figures: Figures, what: str) -> float:
        return float(figures["pull"][what] + figures["push with it"][what] - figures["gradient of one"][what])

    each_step = sum(nature[part]["worker"] for part in ("claim", "act", "environment"))
    once = sum(nature[f"{part} {accumulate}"]["worker"] for part in ("sample", "target"))
    own = message(nature, "worker")
    points = [(whole(figures), message(figures, "server")) for figures in (nature, *others)]
    return Costs(
        agent_steps=agent_steps,
        worker=vector_steps * each_step + once + accumulate * nature["gradient"]["worker"] + own,
        waits=message(nature, "seconds") - own - message(nature, "server"),
        processor=queueing.fit(points),
        claims=vector_steps * nature["claim"]["server"],
    )


def whole(figures: Figures) -> queueing.Load:
    """What one server holds of a network."""
    return queueing.Load(*figures["loads"][0][0])


def elsewhere(costs: Costs, loads: Sequence[queueing.Load], gigabits: float, cores: int, round_trip: float) -> Figures:
    """Agent steps per second by number of workers, each with a core of its own, and what is full when."""
    visits = queueing.demands(loads, costs.processor, counting=costs.claims, bits_per_second=1e9 * gigabits)
    visits["processor"] /= cores
    think = costs.worker + costs.waits + ROUND_TRIPS * round_trip
    workers, station = queueing.full_at(think, visits)
    rates = [costs.agent_steps * queueing.update_rate(count, think, visits.values()) for count in WORKERS]
    return {
        "agent_steps_per_second": dict(zip(WORKERS, rates, strict=True)),
        "at_most": costs.agent_steps / max(visits.values()),
        "full": station,
        "full_at_workers": workers,
        "demands": visits,
        "think": think,
    }


def here(costs: Costs, loads: Sequence[queueing.Load], workers: int, cores: int) -> float:
    """Agent steps per second on this machine, where servers and workers share the cores and messages cost no wire."""
    visits = queueing.demands(loads, costs.processor, counting=costs.claims)
    servers = sum(costs.processor.at(load) for load in loads) + costs.claims
    rate = queueing.update_rate(workers, costs.worker + costs.waits, visits.values())
    return costs.agent_steps * min(rate, cores / (costs.worker + servers))


def show(document: Figures, console: Console) -> None:
    """Costs, predictions, and the check."""
    table = Table("", *("ms by the clock", "ms, worker", "ms, server", "bytes, loopback"), box=None, title="one call")
    for figures in (document["nature"], *document["others"]):
        for part, cost in figures.items():
            if isinstance(cost, dict):
                times = [f"{1000 * cost[name]:.2f}" for name in ("seconds", "worker", "server")]
                table.add_row(f"{figures['network']}: {part}", *times, f"{cost['loopback_bytes']:,.0f}")
    console.print(table)
    cost = document["costs"][ACCUMULATE[0]]["processor"]
    console.print(
        f"a server needs {1000 * cost['messages']:.2f} ms for an update's messages, {1000 * cost['per_variable']:.2f} "
        f"ms for each variable and {1e9 * cost['per_byte']:.2f} ms for each megabyte; variables and bytes on each:"
    )
    for servers, loads in document["loads"].items():
        console.print(f"  {servers}: " + ", ".join(f"{load.variables} of {load.size / 1e6:.3f} MB" for load in loads))
    shown = ("minibatches a message", "gigabits/s", "servers", *(f"{w} workers" for w in WORKERS), "full from", "what")
    table = Table(*shown, box=None, title="agent steps/s, predicted; one core a worker")
    for made in document["predictions"]:
        rates = [f"{rate:,.0f}" for rate in made["agent_steps_per_second"].values()]
        which = str(made["accumulate"]), f"{made['gigabits']:g}", str(made["servers"])
        table.add_row(*which, *rates, f"{made['full_at_workers']:.0f} workers", made["full"])
    console.print(table)
    if document["check"]:
        headings = ("minibatches a message", "workers", "servers", "predicted", "measured", "predicted / measured")
        table = Table(*headings, box=None, title="agent steps/s, this machine")
        for row in document["check"]:
            measured = statistics.median(row["measured"])
            which = str(row["accumulate"]), str(row["workers"]), str(row["servers"])
            table.add_row(*which, f"{row['predicted']:.0f}", f"{measured:.0f}", f"{row['predicted'] / measured:.2f}")
        console.print(table)


def draw(document: Figures, picture: Path) -> None:
    """Predictions for other machines, by minibatches a message, and the check of this one."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colours = ("#c2571a", "#0b6e99", "#4c8c3f", "#7a4fa3", "#666666")
    mpl.rcParams["font.size"] = 9
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
    speeds = sorted({made["gigabits"] for made in document["predictions"]})
    for panel, accumulate in zip(panels, ACCUMULATE, strict=False):
        lines = [made for made in document["predictions"] if made["accumulate"] == accumulate]
        for made in lines:
            if made["servers"] in (SERVERS[0], SERVERS[-1]):
                rates, few = made["agent_steps_per_second"], made["servers"] == SERVERS[0]
                label = f"{made['gigabits']:g} Gbit/s, {made['servers']} server{'' if few else 's'}"
                colour = colours[speeds.index(made["gigabits"]) % len(colours)]
                style = "-" if few else "--"
                panel.plot(list(rates), list(rates.values()), style, color=colour, marker="o", ms=3, label=label)
        alone = max(made["agent_steps_per_second"][1] for made in lines)
        panel.plot(WORKERS, [alone * count for count in WORKERS], ":", color="#999999", lw=1, label="in proportion")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_xticks(WORKERS, [str(w) for w in WORKERS])
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        panel.minorticks_off()
        many = "minibatches" if accumulate > 1 else "minibatch"
        title = f"predicted, {accumulate} {many} a message"
        panel.set(title=title, xlabel="workers, one core each", ylabel="agent steps per second")
        panel.legend(frameon=False, fontsize=7, loc="upper left")
    check = panels[-1]
    names = [f"{row['workers']}w {row['servers']}s\n{row['accumulate']} mb" for row in document["check"]]
    at = range(len(names))
    medians = [statistics.median(row["measured"]) for row in document["check"]]
    below = [m - min(row["measured"]) for m, row in zip(medians, document["check"], strict=True)]
    above = [max(row["measured"]) - m for m, row in zip(medians, document["check"], strict=True)]
    check.errorbar(at, medians, yerr=[below, above], fmt="o", color="#0b6e99", ms=5, capsize=3, label="measured")
    predicted = [row["predicted"] for row in document["check"]]
    check.plot(at, predicted, "_", color="#c2571a", ms=16, mew=2, label="predicted")
    check.set_xticks(at, names, fontsize=7)
    check.set_ylim(bottom=0)
    cores = document["processor"]["cores"]
    check.set(title=f"this machine, {cores} cores", ylabel="agent steps per second")
    check.set_xlabel("w workers, s servers, mb minibatches a message")
    if names:
        check.legend(frameon=False, loc="lower right")
    for panel in panels:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=200)


@click.command()
@click.option("--seconds", default=5.0, show_default=True, type=click.FloatRange(min=0.1), help="For each cost.")
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(min=0), help="Of the check; 0 for none.")
@click.option(
    "--steps", default=3_000, show_default=True, type=click.IntRange(min=1_200), help="Of each of its workers."
)
@click.option("--gigabits", "speeds", multiple=True, default=(1.0, 10.0, 25.0), show_default=True)
@click.option("--server-cores", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--round-trip", default=0.1, show_default=True, type=click.FloatRange(min=0), help="Milliseconds.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw them here, PNG or SVG.")
@click.option("--network", hidden=True)
def main(
    seconds: float,
    rounds: int,
    steps: int,
    speeds: tuple[float, ...],
    server_cores: int,
    round_trip: float,
    path: Path | None,
    picture: Path | None,
    network: str | None,
) -> None:
    """Measure costs, predict, check the predictions that can be checked here."""
    if network:
        print(json.dumps(measure(network, seconds)))
        return

    def say(what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)

    made: list[Figures] = []
    for name in (NATURE, *DENSE):
        say(f"costs of network {name}")
        made.append(in_a_process(__file__, "--seconds", str(seconds), "--network", name))
    nature, *others = made
    costs = {accumulate: costs_of(accumulate, nature, others) for accumulate in ACCUMULATE}
    loads = {
        servers: [queueing.Load(*load) for load in each] for servers, each in zip(SERVERS, nature["loads"], strict=True)
    }
    document: Figures = {
        "processor": machine.describe()._asdict(),
        "versions": {name: importlib.metadata.version(name) for name in VERSIONED},
        "seconds": seconds,
        "server_cores": server_cores,
        "round_trip_milliseconds": round_trip,
        "nature": nature,
        "others": others,
        "loads": loads,
        "costs": {k: {**cost._asdict(), "processor": cost.processor._asdict()} for k, cost in costs.items()},
        "predictions": [
            {
                "accumulate": accumulate,
                "gigabits": gigabits,
                "servers": servers,
                **elsewhere(costs[accumulate], loads[servers], gigabits, server_cores, round_trip / 1000),
            }
            for accumulate in ACCUMULATE
            for gigabits in speeds
            for servers in SERVERS
        ],
        "check": [
            {
                "accumulate": accumulate,
                "workers": workers,
                "servers": servers,
                "predicted": here(costs[accumulate], loads[servers], workers, machine.describe().cores),
                "measured": [],
            }
            for accumulate, workers, servers in (CHECKED if rounds else ())
        ],
    }
    rate = importlib.import_module("async").rate  # a word of the language, which `import` does not take
    for turn in range(rounds):
        for row in document["check"]:
            say(
                f"check {turn + 1} of {rounds}: {row['workers']} workers, {row['servers']} servers, "
                f"{row['accumulate']} minibatches a message"
            )
            row["measured"].append(rate(row["workers"], row["accumulate"], row["servers"], steps * row["workers"]))
    show(document, Console(width=160, highlight=False))
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if picture:
        draw(document, picture)


if __name__ == "__main__":
    main()
