/** Everything at a glance: totals, what needs attention, charts, the busiest streams and consumers. */

import { html, useState } from "../vendor/preact.js";
import { Samples, Sparkline } from "../shared/chart.js";
import { figureColumns } from "../shared/figures.js";
import { useLive } from "../shared/live.js";
import { consumerAt, sourceAt, streamAt, useFilters } from "../shared/router.js";
import { Table } from "../shared/table.js";
import { duration, number, rate, short, size } from "../shared/text.js";
import { BackfillsUnderWay, Empty, Facts, Figure, Heading, Loading, Section, State, Time, may } from "../shared/ui.js";

const CHARTS = [
  ["Messages per second", [["publish_rate", "published"], ["finish_rate", "finished"]], "rate"],
  ["Lag", [["lag", "messages behind"]], "count"],
  ["In flight and parked", [["in_flight", "in flight"], ["parked", "parked"]], "count"],
  ["Dead letters", [["dead_letters", "dead letters"]], "count"],
];

export default function Overview({ live }) {
  const [filters, change] = useFilters({ span: "1h" });
  const streams = useLive("live/streams?sort=rate&desc=true&limit=5", 2000);
  const consumers = useLive("live/consumers?sort=lag&desc=true&limit=5", 2000);
  const found = live.data?.data;
  const sources = useLive(found?.totals.sources && may("admin") ? "live/sources" : null, 3000);
  if (!found) return html`<${Heading} title="Overview" /><${Loading} />`;
  return html`
    <${Heading} title="Overview" />
    <${Totals} totals=${found.totals} />
    <${Attention} items=${found.attention} />
    <${Section} title="The last hours" id="history">
      <${Samples} kind="total" charts=${CHARTS} span=${filters.span} onSpan=${(span) => change({ span }, { replace: true })} />
    <//>
    <div class="two">
      <${Section} title="Busiest streams" id="busiest" acts=${html`<a href="streams">All streams</a>`}>
        ${streams.data?.data.length
          ? html`<${Table} caption="Busiest streams" columns=${STREAMS} rows=${streams.data.data} id=${(row) => row.id} stacked=${false} />`
          : html`<${NoStreams} loading=${!streams.data} />`}
      <//>
      <${Section} title="Furthest behind" id="behind" acts=${html`<a href="consumers?sort=lag&desc=true">All consumers</a>`}>
        ${consumers.data?.data.length
          ? html`<${Table} caption="Consumers furthest behind" columns=${CONSUMERS} rows=${consumers.data.data} id=${(row) => row.id} stacked=${false} />`
          : html`<${Empty} title="No consumers yet">Create one with <code>headrace consumer add STREAM NAME</code>.<//>`}
      <//>
    </div>
    ${sources.data?.data.length
      ? html`<${Section} title="Sources" id="sources" acts=${html`<a href="sources">All sources</a>`}>
          <${Table} caption="Sources, those with problems first" columns=${SOURCES} rows=${sources.data.data.slice(0, 5)} id=${(row) => row.id} />
        <//>`
      : null}
    <${Health} server=${found.server} database=${found.database} at=${found.at} />
  `;
}

function NoStreams({ loading }) {
  if (loading) return html`<${Loading} />`;
  return html`<${Empty} title="No streams yet">
    Create one with <code>headrace stream add orders</code>, and publish to it with <code>headrace publish orders</code>.
  <//>`;
}

function Totals({ totals }) {
  return html`<div class="figures" role="group" aria-label="Totals">
    <${Figure} label="Published" value=${rate(totals.publish_rate)} unit="/s" href="streams?sort=rate&desc=true" />
    <${Figure} label="Finished" value=${rate(totals.finish_rate)} unit="/s" href="consumers?sort=rate&desc=true" />
    <${Figure} label="Lag" value=${short(totals.lag)} href="consumers?sort=lag&desc=true" />
    <${Figure} label="In flight" value=${short(totals.in_flight)} href="consumers?sort=in_flight&desc=true" />
    <${Figure} label="Parked" value=${short(totals.parked)} tone=${totals.parked ? "warn" : ""} href="consumers" />
    <${Figure} label="Blocked" value=${short(totals.blocked)} tone=${totals.blocked ? "bad" : ""} href="consumers" />
    <${Figure} label="Dead letters" value=${short(totals.dead_letters)} tone=${totals.dead_letters ? "bad" : ""} href="consumers?sort=dead_letters&desc=true" />
    <${Figure} label="Actors busy" value=${`${short(totals.busy_actors)} of ${short(totals.actors)}`} href="processes" />
    <${Figure} label="Streams" value=${number(totals.streams)} href="streams" />
    <${Figure} label="Consumers" value=${number(totals.consumers)} href="consumers" />
    <${Figure} label="Sources" value=${number(totals.sources)} href="sources" />
    <${Figure} label="Processes" value=${number(totals.processes)} href="processes" />
  </div>`;
}

