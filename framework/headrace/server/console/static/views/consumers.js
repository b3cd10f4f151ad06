/** All consumers of all streams. */

import { html } from "../vendor/preact.js";
import { cli, query } from "../shared/api.js";
import { Sparkline } from "../shared/chart.js";
import { figureColumns } from "../shared/figures.js";
import { useLive } from "../shared/live.js";
import { consumerAt, streamAt, useFilters } from "../shared/router.js";
import { Pages, Table } from "../shared/table.js";
import { number, short } from "../shared/text.js";
import { Copies, Empty, Failure, Heading, Loading, State } from "../shared/ui.js";

const LIMIT = 50;
const STATES = ["ok", "paused", "breaker", "blocked", "failing", "growing", "unattended", "full"];

/** Columns of consumers. Lists of one stream leave out its name. @param {boolean} named */
export const consumerColumns = (named) => [
  {
    name: "name", title: "Consumer", sort: "name",
    cell: (row) => html`${named ? html`<a class="quiet" href=${streamAt(row.stream)}>${row.stream}</a><span class="quiet"> / </span>` : null}<a href=${consumerAt(row.stream, row.name)}>${row.name}</a>`,
  },
  { name: "state", title: "State", cell: (row) => html`<${State} state=${row.state} title=${row.why || row.reason} />` },
  { name: "kind", title: "Kind", cell: (row) => row.kind, hide: "narrow" },
  { name: "rates", title: "Last minute", cell: (row) => html`<${Sparkline} values=${row.rates} label=${`Finished by ${row.name} in the last minute`} />`, hide: "phone" },
  ...figureColumns("consumer", {
    dead_letters: (row) => (row.dead_letters ? html`<a class="bad" href=${`${consumerAt(row.stream, row.name)}/dead-letters`}>${short(row.dead_letters)}</a>` : "0"),
  }),
  { name: "actors", title: "Actors", cell: (row) => (row.actors === null ? "–" : `${short(row.busy_actors)}/${short(row.actors)}`), number: true, hint: "busy / all" },
];

export default function Consumers() {
  const [filters, change] = useFilters({ q: "", state: "", stream: "", sort: "name", desc: "false", offset: "0" });
  const live = useLive(`live/consumers${query({ ...filters, limit: LIMIT })}`);
  const search = (changed) => change({ ...changed, offset: 0 }, { replace: true });
  return html`
    <${Heading} title="Consumers"><${Copies} target="consumers" command=${cli("consumer ls", [])} /><//>
    <div class="filters" role="search">
      <label class="grow"><span class="hidden">Name contains</span>
        <input type="search" data-search placeholder="Name contains …" value=${filters.q} onInput=${(event) => search({ q: event.target.value })} />
      </label>
      <label>Stream <input class="name" value=${filters.stream} onChange=${(event) => search({ stream: event.target.value.trim() })} /></label>
      <label>State
        <select value=${filters.state} onChange=${(event) => search({ state: event.target.value })}>
          <option value="">any</option>
          ${STATES.map((state) => html`<option value=${state}>${state}</option>`)}
        </select>
      </label>
      <span class="quiet" role="status">${live.data ? `${number(live.data.total)} found` : ""}</span>
    </div>
    <${Failure} error=${live.data ? null : live.error} />
    <${List} live=${live} filters=${filters} change=${change} />
  `;
}

function List({ live, filters, change }) {
  if (!live.data) return live.error ? null : html`<${Loading} />`;
  if (!live.data.data.length) {
    return filters.q || filters.state || filters.stream
      ? html`<${Empty} title="No consumer is like that">Take a filter away to see more.<//>`
      : html`<${Empty} title="No consumers yet">
          Create one with <code>headrace consumer add STREAM NAME</code>, or declare one in your app with <code>@app.consumer</code>.
        <//>`;
  }
  return html`
    <${Table} caption="Consumers" columns=${consumerColumns(true)} rows=${live.data.data} id=${(row) => row.id}
      sort=${filters.sort} desc=${filters.desc === "true"} onSort=${(sort, desc) => change({ sort, desc, offset: 0 })} />
    <${Pages} total=${live.data.total} offset=${Number(filters.offset)} limit=${LIMIT} go=${(offset) => change({ offset })} />
  `;
}
