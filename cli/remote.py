"""`twin-graph push` and `twin-graph pull`, and what `train` and `resume` share with them. None imports TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twin_graph.base.here import absolute
from twin_graph.base.text import command, counted, size
from twin_graph.errors import DamagedError, UsageError
from twin_graph.records.verify import verify
from twin_graph.remote import card, fetching, heads, owners, reading
from twin_graph.remote.background import Background
from twin_graph.remote.heads import Head, TakenOverError
from twin_graph.remote.places import Place
from twin_graph.remote.sending import Sender, check_writable
from twin_graph.remote.urls import place_at
from twin_graph.snapshots.files import scratch_folder
from twin_graph.snapshots.ledger import utc_now
from twin_graph.snapshots.run import DESCRIPTION, RUNS, Run, check_new_folder, find

from .display import Meter
from .params import PATH, json_option, print_json, run_argument, say, stdout

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings
    from twin_graph.remote.league import League

url_argument = click.argument("url")

#: How long the end of a training waits for what is still to be sent: of one that was stopped, whose machine may be
#: about to go, and of one that is complete.
_STOPPED_SECONDS, _DONE_SECONDS = 20.0, 600.0


@click.command()
@run_argument
@url_argument
@click.option(
    "--take-over", is_flag=True, help="Replace the state of another copy of RUN, which is then no longer continued."
)
@json_option
def push(run: str, url: str, take_over: bool, as_json: bool) -> None:
    """Send RUN to URL: file:///FOLDER, s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, or hf://USER/NAME to publish it.

    Sends what is missing there, and then the list of what the run consists of: whoever pulls sees a whole state, also
    where a push was killed. RUN may be training meanwhile. Credentials are found where the storage's own tools look. On
    the Hugging Face hub, the run gets a card with score and film.

    \b
    Examples:
      twin-graph push pong-seed1-1 s3://our-bucket/pong
      twin-graph push pong-seed1-1 hf://our-lab/pong
    """
    found, place = find(run), place_at(url)
    owner = owners.claimed(found, place.url)
    sender = Sender(found, place, owner.owner)
    sender.begin(take_over=take_over)
    before = sender.head
    if place.is_only_for_publishing:
        add_card(found, place)
    with Meter() as meter:
        head = sender.send(lambda done, total: meter.show("MB sent", done // 10**6, total // 10**6))
    owners.keep(found, owner.of(head))
    is_new = head != before
    if as_json:
        print_json({"url": place.url, "state": head.number, "new": is_new, "bytes": head.bytes})
        return
    what = f"{counted(len(head.files), 'file')}, {size(head.bytes)}"
    say(f"{place.url}: state {head.number}, {what}{'' if is_new else ': nothing was new'}")
    say(f"elsewhere: {command('pull' if place.is_only_for_publishing else 'resume', place.url)}")


def add_card(run: Run, place: Place) -> None:
    """Writes what people see of a published run: a card, and a film if there is one."""
    found = card.played(run)
    film = card.film_of(run, found["snapshot"] if found else "")
    if film:
        place.write(card.FILM, film.read_bytes())
    else:
        say(f"without a film: `{command('record', run.folder, 'best')}` makes one")
    if not found or found["scheduled"]:
        say(f"without a score of its own: `{command('evaluate', run.folder, 'best')}` measures one")
    place.write(card.CARD, card.card(run, place.url, film=film is not None).encode())


@click.command()
@url_argument
@click.option("--run-dir", type=PATH, help="Folder of the run, which must not exist yet.  [default: checkpoints/NAME]")
@click.option("--records-only", is_flag=True, help="Leave out weights, replay, films and TensorBoard's events.")
@click.option("--snapshots", metavar="REF,...", help="Of the weights, fetch only those of these snapshots.")
@json_option
def pull(url: str, run_dir: Path | None, records_only: bool, snapshots: str | None, as_json: bool) -> None:
    """Fetch the newest state of the run at URL into a new folder.

    Every byte is compared with what was sent. Without resume points, as --records-only and --snapshots leave it, the
    run can be looked at and its snapshots evaluated, but not be continued.

    \b
    Examples:
      twin-graph pull s3://our-bucket/pong
      twin-graph pull s3://our-bucket/pong --snapshots best,latest --run-dir checkpoints/theirs
    """
    references = [one.strip() for one in (snapshots or "").split(",")]
    if records_only and snapshots is not None:
        raise UsageError("--records-only has no weights: leave it out, or --snapshots")
    if snapshots is not None and "" in references:
        raise UsageError(f"--snapshots {snapshots!r}: name snapshots, with commas between them, as in best,latest")
    place = place_at(url)
    head = fetching.newest(place)
    folder = run_dir or RUNS / head.name
    check_new_folder(absolute(folder), "choose another --run-dir")
    wanted: fetching.Wanted = fetching.is_record if records_only else fetching.everything
    if snapshots is not None:
        wanted = fetching.of_snapshots(_named(place, head, folder, references))
    found = fetch(place, head, folder, wanted)
    if as_json:
        print_json({"run": str(found.folder), "state": head.number, "agent_steps": head.agent_steps})
        return
    say(f"{found.folder}: state {head.number} of {place.url}, at {head.agent_steps:,} agent steps")


def place_to_train_with(url: str) -> Place:
    """Raises `UsageError` if nothing can be trained with it."""
    place = place_at(url)
    if place.is_only_for_publishing:
        raise UsageError(f"{url} keeps all that is ever sent, so it is for `push` and `pull` only; train with a bucket")
    return place


def check_empty(url: str) -> None:
    """Raises `UsageError` if there is a run at a URL, OSError if it cannot be reached or written."""
    place = place_to_train_with(url)
    if head := heads.newest(place):
        raise UsageError(
            f"{url} holds a run already, {head.name} at {head.agent_steps:,} agent steps: `{command('resume', url)}` "
            "continues it, or choose another --remote"
        )
    check_writable(place)


def remote_of(run: Run, url: str | None, *, stops: bool) -> str | None:
    """Where a run here is sent while it trains: to the URL that is given, or to where it was sent before."""
    if stops:
        owners.train_without(run)
        return None
    known = owners.trains_with(run)
    if not url and not known and owners.is_copy(run):
        say(
            f"{run.folder} was copied from a run that is sent to a remote; this copy is sent nowhere, unless you give "
            "--remote URL (with --take-over where the other one is)"
        )
    return url or (known.url if known else None)


def background(run: Run, url: str, *, take_over: bool = False) -> Background:
    """What sends a run while it trains. That the place cannot be reached is told, and tried again later.

    Raises:
      UsageError: there is another run, or another copy of it.
    """
    place = place_to_train_with(url)
    owner = owners.claimed(run, place.url)
    sends = Background(run, place, owner, take_over=take_over)
    try:
        sends.begin()
    except (OSError, DamagedError) as error:
        say(f"{place.url} cannot be used ({error}); training goes on, and sends later")
    else:
        say(f"each resume point is sent to {place.url}; elsewhere, continue with: {command('resume', place.url)}")
    owners.keep(run, owner, to_train=True)
    return sends


def check_opponents(settings: Settings, urls: Sequence[str]) -> None:
    """Raises `UsageError` if snapshots of other runs could be no opponents under these settings."""
    from twin_graph.targets import policies

    roles = policies.roles(settings)
    if "opponent" not in roles:
        raise UsageError(f"--opponent {urls[0]}: {settings.env.id} has one player")
    if settings.workers.count:
        raise UsageError("--opponent is for runs without workers")
    if roles["opponent"].function in policies.POLICIES.values() and roles["opponent"].function is not policies.league:
        raise UsageError(
            f"opponent.policy={roles['opponent'].text} never chooses what --opponent fetches: add "
            "--set opponent.policy='league(0.5)'"
        )


def league(run: Run, settings: Settings, urls: Sequence[str]) -> League | None:
    """What fetches opponents from other runs while a run trains: those named now, or before; None without any.

    Raises:
      UsageError: one that is named now plays another game.
    """
    from twin_graph.remote.league import League
    from twin_graph.targets import policies

    opponent = policies.roles(settings).get("opponent")
    is_league = opponent is not None and opponent.function is policies.league
    named = urls or owners.opponents(run)
    if not named:
        if is_league and (there := run.store().league(sys.maxsize)):
            others = " ".join(f"--opponent {snapshot.arrived_from}" for snapshot in there)
            say(f"nothing new of other runs is fetched; what has arrived is played. To fetch: {others}")
        elif is_league:
            say("opponent.policy=league has only own snapshots to choose from: name other runs by --opponent")
        return None
    found = League(run, [place_at(url) for url in dict.fromkeys(named)])
    try:
        check_opponents(settings, named)
        for empty in found.check():
            say(f"there is no run at {empty} yet; it is looked at again while this one trains")
    except UsageError as error:
        if urls:
            raise
        say(f"no opponents are fetched: {error}. --no-opponents forgets them")
        return None
    except (OSError, DamagedError) as error:
        say(f"not all opponents can be reached ({error}); training goes on, and tries again")
    owners.keep_opponents(run, found.urls)
    say(f"opponents come from {', '.join(found.urls)}")
    return found


def send_the_rest(run: Run, sends: Background, *, interrupted: bool) -> None:
    """Waits until all is sent, but not forever. Raises `TakenOverError` if another machine has continued the run."""
    seconds = _STOPPED_SECONDS if interrupted else _DONE_SECONDS
    if not sends.all_sent:
        say(f"sending what is left to {sends.url}, for {seconds:.0f} s at most")
    all_sent = sends.close(seconds)
    if sends.taken_over:
        raise TakenOverError(f"{sends.taken_over}. This one, {run.folder}, has stopped with a resume point")
    if not all_sent:
        why = f" ({sends.trouble})" if sends.trouble else ""
        say(f"not all was sent{why}; send the rest with: {command('push', run.folder, sends.url)}")


def continued_here(url: str, run_dir: Path | None) -> Run:
    """Fetches the run at a URL, unless it is here already; `taken_over` takes it over when all else is clear."""
    place = place_to_train_with(url)
    head = fetching.newest(place)
    folder = absolute(run_dir or RUNS / head.name)
    if (folder / DESCRIPTION).exists():
        found = Run(folder)
        here = owners.of(found, place.url)
        if here.owner == head.owner or here.state == head.number:
            return found
    mine = command("resume", folder, "--remote", url, "--take-over")
    check_new_folder(folder, f"choose another --run-dir; if it is that run, `{mine}` continues this copy")
    run = fetch(place, head, folder)
    owners.keep(run, owners.of(run, place.url).of(head), to_train=True)
    return run


def taken_over(run: Run, url: str) -> Run:
    """Takes over the run that `continued_here` found; where it has been continued since, its new state is fetched.

    Whoever had it finds that at the next state to be sent, and stops. So it comes once all that is cheap to check is.
    """
    place = place_at(url)
    owner, head = owners.of(run, place.url), fetching.newest(place)
    while head.owner != owner.owner:
        mine = head.model_copy(update={"number": head.number + 1, "owner": owner.owner, "time": utc_now()})
        here = run.points().newest()
        if (head := heads.claim(place, mine)) == mine and (not here or here.counters.agent_steps < head.agent_steps):
            run = fetch(place, head, run.folder, replaces=True)  # it was fetched a moment ago, and is behind
    owners.keep(run, owner.of(head), to_train=True)
    return run


def fetch(
    place: Place,
    head: Head,
    folder: Path,
    wanted: fetching.Wanted = fetching.everything,
    *,
    replaces: bool = False,
) -> Run:
    """Pulls, or replaces an older copy, and shows how far it is."""
    total = sum(file.bytes for file in head.files if wanted(file))
    with Meter() as meter:

        def tell(done: int) -> None:
            meter.show("MB fetched", done // 10**6, total // 10**6)

        if replaces:
            return fetching.replace(place, head, folder, tell=tell)
        return fetching.pull(place, head, folder, wanted=wanted, tell=tell)


def _named(place: Place, head: Head, folder: Path, references: list[str]) -> set[str]:
    """The ids that references mean in a remote's run."""
    with scratch_folder(absolute(folder)) as scratch:
        records = fetching.pull(place, head, scratch, wanted=fetching.is_record)
        return {records.resolve(reference).id for reference in references}


