/** One consumer: where it is in its stream, what it does, what it waits for, and what can be done about it. */

import { html } from "../vendor/preact.js";
import { path } from "../shared/api.js";
import { Samples } from "../shared/chart.js";
import { open } from "../shared/dialog.js";
import { Figures } from "../shared/figures.js";
import { useKept, useLive } from "../shared/live.js";
import { consumerAt, streamAt, useFilters } from "../shared/router.js";
import { Table } from "../shared/table.js";
import { counted, duration, isForever, number } from "../shared/text.js";
import { Empty, Facts, Failure, Figure, Heading, Loading, Section, State, Tabs, Time, may } from "../shared/ui.js";
import { Blocked, Peek } from "./consumer_messages.js";
import { Pause, Replay, Resume, Seek } from "./positions.js";
import { Push } from "./push.js";
import { EditSettings } from "./settings.js";

const CHARTS = [
  ["Finished per second", [["finish_rate", "finished"]], "rate"],
  ["Lag in messages", [["lag", "messages behind"]], "count"],
  ["Lag in seconds", [["lag_seconds", "behind"]], "seconds"],
  ["In flight, parked, blocked", [["in_flight", "in flight"], ["parked", "parked"], ["blocked", "blocked"]], "count"],
];

export default function Consumer({ names: [stream, name] }) {
  const [filters, change] = useFilters({ tab: "work", span: "1h" });
  const live = useLive(path`live/streams/${stream}/consumers/${name}`);
  const info = useKept(live.data?.data.info);
  const row = live.data?.data && { ...live.data.data, info };
  const trail = [["Streams", "streams"], [stream, streamAt(stream)]];
  if (!row) return html`<${Heading} title=${name} trail=${trail} />${live.error ? html`<${Failure} error=${live.error} again=${live.again} />` : html`<${Loading} />`}`;
  const at = consumerAt(stream, name);
  const tabs = [["work", "Work"], ["messages", "Messages"], ["blocked", "Blocked keys", row.blocked], ["charts", "Charts"], ...(row.kind === "push" ? [["push", "Push"]] : []), ["settings", "Settings"]];
  return html`
    <${Heading} title=${name} trail=${trail} state=${html`<${State} state=${row.state} />`}>
      <${Acts} row=${row} again=${live.again} />
    <//>
    ${row.why ? html`<p class="why">${row.why}</p>` : null}
    <${Figures} kind="consumer" row=${row} label="State of the consumer"
      hrefs=${{ parked: `${at}?tab=messages&states=parked`, blocked: `${at}?tab=blocked`, dead_letters: `${at}/dead-letters` }}>
      <${Figure} label="Actors busy" value=${row.actors === null ? "–" : `${number(row.busy_actors)} of ${number(row.actors)}`} />
    <//>
    <${Tabs} label="Parts of the consumer" tabs=${tabs} current=${filters.tab} href=${(tab) => (tab === "work" ? at : `${at}?tab=${tab}`)} />
    ${filters.tab === "work" ? html`${info ? html`<${Position} info=${info} />` : null}<${Processes} row=${row} />` : null}
    ${filters.tab === "messages" ? html`<${Peek} stream=${stream} consumer=${name} />` : null}
    ${filters.tab === "blocked" ? html`<${Blocked} stream=${stream} consumer=${name} row=${row} />` : null}
    ${filters.tab === "charts" ? html`<${Samples} kind="consumer" stream=${stream} consumer=${name} charts=${CHARTS} span=${filters.span} onSpan=${(span) => change({ span }, { replace: true })} />` : null}
    ${filters.tab === "push" ? html`<${Push} stream=${stream} consumer=${name} />` : null}
    ${filters.tab === "settings" && info ? html`<${Settings} info=${info} />` : null}
  `;
}

function Acts({ row, again }) {
  const admin = may("admin", row.stream) && row.info;
  const props = { row, done: again };
  const edit = () => open(EditSettings, {
    kind: "consumer", target: path`streams/${row.stream}/consumers/${row.name}`, info: { name: row.name, ...row.info.settings },
    command: ["consumer edit", [row.stream, row.name]], done: again,
  });
  return html`
    <a class="button" href=${`${consumerAt(row.stream, row.name)}/dead-letters`}>Dead letters</a>
    ${admin
      ? html`
          ${row.state === "paused" || row.info.paused_until
            ? html`<button type="button" class="primary" onClick=${() => open(Resume, props)}>Resume</button>`
            : html`<button type="button" onClick=${() => open(Pause, props)}>Pause</button>`}
          <button type="button" onClick=${() => open(Seek, props)}>Seek</button>
          <button type="button" onClick=${() => open(Replay, props)}>Replay</button>
          <button type="button" onClick=${edit}>Edit settings</button>
        `
      : null}
  `;
}

