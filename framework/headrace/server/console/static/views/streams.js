/** All streams. */

import { html } from "../vendor/preact.js";
import { Sparkline } from "../shared/chart.js";
import { cli, query } from "../shared/api.js";
import { figureColumns } from "../shared/figures.js";
import { useLive } from "../shared/live.js";
import { streamAt, useFilters } from "../shared/router.js";
import { Pages, Table } from "../shared/table.js";
import { number } from "../shared/text.js";
import { Copies, Empty, Failure, Heading, Loading, State } from "../shared/ui.js";

const LIMIT = 50;

const COLUMNS = [
  { name: "name", title: "Stream", sort: "name", cell: (row) => html`<a href=${streamAt(row.name)}>${row.name}</a>` },
  { name: "state", title: "State", cell: (row) => html`<${State} state=${row.state} />` },
  { name: "rates", title: "Last minute", cell: (row) => html`<${Sparkline} values=${row.rates} label=${`Published to ${row.name} in the last minute`} />`, hide: "phone" },
  ...figureColumns("stream"),
];

export default function Streams() {
  const [filters, change] = useFilters({ q: "", sort: "name", desc: "false", offset: "0" });
  const target = `live/streams${query({ ...filters, limit: LIMIT })}`;
  const live = useLive(target);
  return html`
    <${Heading} title="Streams"><${Copies} target="streams" command=${cli("stream ls", [])} /><//>
    <div class="filters" role="search">
      <label class="grow"><span class="hidden">Name contains</span>
        <input type="search" data-search placeholder="Name contains …" value=${filters.q}
          onInput=${(event) => change({ q: event.target.value, offset: 0 }, { replace: true })} />
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
    return filters.q
      ? html`<${Empty} title="No stream has such a name">Look for another part of the name.<//>`
      : html`<${Empty} title="No streams yet">Create one with <code>headrace stream add orders</code>.<//>`;
  }
  return html`
    <${Table} caption="Streams" columns=${COLUMNS} rows=${live.data.data} id=${(row) => row.id}
      sort=${filters.sort} desc=${filters.desc === "true"} onSort=${(sort, desc) => change({ sort, desc, offset: 0 })} />
    <${Pages} total=${live.data.total} offset=${Number(filters.offset)} limit=${LIMIT} go=${(offset) => change({ offset })} />
  `;
}