def verify_remote(url: str, *, read: bool, as_json: bool) -> None:
    """Checks what is at a URL; with `read`, every byte of it. Raises `DamagedError` for the first that is wrong."""
    place = place_at(url)
    head = fetching.newest(place)
    if damage := reading.damage_of(place, head):
        for line in damage:
            say(f"damaged: {line}")
        raise DamagedError(f"{url}: {len(damage):,} damaged of {len(head.pieces):,} objects")
    wanted = fetching.everything if read else fetching.is_record
    if read:
        say(f"{size(sum(head.pieces.values()))} are fetched, and {size(head.bytes)} of disk needed meanwhile")
    with scratch_folder(absolute(RUNS)) as scratch:
        run = fetch(place, head, scratch, wanted)
        if read and (damage := verify(run).damage):
            raise DamagedError(f"{url}: {damage[0]}".replace(str(scratch), url))
        if not read:
            _ = run.ledger.events(), list(run.evaluation_lines())
    if as_json:
        print_json({"url": url, "state": head.number, "objects": len(head.pieces), "bytes": head.bytes, "read": read})
        return
    what = "every byte as it was sent" if read else "records as they were sent, and all else there (--read reads it)"
    stdout.print(f"state {head.number}, {counted(len(head.pieces), 'object')}: {what}")
