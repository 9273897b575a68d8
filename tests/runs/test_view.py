"""`twin-graph view`: the server as a process, real runs, and a real browser."""

import contextlib
import errno
import http.client
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from commands import Command, twin_graph
from starlette.responses import PlainTextResponse

from twin_graph import config, notebook
from twin_graph.errors import DamagedError, UsageError
from twin_graph.records import report
from twin_graph.snapshots.files import checked, read_lines
from twin_graph.snapshots.ledger import End, Restore, utc_now
from twin_graph.snapshots.lines import record_metrics
from twin_graph.snapshots.run import Run, create, folders_of_runs
from twin_graph.view import connections
from twin_graph.view import library as library_module
from twin_graph.view.library import Library
from twin_graph.view.records import Records, rounded
from twin_graph.view.server import Guard

TINY = [
    "--set=train.start_steps=200",
    "--set=train.every_steps=4",
    "--set=model.hidden_units=[16]",
    "--set=train.batch_size=16",
    "--set=save.every_updates=25",
    "--set=target.refresh_every_updates=25",
    "--set=target.policy=mix(0.5, 4)",
    "--set=evaluate.every_steps=400",
    "--set=evaluate.episodes=3",
    "--set=log.every_steps=100",
    "--set=resume.every_steps=400",
    "--set=resume.keep=all",
    "--set=train.chunk_steps=0",
    "--set=twin.compiled=false",
]
#: What the page asks of `swap`, in all its words.
SWAP = {
    "reference": "latest",
    "into": "target",
    "learner": "",
    "hold": False,
    "undo": False,
    "dry_run": True,
    "yes": False,
}
HURT = "<img src=x onerror=hurt=1><script>hurt=1<"
HURT_REASON = "</td><script>window.hurt = 1</script>"
WIDTHS = (1280, 400)

needs_browser = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs Debian's packages chromium and chromium-driver",
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, its fork, two learners, and a run whose name and reasons are markup."""
    cwd = tmp_path_factory.mktemp("work")
    for arguments in (
        ["train", "cartpole", "--steps", "1200", *TINY],
        ["fork", "cartpole-seed1-1", "--at", "2", "--seed", "2", "--run-dir", "checkpoints/what-if"],
        ["resume", "checkpoints/what-if"],
        ["train", "cartpole", "--steps", "600", *TINY, "--set=mode=mutual", "--run-dir", "checkpoints/mutual"],
    ):
        done = twin_graph(*arguments, cwd=cwd)
        assert done.returncode == 0, done.stderr
    run = Run(shutil.copytree(run_folder(cwd), run_folder(cwd, HURT)))
    swap = run.ledger.events(Restore)[-1]
    run.ledger.append(swap.model_copy(update={"reason": HURT_REASON, "policy": HURT_REASON}))
    run.ledger.append(End(attempt=1, time=utc_now(), state="failed", reason=HURT_REASON))
    films = run_folder(cwd) / "videos"
    films.mkdir()
    (films / f"{Run(run_folder(cwd)).store().newest.id}.mp4").write_bytes(bytes(range(256)) * 4)
    return cwd


def run_folder(work: Path, name: str = "cartpole-seed1-1") -> Path:
    return work / "checkpoints" / name


class Server:
    """`twin-graph view` in a process."""

    def __init__(self, *arguments: str, cwd: Path, program: Sequence[str] = ("-m", "twin_graph_cli")) -> None:
        command = [sys.executable, *program, "view", "--no-browser", *arguments]
        self.process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.host = urlsplit(self.address).netloc
        self.token = urlsplit(self.address).path.strip("/")

    def ask(
        self, path: str, *, token: str | None = None, method: str = "GET", body: str | None = None, **headers: str
    ) -> http.client.HTTPResponse:
        """What it answers to a path, which goes on the wire as it is."""
        connection = http.client.HTTPConnection(self.host, timeout=10)
        inside = f"/{self.token if token is None else token}/{path}"
        connection.putrequest(method, inside, skip_host=True)
        named = {"Host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body is not None:
            named["Content-Length"] = str(len(body))
        for name, value in named.items():
            connection.putheader(name, value)
        connection.endheaders(body.encode() if body is not None else None)
        return connection.getresponse()

    def json(self, path: str) -> Any:
        return json.loads(self.ask(f"api/{path}").read())

    def number(self, name: str) -> int:
        """A run's number."""
        return next(run["index"] for run in self.json("runs")["runs"] if run["run"] == name)

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(10) == 0


@contextlib.contextmanager
def serving(*arguments: str, cwd: Path, program: Sequence[str] = ("-m", "twin_graph_cli")) -> Iterator[Server]:
    server = Server(*arguments, cwd=cwd, program=program)
    try:
        yield server
    finally:
        server.end()


@pytest.fixture(scope="module")
def server(work: Path) -> Iterator[Server]:
    with serving(cwd=work) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))) as browser:
        yield browser


def look(browser: Any, address: str, *, width: int = 1280, scheme: str = "light") -> None:
    """Opens a page anew."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(address)


def wait(browser: Any, expression: str, seconds: float = 20) -> Any:
    """What a JavaScript expression says as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (found := browser.execute_script(f"return {expression}")):
        assert time.monotonic() < deadline, f"{expression}: {browser.execute_script('return document.body.innerText')}"
        time.sleep(0.05)
    return found