function Position({ info }) {
  const share = info.last_seq ? Math.min(1, info.position / info.last_seq) : 1;
  return html`<${Section} title="Position" id="position">
    <div class="position">
      <meter min="0" max="1" value=${share} aria-label="Position in the stream"></meter>
      <p>At seq <strong>${number(info.position)}</strong> of <strong>${number(info.last_seq)}</strong>${info.lag ? `, ${counted(info.lag, "message")} behind` : ", at the end of the stream"}.</p>
    </div>
    <${Facts} facts=${[
      ["To be delivered", `${info.num_pending_exact ? "" : "at least "}${number(info.num_pending)}`, "Messages above the position that match, parked ones, and those to be replayed"],
      ["In flight", number(info.num_ack_pending)],
      ["Replaying", number(info.replaying)],
      ["Oldest unsettled", info.oldest_unacked_at ? html`published <${Time} at=${info.oldest_unacked_at} ago=${true} />` : "none"],
      ["Paused", info.paused_until ? (isForever(info.paused_until) ? "until it is resumed" : html`until <${Time} at=${info.paused_until} />`) : "no"],
      ["Late commits awaited", number(info.holes), "Ranges of sequence numbers that a late commit may still fill"],
      ["Missed", info.missed ? html`<span class="bad">${number(info.missed)}</span>${info.last_gap ? html`, last <${Time} at=${info.last_gap[2]} ago=${true} />` : null}` : "0", "Messages that retention removed before the consumer got them"],
    ]} />
  <//>`;
}

const PROCESSES = [
  { name: "process", title: "Process", cell: (row) => `${row.pid} on ${row.host}` },
  { name: "flight", title: "In flight", cell: (row) => number(row.in_flight), number: true },
  { name: "actors", title: "Actors", cell: (row) => `${number(row.busy)}/${number(row.actors)}`, number: true, hint: "busy / all" },
  { name: "p50", title: "Median", cell: (row) => milliseconds(row.p50_ms), number: true },
  { name: "p95", title: "95 %", cell: (row) => milliseconds(row.p95_ms), number: true },
  { name: "p99", title: "99 %", cell: (row) => milliseconds(row.p99_ms), number: true },
  { name: "breaker", title: "Breaker", cell: (row) => (row.breaker ? html`<${State} state=${row.breaker} title=${row.breaker_reason ?? ""} />` : "–") },
  { name: "reason", title: "Why so many actors", cell: (row) => row.why, width: "wide" },
];

const milliseconds = (value) => (value === null || value === undefined ? "–" : duration(value / 1000));

/** The governor's last decision in a process, in words. */
const why = (row, process) => row.governor.find((one) => one.process_id === process.process_id)?.text ?? "–";

function Processes({ row }) {
  return html`
    <${Section} title="In flight by process" id="processes">
      ${row.processes.length
        ? html`<${Table} caption=${`Processes that work on ${row.name}`} columns=${PROCESSES} rows=${row.processes.map((one) => ({ ...one, why: why(row, one) }))} id=${(one) => one.process_id} />`
        : html`<${Empty} title="No process works on it">${row.kind === "push" ? "A server sends its messages once one runs." : html`Start a worker with <code>headrace run</code>, or receive over HTTP. Receivers over HTTP are not listed here.`}<//>`}
    <//>
  `;
}

function Settings({ info }) {
  const { version, ...settings } = info.settings;
  const facts = Object.entries(settings).map(([name, value]) => [name, html`<code>${value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value)}</code>`]);
  return html`<${Section} title="Settings" id="settings">
    <${Facts} facts=${[...facts, ["changes so far", number(version)], ["created", html`<${Time} at=${info.created_at} />`], ["changed", html`<${Time} at=${info.updated_at} />`], ["id", html`<code>${info.id}</code>`]]} />
  <//>`;
}
