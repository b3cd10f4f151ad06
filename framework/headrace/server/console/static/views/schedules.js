/** All schedules of periodic messages. */

import { html } from "../vendor/preact.js";
import { cli, query } from "../shared/api.js";
import { useLive } from "../shared/live.js";
import { scheduleAt, streamAt, useFilters } from "../shared/router.js";
import { Further, Table } from "../shared/table.js";
import { number } from "../shared/text.js";
import { Copies, Empty, Failure, Heading, Loading, State, Time } from "../shared/ui.js";

const LIMIT = 100;

const COLUMNS = [
  { name: "name", title: "Schedule", cell: (row) => html`<a href=${scheduleAt(row.stream, row.name)}>${row.name}</a>` },
  { name: "state", title: "State", cell: (row) => html`<${State} state=${row.state} />` },
  { name: "stream", title: "Publishes to", cell: (row) => html`<a href=${streamAt(row.stream)}>${row.stream}</a>` },
  { name: "every", title: "Every", cell: (row) => html`<${Every} settings=${row.settings} />` },
  { name: "next", title: "Next", cell: (row) => html`<${Next} at=${row.next_at} state=${row.state} />` },
  { name: "last", title: "Last", cell: (row) => html`<${Time} at=${row.last_run_at} ago=${true} />` },
  { name: "messages", title: "Messages", cell: (row) => number(row.messages), number: true },
];

/** A cron expression with its zone, or an interval. */
export const Every = ({ settings }) => html`<code>${settings.every}</code>${settings.zone ? html` <span class="quiet">${settings.zone}</span>` : null}`;

/** When a schedule is due next. One that does not run is due at no time. */
export const Next = ({ at, state }) => (state === "running" ? html`<${Time} at=${at} ago=${true} />` : html`<span class="quiet">–</span>`);

export default function Schedules() {
  const [filters, change] = useFilters({ after: "" });
  const target = `schedules${query({ ...filters, limit: LIMIT })}`;
  const live = useLive(target, 3000);
  const rows = live.data?.data;
  return html`
    <${Heading} title="Schedules"><${Copies} target=${target} command=${cli("schedule ls", [])} /><//>
    <${Failure} error=${live.data ? null : live.error} again=${live.again} />
    ${!rows
      ? live.error ? null : html`<${Loading} />`
      : rows.length
        ? html`<${Table} caption="Schedules" columns=${COLUMNS} rows=${rows} id=${(row) => `${row.stream}:${row.name}`} />`
        : html`<${Empty} title="No schedules">Declare one in your app with <code>app.every("@daily", "reports", …)</code>.<//>`}
    <${Further} answer=${live.data} after=${filters.after} change=${change} />
  `;
}