def asked(browser: Any) -> list[str]:
    """Every address that the page has asked for; icons of the browser's own controls are none."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    addresses = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [address for address in addresses if not address.startswith("data:")]


READY = {
    "": "document.querySelectorAll('.runs .spark').length >= 4",
    "run": (
        "document.querySelectorAll(':is(#learning, #targets, #twins, #time, #evaluations) canvas').length >= 9"
        " && document.querySelectorAll('.ledger tbody tr').length > 0"
    ),
    "compare": (
        "document.querySelectorAll('.panel canvas').length == 7 && document.querySelectorAll('.panel code').length > 0"
    ),
}


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_fits_its_window_without_a_complaint(server: Server, browser: Any, width: int, scheme: str) -> None:
    names = ("cartpole-seed1-1", "mutual", "what-if")
    first, mutual, fork = (server.number(name) for name in names)
    grounds = set()
    for kind, place in (
        ("", ""),
        ("run", f"#/run/{first}"),
        ("run", f"#/run/{mutual}"),
        ("compare", f"#/compare/{first},{fork}"),
    ):
        look(browser, server.address + place, width=width, scheme=scheme)
        wait(browser, READY[kind])
        # Not beside innerWidth, which grows with the page where a narrow window is a telephone's.
        widest = browser.execute_script("return document.documentElement.scrollWidth")
        cut = browser.execute_script(
            "return [...document.querySelectorAll('.panel, .panel *')].map(e => [e.ariaLabel, e.scrollWidth,"
            " e.clientWidth, getComputedStyle(e).overflowX]).filter(([, all, seen, x]) => x === 'auto' && all > seen)"
        )
        small = browser.execute_script(
            "return [...document.querySelectorAll('main *')].filter(e => e.textContent && e.getClientRects().length"
            " && parseFloat(getComputedStyle(e).fontSize) < 12).map(e => e.outerHTML.slice(0, 80))"
        )
        unnamed = browser.execute_script(
            "return [...document.querySelectorAll('button, input, select, a')].filter(e => e.getClientRects().length &&"
            " !(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.querySelector('[aria-label]'))).length"
        )
        grounds.add(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
        assert widest <= width, place
        assert cut == [], place
        assert small == [], place
        assert unnamed == 0, place
        assert browser.get_log("browser") == [], place
        assert all(address.startswith(server.address) for address in asked(browser)), place
    [ground] = grounds
    brightness = sum(map(int, re.findall(r"\d+", ground)[:3]))
    assert brightness > 600 if scheme == "light" else brightness < 150


@needs_browser
def test_every_one_of_many_runs_has_a_line_of_its_own_look(work: Path, tmp_path: Path, browser: Any) -> None:
    for number in range(10):
        shutil.copytree(run_folder(work, "mutual"), tmp_path / "checkpoints" / f"run-{number}")
    with serving(cwd=tmp_path) as server:
        look(browser, f"{server.address}#/compare/{','.join(map(str, range(10)))}")
        keys = "[...(document.querySelector('.panel .legend')?.querySelectorAll('.swatch') ?? [])]"
        wait(browser, f"{keys}.length === 20")  # of two learners each
        looks = "map(swatch => getComputedStyle(swatch).backgroundColor + getComputedStyle(swatch).backgroundImage)"
        assert len(set(browser.execute_script(f"return {keys}.{looks}"))) == 20
        rows = browser.execute_script(f"return [...document.querySelectorAll('td .swatch')].{looks}")
        assert len(set(rows)) == len(rows) == 10


@needs_browser
def test_a_person_without_a_mouse_reaches_every_view(server: Server, browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    look(browser, server.address)
    wait(browser, READY[""])
    reached = []
    for _ in range(40):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(browser.execute_script("return document.activeElement.textContent"))
        if reached[-1] == "cartpole-seed1-1":
            break
    assert reached[-1] == "cartpole-seed1-1"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait(browser, READY["run"])
    field = browser.find_element("id", "explain-update")
    field.send_keys("100", Keys.ENTER)
    served = wait(browser, "document.querySelector('.why button')?.textContent")
    assert f"Update 100 was bootstrapped from {served}" in browser.find_element("css selector", ".why").text
    browser.find_element("css selector", ".why button").send_keys(Keys.ENTER)
    wait(browser, "document.querySelector('dialog[open] dl')")
    assert served in browser.find_element("id", "dialog").text
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait(browser, "!document.querySelector('dialog[open]')")


@needs_browser
def test_an_answer_goes_with_its_question(server: Server, browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    look(browser, f"{server.address}#/run/{server.number('cartpole-seed1-1')}")
    wait(browser, READY["run"])
    field = browser.find_element("id", "explain-update")

    def ask(text: str) -> None:
        browser.execute_script("arguments[0].value = ''", field)
        field.send_keys(text, Keys.ENTER)

    for refused, words in (("0", "1"), ("1.5", "value"), ("", "fill"), ("1000000", "250")):
        ask("100")
        wait(browser, "document.querySelector('.why').textContent.startsWith('Update 100 was')")
        ask(refused)
        told = wait(browser, "document.querySelector('.why .bad')?.textContent")
        assert words in told
        assert "Update 100" not in browser.find_element("css selector", ".why").text
    field.send_keys("1")
    wait(browser, "document.querySelector('.why').textContent == ''")


@needs_browser
def test_the_picture_says_under_the_cursor_and_at_a_click_which_snapshot_served(server: Server, browser: Any) -> None:
    from selenium.webdriver import ActionChains

    number = server.number("cartpole-seed1-1")
    look(browser, f"{server.address}#/run/{number}")
    wait(browser, READY["run"])
    over = browser.find_element("css selector", "#targets .u-over")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", over)
    ActionChains(browser).move_to_element_with_offset(over, 40, 0).click().perform()
    told = wait(browser, "document.querySelector('#targets .at').textContent")
    update = int(re.findall(r"update ([\d,]+):", told)[0].replace(",", ""))
    explained = server.json(f"runs/{number}/explain?update={update}")
    [served] = explained["snapshots"]
    assert f"{served['id']}, {served['age_updates']} update" in told
    why = wait(browser, "document.querySelector('.why').textContent")
    assert f"Update {update} was bootstrapped from {served['id']}" in why
    assert explained["reason"] in why
    ages = wait(browser, "[...document.querySelectorAll('#targets .at')].map(e => e.textContent)")
    assert ages[1:] == [
        f"{served['age_updates']} updates at update {update}",
        f"{served['depth_agent_steps']:g} agent steps at update {update}",
    ]


@needs_browser
def test_who_zooms_out_again_sees_what_was_there_before(server: Server, browser: Any) -> None:
    from selenium.webdriver import ActionChains

    look(browser, f"{server.address}#/run/{server.number('cartpole-seed1-1')}")
    wait(browser, "document.querySelector('#targets canvas')")
    over = browser.find_element("css selector", "#targets .u-over")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", over)
    picture = "document.querySelector('#targets canvas').toDataURL()"
    away = ActionChains(browser).move_by_offset(0, -400)
    before = browser.execute_script(f"return {picture}")
    ActionChains(browser).move_to_element(over).click_and_hold().move_by_offset(60, 0).release().perform()
    zoomed = wait(browser, f"{picture} !== {json.dumps(before)} && {picture}")
    ActionChains(browser).move_to_element(over).click_and_hold().move_by_offset(60, 0).release().perform()
    wait(browser, f"{picture} !== {json.dumps(zoomed)}")
    ActionChains(browser).double_click(over).perform()
    away.perform()
    assert wait(browser, f"{picture} === {json.dumps(before)}")


@needs_browser
def test_a_run_says_nothing_of_steps_that_it_does_not_have(server: Server, browser: Any) -> None:
    """One run has 1,200 agent steps, the other 600."""
    from selenium.webdriver import ActionChains

    numbers = [server.number(name) for name in ("cartpole-seed1-1", "mutual")]
    look(browser, f"{server.address}#/compare/{','.join(map(str, numbers))}")
    keys = "[...(document.querySelector('.panel .legend')?.querySelectorAll('button') ?? [])]"
    wait(browser, f"{keys}.length === 3")
    over = browser.find_element("css selector", ".panel .u-over")
    told = f"{keys}.map(key => key.querySelector('b').textContent)"
    width = over.size["width"]
    for side, has in ((-0.45, [True, True, True]), (0.45, [True, False, False])):
        ActionChains(browser).move_to_element_with_offset(over, int(side * width), 0).perform()
        wait(browser, f"{told}[0]")
        assert [bool(text) for text in browser.execute_script(f"return {told}")] == has


@needs_browser
def test_axes_hold_what_is_below_zero_and_name_what_is_small(server: Server, browser: Any) -> None:
    look(browser, f"{server.address}#/")
    found = browser.execute_async_script(
        """
        const [base, done] = arguments;
        Promise.all([import(`${base}charts.js`), import(`${base}dom.js`)]).then(([charts, dom]) =>
          done([
            [[-21, -3], [-21, 19], [0.5, 2], [0, 0]].map(([low, high]) => charts.fromZero(null, low, high)),
            [0.002, 0.0123, 0.25, 0, 1500, -0.5].map(dom.brief),
          ]));
        """,
        server.address,
    )
    (low, both, high, nothing), labels = found
    assert low[0] < -21
    assert low[1] == 0
    assert both[0] < -21
    assert both[1] > 19
    assert high[0] == 0
    assert high[1] > 2
    assert nothing == [0, 1]
    assert labels == ["0.002", "0.0123", "0.25", "0", "1.5K", "-0.5"]


@needs_browser
def test_a_zoomed_plot_holds_the_lines_that_cross_it_and_tells_its_ticks_apart(server: Server, browser: Any) -> None:
    look(browser, f"{server.address}#/")
    within, beside, ticks = browser.execute_async_script(
        """
        const [base, done] = arguments;
        import(`${base}charts.js`).then(({ seen, labels }) => {
          const column = (values, line) => [
            { series: [{ idxs: [1, 3] }, { show: true }], data: [[0, 10, 20, 30, 40], values] },
            [{ line }], null, null];
          done([
            seen(...column([1, null, null, undefined, 9])),
            seen(...column([1, null, null, undefined, 9], false)),
            [labels([5e6, 5.002e6, 5.004e6]), labels([0, 1000, 2000])],
          ]);
        });
        """,
        server.address,
    )
    assert within == [1, 9]
    assert beside == [None, None]  # dots alone: there is no line
    assert ticks == [["5,000,000", "5,002,000", "5,004,000"], ["0", "1K", "2K"]]


def test_the_fork_that_is_proposed_has_another_seed(tmp_path: Path) -> None:
    for seed, other in ((1, 2), (2, 1)):
        run = create(tmp_path / str(seed), config.load("cartpole", [("seed", seed)]))
        assert Records(run).about()["fork"].endswith(f"--seed {other}")


def test_damaged_metrics_hide_neither_the_run_nor_its_scores(work: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run_folder(work), tmp_path / "one"))
    metrics = folder / "metrics.jsonl"
    metrics.write_bytes(b"no record\n" + metrics.read_bytes())
    evaluations = folder / "evaluations.jsonl"
    evaluations.write_bytes(evaluations.read_bytes().splitlines(keepends=True)[0])
    _, [one] = Library([], tmp_path).changes(-1)
    assert (one["state"], len(one["spark"]) > 1) == ("finished", True)  # of returns in training
    curves = Records(Run(folder)).curves()
    assert len(curves["scores"]) == 1
    assert "metrics.jsonl is damaged: line 1" in curves["damage"]
    assert curves["metrics"]["agent_steps"] == Records(Run(run_folder(work))).curves()["metrics"]["agent_steps"]


@needs_browser
def test_what_a_person_opened_or_hid_stays_so_while_runs_change(work: Path, tmp_path: Path, browser: Any) -> None:
    folders = [Path(shutil.copytree(run_folder(work), tmp_path / "checkpoints" / name)) for name in "ab"]
    evaluations = folders[0] / "evaluations.jsonl"
    lines = evaluations.read_bytes()
    evaluations.unlink()
    key = "[...document.querySelectorAll('.panel .legend button')].find(key => key.textContent.startsWith('{}'))"
    pressed = f"{key}?.getAttribute('aria-pressed')"
    with serving(cwd=tmp_path) as server:
        numbers = [server.number(name) for name in "ab"]
        look(browser, f"{server.address}#/compare/{','.join(map(str, numbers))}")
        wait(browser, key.format("b"))
        browser.execute_script(f"{key.format('b')}.click()")
        evaluations.write_bytes(lines)
        wait(browser, f"{pressed.format('a')} == 'true'")
        assert browser.execute_script(f"return {pressed.format('b')}") == "false"

        look(browser, f"{server.address}#/run/{numbers[0]}")
        row = "document.querySelectorAll('.evaluations tbody tr')"
        wait(browser, f"{row}.length")
        browser.execute_script(f"{row}[0].querySelector('[aria-expanded]').click()")
        assert wait(browser, f"!{row}[1].hidden")
        shown = browser.execute_script(f"return {row}.length")
        browser.execute_script("document.querySelector('.facts button').focus()")
        assert twin_graph("evaluate", str(folders[0]), "--episodes", "2", cwd=tmp_path).returncode == 0
        wait(browser, f"{row}.length > {shown}")
        hidden = browser.execute_script(f"return [...{row}].filter((_, i) => i % 2).map(row => row.hidden)")
        assert hidden[:3] == [True, False, True]
        assert browser.execute_script("return document.activeElement.matches('.facts button')")

        lines = evaluations.read_bytes()
        evaluations.unlink()  # as if the run began again
        wait(browser, "document.querySelector('#evaluations .note:not([hidden])')")
        evaluations.write_bytes(lines)
        wait(browser, "document.querySelector('#evaluations canvas')")

        ledger = (folders[0] / "ledger.jsonl").read_bytes()
        (folders[0] / "ledger.jsonl").write_bytes(ledger + b"no record\n")
        wait(browser, "document.querySelector('.lead').textContent.includes('ledger.jsonl is damaged: line ')")
        (folders[0] / "ledger.jsonl").write_bytes(ledger)
        wait(browser, "document.querySelector('.facts dd')")
        assert "is damaged" not in browser.find_element("css selector", ".lead").text

        (folders[0] / "metrics.jsonl").write_bytes(b"no record\n" + (folders[0] / "metrics.jsonl").read_bytes())
        look(browser, f"{server.address}#/compare/{','.join(map(str, numbers))}")
        wait(browser, key.format("b"))
        assert "a: " in browser.find_element("css selector", ".panel .note:not([hidden])").text


@needs_browser
def test_what_a_run_says_is_text_and_nothing_else(server: Server, browser: Any) -> None:
    look(browser, server.address)
    wait(browser, READY[""])
    assert HURT in browser.find_element("css selector", ".runs").text
    look(browser, f"{server.address}#/run/{server.number(HURT)}")
    wait(browser, READY["run"])
    assert browser.find_element("tag name", "h1").text == HURT
    assert HURT_REASON in browser.find_element("css selector", ".lead").text
    assert HURT_REASON in browser.find_element("css selector", ".ledger").text
    look(browser, f"{server.address}#/compare/{server.number(HURT)},{server.number('what-if')}")
    wait(browser, READY["compare"])
    assert HURT in browser.find_element("tag name", "main").text
    assert browser.execute_script("return window.hurt") is None
    assert browser.get_log("browser") == []


def test_only_who_knows_the_token_and_asks_this_machine_is_answered(server: Server) -> None:
    for path in ("", "api/runs", "app.js", "uplot/uPlot.esm.js"):
        assert server.ask(path).status == 200
        for token in ("", "wrong", server.token[:-1], f"{server.token}x", "%00", "%ff"):
            assert server.ask(path, token=token).status == 403
        port = server.host.partition(":")[2]
        assert server.ask(path, Host=f"localhost:{port}").status == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port}.evil.example", ""):
            assert server.ask(path, Host=host).status == 403
        for origin in ("http://evil.example", "null", f"https://{server.host}"):
            assert server.ask(path, Origin=origin).status == 403
    headers = server.ask("", Origin=f"http://{server.host}").headers
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert server.token not in server.ask("", token="wrong").read().decode()


def test_who_is_refused_learns_why_and_what_to_do(server: Server) -> None:
    def refused(path: str = "", **asked: Any) -> str:
        answer = server.ask(path, **asked)
        assert answer.status == 403
        return answer.read().decode()

    port = server.host.partition(":")[2]
    told = refused(Host="lab.example:8443")
    assert f"answers to the host 127.0.0.1:{port} or localhost:{port}, and was asked for as lab.example:8443" in told
    assert "twin-graph view --host lab.example:8443" in told
    assert "--host" not in refused(Host="$(reboot).example")
    assert "the whole address that `twin-graph view` printed" in refused(token="wrong", Host="lab.example")
    assert "https://evil.example" in refused(Origin="https://evil.example")


def test_a_name_that_a_person_allows_is_answered_to_and_no_other(work: Path) -> None:
    with serving("--host", "Lab.example:8443", "--host", "lab.example", cwd=work) as server:
        for host in ("lab.example:8443", "lab.example", server.host):
            assert server.ask("api/runs", Host=host).status == 200
        for host in ("lab.example:80", "evil.example", "lab.example.evil"):
            assert server.ask("api/runs", Host=host).status == 403
        for scheme in ("http", "https"):  # of a proxy that has the certificate
            origin = f"{scheme}://lab.example:8443"
            assert server.ask("api/runs", Host="lab.example:8443", Origin=origin).status == 200
        assert server.ask("api/runs", Origin=f"https://{server.host}").status == 403
        assert server.ask("api/runs", token="wrong", Host="lab.example").status == 403
    done = twin_graph("view", "--no-browser", "--host", "https://lab.example/", cwd=work)
    assert done.returncode == 2
    assert done.stderr == "Error: --host https://lab.example/: write it as NAME or NAME:PORT, as in lab.example:8443\n"


def test_it_listens_to_this_machine_alone(server: Server) -> None:
    listening = [c for c in psutil.Process(server.process.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}


def test_no_path_leads_out_of_the_runs(server: Server, work: Path) -> None:
    number, films = server.number("cartpole-seed1-1"), run_folder(work) / "videos"
    (film,) = films.iterdir()
    assert server.ask(f"api/runs/{number}/films/{film.stem}").read() == film.read_bytes()
    assert server.ask(f"api/runs/{number}/films/{film.stem}", Range="bytes=2-3").read() == b"\x02\x03"
    secret = work / "secret.mp4"
    secret.write_text("secret")
    other = Run(run_folder(work)).store().snapshots[0].id
    with contextlib.ExitStack() as undo:
        for link in (films / f"{other}.mp4", films / "secret.mp4"):
            link.symlink_to(secret)
            undo.callback(link.unlink)
        for path in (
            f"api/runs/{number}/films/{other}",
            f"api/runs/{number}/films/secret",
            f"api/runs/{number}/films/..%2f..%2f..%2f..%2fsecret",
            f"api/runs/{number}/films/../../../../secret",
            f"api/runs/{number}/snapshots/..%2f..%2f..%2fsecret",
            "api/runs/-1/about",
            "api/runs/999/about",
            "api/runs/../../secret.mp4",
            "../secret.mp4",
            "..%2f..%2f..%2fpyproject.toml",
            "%2e%2e/server.py",
            "//etc/passwd",
            "uplot/../../server.py",
        ):
            answer = server.ask(path)
            assert answer.status in (400, 403, 404), path
            assert b"secret\n" not in answer.read()


def test_it_changes_nothing_unless_it_may(server: Server, work: Path) -> None:
    def everything() -> dict[str, tuple[int, int]]:
        paths = [path for path in (work / "checkpoints").rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}

    before, number = everything(), server.number("cartpole-seed1-1")
    body = json.dumps({**SWAP, "dry_run": False})
    assert (
        server.ask(f"api/runs/{number}/swap", method="POST", body=body, Content_Type="application/json").status == 405
    )
    for what in ("about", "curves", "timeline", "episodes", "evaluations", "ledger", "explain?update=50"):
        assert server.ask(f"api/runs/{number}/{what}").status == 200
        assert server.ask(f"api/runs/{number}/{what}", method="POST", body=body).status == 405
    assert everything() == before


def test_wrong_questions_are_answered_in_one_line(server: Server) -> None:
    number = server.number("cartpole-seed1-1")
    for path, words in (
        (f"runs/{number}/explain?update=1000000", "the records hold updates 1 to"),
        (f"runs/{number}/explain?update=x", "update must be a whole number"),
        (f"runs/{number}/snapshots/nothing", "no snapshot 'nothing'"),
        (f"runs/{number}/snapshots/latest~{'9' * 5000}", "no snapshot 'latest~999"),
        (f"runs/{number}/snapshots/{'9' * 5000}", "no snapshot '999"),
        (f"runs/{number}/ledger?count=-1", "count must be a whole number"),
        ("differences?runs=", "runs must be a whole number"),
        ("events?since=", "since must be a whole number"),
    ):
        answer = server.ask(f"api/{path}")
        assert answer.status == 400, path
        assert words in json.loads(answer.read())["error"]


def test_scores_are_shown_with_all_their_digits() -> None:
    assert rounded({"mean": [12_345.678, 1_234_567.0, -98_765.4321]}) == {"mean": [12_345.68, 1_234_567.0, -98_765.43]}
    assert rounded((0.123456789, 999.123456, float("nan"))) == [0.123457, 999.123, None]


def test_a_mean_of_snapshots_has_no_place_on_a_curve_over_agent_steps(work: Path, tmp_path: Path) -> None:
    run = Run(shutil.copytree(work / "checkpoints" / "cartpole-seed1-1", tmp_path / "run"))
    commits = run.store().available[-2:]
    command = ["average", str(run.folder), *(commit.id for commit in commits), "--json"]
    mean = json.loads(twin_graph(*command, cwd=tmp_path).stdout)["snapshot"]
    records = Records(Run(run.folder))
    curves, episodes = records.curves()["scores"], records.episodes()
    assert twin_graph("evaluate", str(run.folder), mean, "--episodes", "2", cwd=tmp_path).returncode == 0
    records = Records(Run(run.folder))
    assert (records.curves()["scores"], records.episodes()) == (curves, episodes)
    assert records.evaluations(0, 1)["rows"][0]["snapshot"] == mean
    row = notebook.NotebookRun(run.folder).evaluations().iloc[-1]
    assert row["snapshot"] == mean
    assert math.isnan(row["agent_steps"])


def test_games_by_hand_under_other_rules_are_not_mixed_and_of_many_games_each_evaluation_keeps_some(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(shutil.copytree(run_folder(work), tmp_path / "run"))
    done = twin_graph("evaluate", str(run.folder), "--episodes", "40", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    path = run.folder / "evaluations.jsonl"
    *_, newest = [line.record for line in read_lines(path)]
    assert newest is not None
    other = {**newest, "protocol": {**newest["protocol"], "epsilon": 0.5}, "mean": 1e6, "returns": [1e6] * 40}
    *lines, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, checked(other), b"\n", last]))
    records = Records(Run(run.folder))
    [by_hand] = [one for one in records.curves()["scores"] if not one["scheduled"]]
    assert by_hand["mean"] == [pytest.approx(newest["mean"])]

    whole = records.episodes()
    monkeypatch.setattr("twin_graph.view.records.EPISODES", len(whole["return"]) // 10)
    thinned = records.episodes()
    assert (whole["every"], thinned["every"] > 10) == (1, True)
    assert thinned["means"] == whole["means"] != []
    assert set(thinned["agent_steps"]) == set(whole["agent_steps"])
    assert len(thinned["return"]) < len(whole["return"]) / 5


def test_scores_of_one_game_are_drawn_without_an_interval(
    trained: Callable[[config.Settings], Run], cartpole: Callable[..., config.Settings]
) -> None:
    run = trained(cartpole(train__steps=400, evaluate__episodes=1))
    records = Records(run)
    [curve] = records.curves()["scores"]
    assert curve["low"] == curve["high"] == [None]
    [row] = records.evaluations(0, 10)["rows"]
    [shown] = records.snapshot(row["snapshot"])["evaluations"]
    assert row["interval_95"] is shown["interval_95"] is None


def test_a_run_that_could_not_be_read_once_is_shown_as_soon_as_it_can(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library([run_folder(work)], None)

    def no_file(run: Run) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr("twin_graph.records.report.status", no_file)
        version, [shown] = library.changes(-1)
        assert (shown["state"], "Too many open files" in shown["reason"]) == ("damaged", True)
        assert library.changes(version) == (version, [])  # the same, and the page need not draw it again
    _, [shown] = library.changes(version)
    assert shown["state"] == "finished"


@needs_browser
def test_a_run_that_trains_is_followed_and_swapped_by_hand(work: Path, browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    cwd = work / "live"
    cwd.mkdir()
    (cwd / "checkpoints").mkdir()
    steps = "parseInt(document.querySelector('td.col-steps')?.innerText.replaceAll(',', ''))"
    updates = "parseInt(document.querySelectorAll('.facts dd')[2]?.textContent.replaceAll(',', ''))"
    with serving("--allow-swaps", cwd=cwd) as server:
        look(browser, server.address)
        wait(browser, "document.querySelector('main .note:not([hidden])')?.textContent.startsWith('No runs yet')")
        training = Command("train", "cartpole", "--steps", "1000000", *TINY, cwd=cwd)
        try:
            seen = wait(browser, steps, 30)
            wait(browser, f"({steps}) > {seen}")
            assert "1 training" in browser.find_element("css selector", ".lead").text
            browser.find_element("link text", "cartpole-seed1-1").click()
            wait(browser, READY["run"])
            seen = wait(browser, updates)
            wait(browser, f"({updates}) > {seen}")

            run = Run(run_folder(cwd))
            (run.folder / "videos").mkdir()
            for filmed in (1, 2):  # after the page was opened; what is watched goes on when another film is there
                newest = run.store().newest.id
                (run.folder / "videos" / f"{newest}.mp4").write_bytes(bytes(range(256)) * 4)
                wait(browser, f"document.querySelectorAll('#film option').length == {filmed}")
                watched = browser.execute_script("return document.querySelector('#films video').src")
                assert (newest in watched) == (filmed == 1)

            swap = browser.find_element("css selector", "form.swapping button.main")
            answer = browser.find_element("css selector", "output.answer")
            buttons = browser.find_elements("css selector", "form.swapping button")
            assert not swap.is_enabled()
            reference = browser.find_element("id", "swap-reference")
            reference.send_keys("latest~999999", Keys.ENTER)  # Enter, which only tries
            wait(browser, "document.querySelector('output.bad')?.textContent.includes('the run has only')")
            assert not swap.is_enabled()
            reference.clear()
            reference.send_keys("latest~3")
            buttons[0].send_keys(" ")
            wait(browser, "document.querySelector('output.good')?.textContent.includes('fits; nothing was changed')")
            wait(browser, "document.activeElement.textContent.startsWith('Try')")
            tried = answer.text.split()[0]
            newest = run.store().newest.id
            deadline = time.monotonic() + 30
            while Run(run.folder).store().newest.id == newest:  # `latest~3` means another one by now
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert not run.ledger.events(Restore, text='"request": "')
            browser.execute_script("arguments[0].click()", swap)
            wait(browser, "document.querySelector('output.good')?.textContent.includes('is in the target twin')")
            [by_hand] = run.ledger.events(Restore, text='"request": "')
            assert by_hand.snapshots == (tried,)
            assert (
                answer.text == f"{by_hand.snapshots[0]} is in the target twin from update {by_hand.first_update:,} on"
            )
            browser.execute_script(
                "const kind = document.getElementById('ledger-kind'); kind.value = 'swap by hand';"
                "kind.dispatchEvent(new Event('change'))"
            )
            wait(browser, f"document.querySelector('.ledger tbody')?.innerText.includes('{by_hand.snapshots[0]}')")
        finally:
            training.send_signal(signal.SIGINT)
            training.wait(60)
        wait(browser, "document.querySelector('.lead .stopped')")
        # Of a page's requests only the swap that was refused may fail. Reading the log empties it.
        assert all("400" in entry["message"] for entry in browser.get_log("browser"))
        assert all(address.startswith(server.address) for address in asked(browser))


@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_address_is_not_among_the_arguments_of_the_browser(
    work: Path, tmp_path: Path, end: signal.Signals, code: int
) -> None:
    """All users of the machine see these."""
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/arguments.part\ncat "${{1#file://}}" > {tmp_path}/page\n'
        f"mv {tmp_path}/arguments.part {tmp_path}/arguments\n"
    )
    browser.chmod(0o755)
    command = [sys.executable, "-m", "twin_graph_cli", "view"]
    environment = {**os.environ, "BROWSER": str(browser)}
    with subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, text=True, env=environment) as viewing:
        assert viewing.stdout is not None
        address = viewing.stdout.readline().strip()
        deadline = time.monotonic() + 30
        while not (tmp_path / "arguments").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        file = Path((tmp_path / "arguments").read_text().strip().removeprefix("file://"))
        assert address.split("/")[-2] not in str(file)
        assert address in (tmp_path / "page").read_text()
        assert file.parent.stat().st_mode & 0o77 == 0
        viewing.send_signal(end)
    assert viewing.returncode == code
    assert not file.parent.exists()


def test_a_swap_is_asked_for_in_all_its_words(work: Path) -> None:
    with serving("--allow-swaps", "what-if", cwd=work) as server:
        wanted = SWAP

        def post(body: Any, kind: str = "application/json") -> tuple[int, Any]:
            answer = server.ask("api/runs/0/swap", method="POST", body=json.dumps(body), Content_Type=kind)
            return answer.status, json.loads(answer.read())

        assert post(wanted)[0] == 200
        assert post(wanted, "text/plain")[0] == 400
        for change in (
            {"into": "elsewhere"},
            {"hold": 1},
            {"reference": None},
            {"more": ""},
            {"reference": "x" * 20_000},
            {"yes": "true"},
        ):
            assert post({**wanted, **change})[0] == 400
        assert post({**wanted, "hold": True, "into": "online"}) == (
            400,
            {"error": "--hold is only for a swap into the target or the opponent"},
        )
        assert post([])[0] == 400
        assert server.ask("api/runs/0/swap", method="POST", body="{", Content_Type="application/json").status == 400
        run = Run(run_folder(work, "what-if"))
        before = report.status(run).requests
        assert post({**wanted, "dry_run": False})[1]["message"].startswith("recorded: the run is not training now")
        assert len(report.status(run).requests) == len(before) + 1
        assert post({**wanted, "undo": True, "dry_run": False})[1]["message"].startswith("undone: ")
        assert report.status(run).requests == before


def test_the_page_loses_nothing_unasked(tmp_path: Path) -> None:
    often = ["--set=resume.every_steps=100", "--set=target.refresh_every_updates=1000"]
    done = twin_graph(
        "train", "cartpole", "--steps", "600", *TINY, *often, "--run-dir", "checkpoints/run", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr

    def resume(steps: int) -> Run:
        done = twin_graph("resume", "run", "--steps", str(steps), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return Run(run_folder(tmp_path, "run"))

    with serving("--allow-swaps", "run", cwd=tmp_path) as server:

        def post(**wanted: Any) -> tuple[int, dict[str, Any]]:
            body = json.dumps({**SWAP, "into": "online", "dry_run": False, **wanted})
            answer = server.ask("api/runs/0/swap", method="POST", body=body, Content_Type="application/json")
            return answer.status, json.loads(answer.read())

        first = {"reference": "000001"}
        loss = post(**first, dry_run=True)[1]["loss"]
        assert re.search(
            r"loses what it learned in \d+ updates and \d+ agent steps since 000001-\w+, and the opt", loss
        )
        assert post(**first) == (400, {"error": f"{loss}; agree with --yes"})
        assert post(reference="latest", into="target", dry_run=True)[1]["loss"] == ""
        assert post(**first, yes=True)[0] == 200
        run = resume(800)
        status, told = post(undo=True, dry_run=True)
        assert (status, "since swap 000001-" in told["loss"], "would undo" in told["message"]) == (200, True, True)
        assert post(undo=True) == (400, {"error": f"{told['loss']}; agree with --yes"})
        refused = post(undo=True, into="target", yes=True)[1]["error"]
        assert "none was made into the target twin; `twin-graph swap" in refused
        assert "--undo --into online` undoes the newest" in refused
        assert report.status(run).requests == []
        run = resume(1000)
        for yes in (False, True):
            status, told = post(undo=True, yes=yes)
            assert (status, "by attempt 2, and the run has been resumed since" in told["error"]) == (400, True)
        assert report.status(run).requests == []

        assert post(**first, yes=True)[0] == 200
        resume(1200)
        assert post(undo=True, yes=True)[0] == 200
        run = resume(1400)
        *_, swapped, undone = run.ledger.events(Restore, text='"request": "')
        assert (undone.policy, undone.into, undone.snapshots) == ("undo", "online", swapped.previous)


@needs_browser
def test_the_page_asks_before_the_online_twin_loses_anything(work: Path, tmp_path: Path, browser: Any) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    run = Run(shutil.copytree(run_folder(work, "what-if"), checkpoints / "run"))
    with serving("--allow-swaps", cwd=tmp_path) as server:
        look(browser, server.address)
        wait(browser, "document.querySelector('main td a')")
        browser.find_element("link text", "run").click()
        wait(browser, READY["run"])
        browser.find_element("id", "swap-reference").send_keys("000001")
        browser.execute_script(
            "const into = document.getElementById('swap-into'); into.value = 'online';"
            "into.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        try_it, swap, _ = browser.find_elements("css selector", "form.swapping button")
        for agrees in (False, True):
            browser.execute_script("arguments[0].click()", try_it)
            wait(browser, "document.querySelector('output.good')?.textContent.includes('fits; nothing was changed')")
            browser.execute_script("setTimeout(() => arguments[0].click())", swap)
            question = wait_for_alert(browser)
            assert "loses what it learned in" in question.text
            assert report.status(run).requests == []
            if agrees:
                question.accept()
                wait(browser, "document.querySelector('output.good')?.textContent.includes('recorded')")
            else:
                question.dismiss()
                wait(browser, "document.querySelector('output.bad')?.textContent.includes('Nothing was changed')")
        assert len(report.status(run).requests) == 1


def wait_for_alert(browser: Any) -> Any:
    from selenium.webdriver.support.expected_conditions import alert_is_present
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(browser, 10).until(alert_is_present())


@pytest.fixture
def opened(work: Path) -> Callable[[str], Records]:
    def open_run(name: str) -> Records:
        records = Records(Run(run_folder(work, name)))
        records.summary()
        return records

    return open_run


@pytest.mark.parametrize("name", ["cartpole-seed1-1", "what-if", "mutual"])
def test_the_timeline_says_what_explain_says(opened: Callable[[str], Records], name: str) -> None:
    records = opened(name)
    lines = records.timeline()
    for update in range(1, lines["updates"] + 1, 7):
        told = report.explain(records.run, update)
        rows = [
            row
            for row, (first, last) in enumerate(zip(lines["first"], lines["last"], strict=True))
            if first <= update <= last and lines["learner"][row] == told.learner
        ]
        assert [lines["ids"][lines["snapshot"][row]] for row in rows] == [one.id for one in told.snapshots]
        assert [update - 1 - lines["made_at"][row] for row in rows] == [one.age_updates for one in told.snapshots]
        assert [lines["depth"][row] for row in rows] == [one.depth_agent_steps for one in told.snapshots]
        assert {lines["policies"][lines["policy"][row]] for row in rows} == {told.policy}


def test_the_timeline_of_opponents_says_what_the_ledger_says(tmp_path: Path) -> None:
    game = ["tictactoe", "--steps", "1200", *TINY, "--set=env.count=4", "--set=opponent.policy=window(3)"]
    done = twin_graph("train", *game, "--set=opponent.refresh_every_updates=20", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run(run_folder(tmp_path, "tictactoe-seed1-1"))
    records = Records(run)
    records.summary()
    lines = records.timeline("opponent")
    told = [(lines["first"][row], lines["ids"][lines["snapshot"][row]]) for row in range(len(lines["first"]))]
    swaps = [swap for swap in run.ledger.events(Restore) if swap.into == "opponent"]
    assert told == [(swap.first_update, swap.snapshots[0]) for swap in swaps if swap.first_update <= lines["updates"]]
    assert len(set(told)) > 5
    assert records.timeline() != lines


@needs_browser
def test_the_page_draws_past_opponents_though_the_moves_are_random_now(tmp_path: Path, browser: Any) -> None:
    game = ["tictactoe", "--steps", "600", *TINY, "--set=env.count=4"]
    random = "--set=opponent.policy=random"
    for arguments in (
        ["train", *game, "--set=opponent.policy=latest", "--run-dir", "checkpoints/before"],
        ["resume", "checkpoints/before", "--steps", "800", random],
        ["train", *game, random, "--run-dir", "checkpoints/random"],
    ):
        done = twin_graph(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    with serving(cwd=tmp_path) as server:
        look(browser, f"{server.address}#/run/{server.number('before')}")
        wait(browser, "document.querySelector('#opponents canvas')")
        look(browser, f"{server.address}#/run/{server.number('random')}")
        note = wait(browser, "document.querySelector('#opponents .body .note')?.textContent")
        assert note == "Random moves: no snapshot plays."


def test_curves_are_the_records_own_and_are_averaged_when_long(
    opened: Callable[[str], Records], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line for line in opened("what-if").run.metric_lines() if "agent_steps_per_second" in line]
    columns = opened("what-if").curves()["metrics"]
    assert columns["agent_steps"] == [line["agent_steps"] for line in lines]
    for name in ("loss", "target/q_distance", "time_share/train"):
        known = [value for value in columns[name] if value == value]
        assert known == pytest.approx([line[name] for line in lines if line.get(name) is not None])
    monkeypatch.setattr("twin_graph.view.records.POINTS", 4)
    few = opened("what-if").curves()["metrics"]
    size = -(-len(lines) // 4)
    assert few["agent_steps"] == pytest.approx(
        [
            sum(line["agent_steps"] for line in lines[at : at + size]) / len(lines[at : at + size])
            for at in range(0, len(lines), size)
        ],
        abs=0.5,
    )
    [scores] = opened("what-if").curves()["scores"]
    assert scores["mean"] == [e["mean"] for e in opened("what-if").run.evaluation_lines()]


def test_the_ledger_is_paged_filtered_and_keeps_what_was_abandoned_apart(work: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run_folder(work, "what-if"), tmp_path / "again")
    records = Records(Run(folder))
    every = records.ledger(0, 1000)
    assert every["total"] == len(every["rows"]) == len(records.run.ledger.events())
    assert records.ledger(3, 2)["rows"] == every["rows"][3:5]
    assert {row["kind"] for row in records.ledger(0, 1000, kind="swap")["rows"]} == {"swap"}
    snapshot = records.run.store().newest.id
    named = records.ledger(0, 1000, text=snapshot.upper())
    assert named["total"]
    assert all(snapshot in row["text"] or snapshot in row["snapshots"] for row in named["rows"])
    newest = records.run.points().newest()
    assert newest is not None
    records.run.ledger.append(records.run.ledger.events(Restore)[-1])
    record_metrics(records.run, {"agent_steps": 10**9, "agent_steps_per_second": 1.0})
    assert records.curves()["metrics"]["agent_steps"][-1] == 10**9
    records.run.record_start(newest)  # a trainer that resumes from before
    now = records.ledger(0, 1000)
    assert now["rows"][0]["kind"] == "start"
    assert now["total"] < records.ledger(0, 1000, abandoned=True)["total"]
    assert records.curves()["metrics"]["agent_steps"][-1] < 10**9


def test_runs_that_begin_change_end_or_are_damaged_are_told_apart(work: Path, tmp_path: Path) -> None:
    library = Library([], tmp_path)
    assert library.changes(-1) == (0, [])
    folder = shutil.copytree(run_folder(work), tmp_path / "one")
    version, [one] = library.changes(-1)
    assert (one["run"], one["state"], one["index"]) == ("one", "finished", 0)
    assert one["spark"][-1] == [one["agent_steps"], one["scores"]["latest"]["mean"]]
    assert library.changes(version) == (version, [])
    fork = shutil.copytree(run_folder(work, "what-if"), tmp_path / "a-fork")
    description = json.loads((fork / "run.json").read_text())
    del description["crc"]
    description["forked_from"]["run"] = "one"
    (fork / "run.json").write_bytes(checked(description, indent=1))
    version, [other] = library.changes(version)
    assert other["run"] == "a-fork"
    assert library.tree() == [(0, 0), (1, 1)]
    content = (folder / "ledger.jsonl").read_bytes()
    (folder / "ledger.jsonl").write_bytes(content.replace(b'"attempt": 1', b'"attempt": 2', 1))
    version, [damaged] = library.changes(version)
    assert damaged["state"] == "damaged"
    assert "ledger.jsonl is damaged: line 1" in damaged["reason"]
    with pytest.raises(DamagedError, match="line 1"):
        library.find(0)
    shutil.rmtree(folder)
    version, [gone] = library.changes(version)
    assert (gone["state"], gone["index"]) == ("gone", 0)
    with pytest.raises(UsageError, match="was removed"):
        library.find(0)
    assert library.find(1).run.name == "a-fork"
    with pytest.raises(UsageError, match="no such run"):
        library.find(2)


def test_a_ledger_that_is_damaged_while_its_run_trains_is_no_matter_for_the_others(work: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run_folder(work), tmp_path / "one"))
    run = Run(folder)
    with run.lock("train"):
        run.record_start()
        library = Library([], tmp_path)
        version, [one] = library.changes(-1)
        assert one["state"] == "running"
        with (folder / "ledger.jsonl").open("a") as ledger:
            ledger.write("no record\n")
        _, [damaged] = library.changes(version)
        assert damaged["state"] == "damaged"


def test_a_run_that_nobody_expected_is_no_matter_for_the_others(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        shutil.copytree(run_folder(work), tmp_path / name)
    summary = Records.summary

    def fails_for_one(self: Records) -> dict[str, Any]:
        return summary(self) if self.run.name == "other" else {}[self.run.name]

    monkeypatch.setattr(Records, "summary", fails_for_one)
    library = Library([], tmp_path)
    _, found = library.changes(-1)
    assert [run["state"] for run in found] == ["damaged", "finished"]
    assert found[0]["reason"].startswith("KeyError: 'one' (")
    assert library.is_read


def test_every_look_reads_a_run_however_slow_the_storage_is(
    cartpole: Callable[..., config.Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three"):
        create(tmp_path / name, cartpole())
    listed: list[Path] = []
    monkeypatch.setattr(library_module, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(library_module, "folders_of_runs", lambda path: listed.append(path) or folders_of_runs(path))
    library = Library([], tmp_path)
    for left in (2, 1, 0):
        _, found = library.changes(-1)
        assert [run["state"] for run in found].count("reading") == left
    assert library.is_read
    assert len(listed) == 1  # a thousand runs are not to be looked for again while they are read


def test_a_list_of_runs_takes_no_more_of_the_ledger_than_it_shows(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(Run(run_folder(work)))
    monkeypatch.setattr(records, "_catch_up", lambda: pytest.fail("all of the ledger was made into rows"))
    assert records.summary()["spark"]


def test_users_may_log_what_is_no_number(work: Path, tmp_path: Path) -> None:
    run = Run(shutil.copytree(run_folder(work), tmp_path / "run"))
    record_metrics(run, {"agent_steps": 10**9, "agent_steps_per_second": 1.0, "loss": [0.5, 0.25], "updates": "many"})
    metrics = Records(Run(run.folder)).curves()["metrics"]
    assert metrics["agent_steps"][-1] == 10**9
    assert math.isnan(metrics["loss"][-1])


def test_an_abandoned_snapshot_can_be_looked_at(work: Path, tmp_path: Path) -> None:
    run = Run(shutil.copytree(run_folder(work), tmp_path / "run"))
    points = run.points().folders()
    assert len(points) > 1
    lost = run.store().newest
    shutil.rmtree(points[-1])
    earlier = run.points().newest()
    assert earlier is not None
    run.record_start(earlier)
    assert lost in run.store().abandoned
    assert Records(Run(run.folder)).snapshot(lost.id)["abandoned"]
    told = twin_graph("show", str(run.folder), lost.id, cwd=tmp_path)
    assert re.search("abandoned +the run went back to a resume point before it", told.stdout)
    assert twin_graph("show", str(run.folder), lost.id[:-1], cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("port", "host", "admits"), [(80, "127.0.0.1", True), (80, "evil", False), (81, "127.0.0.1", False)]
)
def test_browsers_leave_out_port_80(port: int, host: str, admits: bool) -> None:
    guard = Guard(PlainTextResponse(), token="t", port=port)
    for name in ("host", "origin"):
        headers = {"host": b"127.0.0.1:%d" % port, name: host.encode() if name == "host" else f"http://{host}".encode()}
        scope = {"path": "/t/", "headers": [(n.encode(), v) for n, v in headers.items()]}
        assert (guard._refusal(scope) == "") == admits


IMPATIENT = """
from twin_graph.view import connections
connections.PATIENCE_SECONDS, connections._MOST = 1.0, 20
from twin_graph_cli import run
run()
"""
HALF = b"GET / HTTP/1.1\r\nHost: "


@pytest.fixture(scope="module")
def impatient(work: Path) -> Iterator[Server]:
    """A server with 20 connections, which waits for a second."""
    with serving("--allow-swaps", cwd=work, program=("-c", IMPATIENT)) as server:
        yield server


def connected(server: Server, content: bytes = b"") -> socket.socket:
    host, port = server.host.split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(content)
    return connection


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the other side closes it within this time; what it says before is left out."""
    connection.settimeout(seconds)
    try:
        while connection.recv(10_000):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_connections_that_ask_for_nothing_make_room_for_those_that_do(impatient: Server) -> None:
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(impatient, HALF if i % 2 else b"")) for i in range(100)]
        began = time.monotonic()
        for _ in range(5):
            assert impatient.ask("api/runs").status == 200
        assert time.monotonic() - began < 1
        assert all(is_closed(connection, 0.5) for connection in idle[:70])
        assert psutil.Process(impatient.process.pid).num_fds() < 60


