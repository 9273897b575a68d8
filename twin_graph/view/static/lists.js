// Evaluations down to the episode, the ledger, and films.

import { get } from "./api.js";
import { Plot, UNITS, clipped, faint, roomy } from "./charts.js";
import { NONE, count, counted, h, put, renew, s, score, when } from "./dom.js";
import { noting, pager, section, snapshotButton } from "./parts.js";

const EVALUATIONS = 10;
const ROWS = 25;

export function evaluationsPart(run) {
  const part = section(
    "Evaluations",
    "Each dot is one whole game. Manual evaluations, with `twin-graph evaluate`, do not affect training.",
    "evaluations",
  );
  const host = h("div");
  const body = h("tbody");
  const drawn = h("p", { class: "note", hidden: true });
  const pages = pager(EVALUATIONS, () => noting(part, readRows));
  let plot = null;
  let columns = null;
  let range = [0, 1];
  let asked = 0;
  let written = ""; // the rows that are there
  const opened = new Set(); // rows whose games are shown
  part.body.append(
    host,
    drawn,
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Evaluations" },
      h(
        "table",
        { class: "plain evaluations" },
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            ["snapshot", "agent steps", "updates", "score", "95% interval", "games", "each game"].map((text, i) =>
              h("th", { scope: "col", class: i && i < 6 && "number" }, text),
            ),
          ),
        ),
        body,
      ),
    ),
    pages.element,
  );

  function paint(u) {
    clipped(u, (context, x, y, ratio) => {
      const size = (columns.return.length > 5000 ? 2 : 4) * ratio;
      for (const scheduled of [true, false]) {
        context.fillStyle = faint(scheduled ? "online" : "hand", columns.return.length > 1000 ? 0.35 : 0.5);
        for (let row = 0; row < columns.return.length; row += 1) {
          if (columns.scheduled[row] !== scheduled) continue;
          context.fillRect(x(columns.agent_steps[row]) - size / 2, y(columns.return[row]) - size / 2, size, size);
        }
      }
    });
  }

  async function readRows() {
    const mine = ++asked;
    const page = await get(`runs/${run.index}/evaluations`, { offset: pages.offset(), count: EVALUATIONS });
    if (mine !== asked) return; // a later question was answered first, or will be
    pages.tell(page.total);
    const scale = bounds(page.rows.flatMap((row) => row.returns), range);
    const content = JSON.stringify([page.rows, scale]);
    if (content === written) return; // a button that has the focus keeps it
    written = content;
    put(
      body,
      page.rows.flatMap((row) => {
        const key = `${row.time} ${row.snapshot}`;
        const each = h("tr", { class: "each" }, h("td", { colspan: 7 }));
        const more = h(
          "button",
          {
            type: "button",
            class: "snapshot",
            onclick: () => {
              if (!opened.delete(key)) opened.add(key);
              tell();
            },
          },
          strip(row.returns, scale),
        );
        function tell() {
          each.hidden = !opened.has(key);
          more.setAttribute("aria-expanded", String(!each.hidden));
          if (!each.hidden) put(each.firstChild, games(row));
        }
        tell();
        return [
          h(
            "tr",
            null,
            h(
              "td",
              { class: "which" },
              snapshotButton(row.snapshot, run.open),
              !row.scheduled && h("span", { class: "soft" }, " by hand"),
            ),
            h("td", { class: "number steps" }, count(row.agent_steps)),
            h("td", { class: "number" }, count(row.updates)),
            h("td", { class: "number mean" }, score(row.mean)),
            h("td", { class: "number" }, row.interval_95?.map(score).join(" to ") ?? NONE),
            h("td", { class: "number" }, count(row.returns.length)),
            h("td", { class: "dots" }, more),
          ),
          each,
        ];
      }),
    );
  }

  function strip(returns, [low, high]) {
    const dots = returns
      .slice(0, 200)
      .map((value) => s("circle", { cx: (4 + ((value - low) / (high - low || 1)) * 132).toFixed(1), cy: 9, r: 3 }));
    return s(
      "svg",
      {
        class: "strip",
        viewBox: "0 0 140 18",
        width: 140,
        height: 18,
        role: "img",
        "aria-label": `show ${counted(returns.length, "game")}`,
      },
      s("line", { x1: 0, x2: 140, y1: 9, y2: 9 }),
      dots,
    );
  }

  function games(row) {
    const seeds = row.seeds ?? [];
    return h(
      "ol",
      { class: "games" },
      row.returns.map((value, game) =>
        h(
          "li",
          null,
          h("b", null, score(value)),
          row.q_start && row.q_start[game] !== undefined
            ? h("span", { class: "soft" }, ` expected ${score(row.q_start[game])}`)
            : null,
          seeds.length ? h("span", { class: "soft" }, ` environment's seed ${seeds[game % seeds.length]}`) : null,
        ),
      ),
    );
  }

  return {
    ...part,
    async read() {
      columns = await get(`runs/${run.index}/episodes`);
      if (columns.return.length) {
        const xs = [...new Set(columns.agent_steps)].sort((a, b) => a - b);
        const means = new Map(columns.means);
        range = bounds(columns.return, [Infinity, -Infinity]);
        plot ??= new Plot(host, {
          label: "Return of each evaluated game",
          unit: "return of a game",
          height: 220,
          x: UNITS.agent_steps,
          draw: paint,
          xRange: roomy,
          range: () => [range[0] - (range[1] - range[0]) * 0.06 - 0.5, range[1] + (range[1] - range[0]) * 0.06 + 0.5],
          series: [
            { name: "mean", colour: "online", width: 1.5, format: score },
            { name: "a game", colour: "online", line: false, dots: 4, silent: true },
          ],
        });
        plot.show([xs, xs.map((x) => means.get(x) ?? null), xs.map(() => null)]);
        drawn.textContent = `There are so many that only one game in ${count(columns.every)} is drawn.`;
        drawn.hidden = columns.every === 1;
      } else {
        plot?.close(); // the run began again
        plot = null;
        drawn.hidden = true;
        put(host, h("p", { class: "note" }, "No snapshot that the run trained has been evaluated yet."));
      }
      await readRows();
    },
    close: () => plot?.close(),
  };
}