/** @param {{kind: string, stream: string | null, name: string}} item */
function placeOf(item) {
  if (item.kind === "stream") return streamAt(item.stream ?? item.name);
  if (item.kind === "source") return sourceAt(item.name);
  if (item.kind === "process") return "processes";
  return item.stream ? consumerAt(item.stream, item.name) : "consumers";
}

/** Rows that need attention, without asking for all of them. */
const FEW = 10;

function Attention({ items }) {
  const [all, setAll] = useState(false);
  const shown = all ? items : items.slice(0, FEW);
  return html`<${Section} title="Needs attention" id="attention">
    ${items.length
      ? html`<ul class="attention">
          ${shown.map(
            (item) => html`<li key=${`${item.kind} ${item.stream} ${item.name} ${item.state}`}>
              <${State} state=${item.state} tone=${item.state === "paused" ? "warn" : undefined} />
              <span class="what"><span class="quiet">${item.kind}</span> <a href=${placeOf(item)}>${item.stream && item.kind !== "stream" ? `${item.stream} / ${item.name}` : item.name}</a></span>
              <span class="why">${item.reason}${item.mend ? html` <code>${item.mend}</code>` : null}</span>
              ${item.since ? html`<span class="when quiet">since <${Time} at=${item.since} /></span>` : null}
            </li>`,
          )}
        </ul>
        ${shown.length < items.length
          ? html`<p><button type="button" class="small" onClick=${() => setAll(true)}>Show all ${items.length}</button></p>`
          : null}`
      : html`<p class="all-well"><i aria-hidden="true">●</i> Nothing. All that runs is well.</p>`}
  <//>`;
}

const STREAMS = [
  { name: "name", title: "Stream", cell: (row) => html`<a href=${streamAt(row.name)}>${row.name}</a>` },
  { name: "rates", title: "Last minute", cell: (row) => html`<${Sparkline} values=${row.rates} label="Published in the last minute" />`, hide: "phone" },
  ...figureColumns("stream", {}, ["publish_rate", "lag"]),
];

const SOURCES = [
  { name: "name", title: "Source", cell: (row) => html`<a href=${sourceAt(row.name)}>${row.name}</a>` },
  { name: "state", title: "State", cell: (row) => html`<${State} state=${row.state || "active"} />` },
  ...figureColumns("source", {}, ["changes_rate", "behind_bytes", "wal_held_bytes"]),
  { name: "backfills", title: "Backfills", cell: (row) => html`<${BackfillsUnderWay} rows=${row.backfills} />` },
];

const CONSUMERS = [
  { name: "name", title: "Consumer", cell: (row) => html`<a href=${consumerAt(row.stream, row.name)}><span class="quiet">${row.stream} /</span> ${row.name}</a>` },
  { name: "state", title: "State", cell: (row) => html`<${State} state=${row.state} title=${row.why || row.reason} />`, hide: "phone" },
  ...figureColumns("consumer", {}, ["lag", "lag_seconds"]),
];

function Health({ server, database, at }) {
  return html`<${Section} title="Health" id="health">
    <${Facts}
      facts=${[
        ["Server", html`<${State} state="ok" tone="good" /> Headrace ${server.version}`],
        ["Server up for", duration(server.uptime_seconds)],
        ["Server processes", number(server.processes)],
        ["Database", html`<${State} state=${database.reachable ? "ok" : "away"} tone=${database.reachable ? "good" : "bad"} /> ${database.version ? `PostgreSQL ${database.version}` : ""}`],
        ["Database size", size(database.size_bytes)],
        ["Clock offset", database.clock_offset_seconds === null ? "–" : duration(Math.abs(database.clock_offset_seconds))],
        ["As of", html`<${Time} at=${at} />`],
      ]}
    />
  <//>`;
}