def test_a_request_that_never_becomes_whole_is_ended(impatient: Server) -> None:
    asks = f"GET /{impatient.token}/ HTTP/1.1\r\nHost: {impatient.host}\r\n\r\n".encode()
    swap = (
        f"POST /{impatient.token}/api/runs/0/swap HTTP/1.1\r\nHost: {impatient.host}\r\n"
        "Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
    ).encode()
    began = time.monotonic()
    with connected(impatient, HALF) as slow, connected(impatient, asks) as second, connected(impatient, swap) as third:
        second.sendall(HALF)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 3:  # a byte now and then makes no difference
                slow.sendall(b"x")
                time.sleep(0.1)
        assert 0.5 < time.monotonic() - began < 2.5
        assert is_closed(second, 2)
        assert is_closed(third, 2)


def test_who_is_refused_is_disconnected(impatient: Server) -> None:
    with connected(impatient, b"GET /wrong/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as refused:
        assert is_closed(refused, 0.5)
    answer = impatient.ask("", token="wrong")
    assert (answer.status, answer.getheader("connection")) == (403, "close")


def test_a_failure_of_the_server_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    server = connections.Server(connections.config(PlainTextResponse()))
    for number in range(3):
        for error in (OSError(errno.EMFILE, "Too many open files"), ValueError(f"{number}\nand more")):
            server._tell(None, {"message": "socket.accept() out of system resource", "exception": error})
    assert capfd.readouterr().err.splitlines() == [
        "the page's server: socket.accept() out of system resource: [Errno 24] Too many open files",
        "the page's server: socket.accept() out of system resource: 0",
    ]


def test_fewer_connections_than_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((1 << 20, 256), (1024, 256), (256, 64), (10, 1)):
        monkeypatch.setattr(connections.resource, "getrlimit", lambda _, files=files: (files, files))
        assert connections.most.__wrapped__() == most


def test_view_needs_no_tensorflow(work: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nimport twin_graph_cli.view\nfrom twin_graph.view import server\n"
        "from twin_graph.view.library import Library\n"
        "library = Library([], Path('checkpoints'))\nlibrary.changes(-1)\n"
        "for ask in ('about', 'curves', 'timeline', 'episodes'): getattr(library.find(0), ask)()\n"
        "print({'tensorflow', 'gymnasium', 'ale_py', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=work, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_what_cannot_be_shown_is_said_in_one_line(work: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, words in (
            (["--folder", "nowhere"], "no folder nowhere; name the one with your runs with --folder"),
            (["nothing"], "no run in nothing"),
            (["--port", port], f"port {port} cannot be used (Address already in use); choose another with --port"),
        ):
            done = twin_graph("view", "--no-browser", *arguments, cwd=work)
            assert done.returncode == 2
            assert done.stderr.startswith(f"Error: {words}")
            assert done.stderr.count("\n") == 1
    without = {**os.environ, "PYTHONPATH": str(work / "without")}
    (work / "without" / "uvicorn").mkdir(parents=True)
    (work / "without" / "uvicorn" / "__init__.py").write_text("raise ModuleNotFoundError('no', name='uvicorn')")
    done = twin_graph("view", "--no-browser", cwd=work, env=without, fresh=True)
    assert done.returncode == 1
    assert "pip install" in done.stderr
    assert "[view]" in done.stderr