const bounds = (values, start) =>
  values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], start);

export function ledgerPart(run) {
  const part = section(
    "Ledger",
    "What happened, the newest first: commits, swaps with their reasons, resume points, starts and ends.",
    "ledger",
  );
  const kind = h(
    "select",
    { id: "ledger-kind", onchange: again },
    h("option", { value: "" }, "everything"),
    run.about.kinds.map((name) => h("option", { value: name }, name)),
  );
  let typing = null;
  const text = h("input", {
    type: "search",
    id: "ledger-text",
    placeholder: "snapshot, policy or reason",
    oninput: () => {
      clearTimeout(typing);
      typing = setTimeout(again, 200);
    },
  });
  const abandoned = h("input", { type: "checkbox", onchange: again });
  const body = h("tbody");
  const pages = pager(ROWS, () => noting(part, read));
  part.body.append(
    h(
      "div",
      { class: "bar" },
      h("label", { for: "ledger-kind" }, "Show"),
      kind,
      h("label", { for: "ledger-text" }, "with"),
      text,
      h("label", null, abandoned, "also what a resumed run abandoned"),
    ),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Ledger" },
      h(
        "table",
        { class: "plain ledger" },
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            ["time (UTC)", "event", "updates", "agent steps", "snapshot", "what"].map((name, i) =>
              h("th", { scope: "col", class: (i === 2 || i === 3) && "number" }, name),
            ),
          ),
        ),
        body,
      ),
    ),
    pages.element,
  );

  function again() {
    pages.first();
    noting(part, read);
  }

  let asked = 0;
  async function read() {
    const mine = ++asked;
    const query = {
      offset: pages.offset(),
      count: ROWS,
      kind: kind.value,
      text: text.value.trim(),
      abandoned: abandoned.checked,
    };
    const page = await get(`runs/${run.index}/ledger`, query);
    if (mine !== asked) return; // a later question was answered first, or will be
    pages.tell(page.total);
    renew(
      body,
      page.rows.map((row) =>
        h(
          "tr",
          { class: row.holds ? null : "gone" },
          h("td", { class: "soft time" }, when(row.time)),
          h(
            "td",
            { class: "event" },
            h("span", { class: `kind ${row.kind.split(" ").join("-")}` }, row.kind),
            !row.holds && h("span", { class: "soft" }, " abandoned"),
          ),
          h("td", { class: "number updates" }, row.updates === null ? null : count(row.updates)),
          h("td", { class: "number steps" }, row.agent_steps === null ? null : count(row.agent_steps)),
          h(
            "td",
            { class: "which" },
            row.snapshots.slice(0, 1).map((snapshot) => snapshotButton(snapshot, run.open)),
            row.snapshots.length > 1 &&
              h("span", { class: "soft", title: row.snapshots.join(", ") }, ` and ${row.snapshots.length - 1} more`),
          ),
          h("td", { class: "what" }, row.text),
        ),
      ),
    );
  }

  return { ...part, read };
}

export function filmsPart(run) {
  const part = section("Films", "Games that snapshots played: the run's `videos/*.mp4`, from `evaluate.video=true` or `twin-graph record`.", "films");
  const video = h("video", { controls: true, preload: "metadata", playsinline: true });
  const choice = h("select", { id: "film", onchange: play });
  const bar = h("div", { class: "bar" }, h("label", { for: "film" }, "Snapshot"), choice);

  function play() {
    video.src = filmOf(run.index, choice.value);
    video.setAttribute("aria-label", `Film of ${choice.value}`);
  }

  return {
    ...part,
    async read() {
      run.about = await get(`runs/${run.index}/about`); // its settings may have changed, too
      const { films } = run.about;
      if (!films.length) {
        put(part.body, h("p", { class: "note" }, "No snapshot has been filmed yet."));
        return;
      }
      const best = run.summary().scores?.best?.snapshot;
      const before = choice.value; // is watched, perhaps
      const shown = [before, best, films.at(-1)].find((film) => films.includes(film));
      renew(
        choice,
        films.map((film) =>
          h("option", { value: film, selected: film === shown }, film === best ? `${film}, the best` : film),
        ),
      );
      if (shown !== before) play();
      if (!video.isConnected) put(part.body, bar, video);
    },
  };
}

export const filmOf = (index, snapshot) => `api/runs/${index}/films/${encodeURIComponent(snapshot)}`;
