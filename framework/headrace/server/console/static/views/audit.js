/** The audit log: who has changed what, when, and by which way. */

import { html, useEffect, useState } from "../vendor/preact.js";
import { cli, get, query } from "../shared/api.js";
import { useFilters } from "../shared/router.js";
import { Table } from "../shared/table.js";
import { words, Copies, Empty, Failure, Heading, Loading, Time, may } from "../shared/ui.js";

const LIMIT = 50;
const FIELDS = [["actor", "Who"], ["action", "Action"], ["stream", "Stream"], ["since", "Since"], ["until", "Before"]];

/** Who has made a change. The role is that of the database session, which no client chooses, and a name without a server is
 * what that session has said. */
const who = (row, role) => html`${row.actor ?? html`<span class="quiet">${row.via === "app" ? "code" : "no token"}</span>`}${role && row.role !== role
  ? html` <span class=${["http", "console"].includes(row.via) ? "warn" : "quiet"} title="The entry was written by a session of this database role, and not by one of this server's.">as role ${row.role}</span>`
  : null}`;

const COLUMNS = (role) => [
  { name: "at", title: "When", cell: (row) => html`<${Time} at=${row.at} />` },
  { name: "actor", title: "Who", cell: (row) => who(row, role) },
  { name: "via", title: "Via", cell: (row) => row.via },
  { name: "action", title: "Action", cell: (row) => words(row.action), width: "key-column" },
  { name: "object", title: "Of", cell: (row) => (row.object ? html`<span class="quiet">${words(row.object.kind)}</span> ${row.object.name}` : (row.stream ?? "–")) },
  { name: "details", title: "Details", cell: (row) => html`<code class="brief">${row.details && Object.keys(row.details).length ? JSON.stringify(row.details) : "–"}</code>`, width: "wide" },
];

export default function Audit({ live }) {
  const role = live.data?.data.database.role ?? null;
  const [filters, change] = useFilters({ actor: "", action: "", stream: "", since: "", until: "" });
  const [draft, setDraft] = useState(filters);
  const [state, setState] = useState({ rows: null, next: null, error: null });
  const [round, setRound] = useState(0);
  const key = JSON.stringify(filters);
  useEffect(() => setDraft(filters), [key]);
  const asked = { ...filters, since: time(filters.since), until: time(filters.until), limit: LIMIT };
  const target = `audit${query(asked)}`;
  useEffect(() => {
    const aborting = new AbortController();
    get(target, aborting.signal).then(
      (answer) => setState({ rows: answer.data, next: answer.next ?? null, error: null }),
      (error) => aborting.signal.aborted || setState((old) => ({ ...old, error })),
    );
    return () => aborting.abort();
  }, [target, round]);
  const more = async () => {
    const answer = await get(`audit${query({ ...asked, before: state.next })}`);
    setState((old) => ({ rows: [...old.rows, ...answer.data], next: answer.next ?? null, error: null }));
  };
  const onSubmit = (event) => {
    event.preventDefault();
    change(Object.fromEntries(FIELDS.map(([name]) => [name, draft[name].trim()])));
  };
  return html`
    <${Heading} title="Audit log">
      <button type="button" onClick=${() => setRound(round + 1)}>Reload</button>
      <${Copies} target=${target} command=${cli("audit", [], { actor: filters.actor, action: filters.action, stream: filters.stream })} />
    <//>
    <form class="filters" role="search" aria-label="Filter the audit log" onSubmit=${onSubmit}>
      ${FIELDS.map(([name, title], index) => html`<label class=${index < 3 ? "grow" : ""}>${title} <input type=${index < 3 ? "search" : "datetime-local"} data-search=${index === 0 ? "" : undefined} value=${draft[name]} onInput=${(event) => setDraft({ ...draft, [name]: event.target.value })} /></label>`)}
      <button type="submit" class="primary">Filter</button>
    </form>
    ${may("admin") ? null : html`<p class="quiet">You see the entries of the streams that you administer. Name one above.</p>`}
    <${Failure} error=${state.error} again=${() => setRound(round + 1)} />
    ${state.rows === null
      ? state.error ? null : html`<${Loading} />`
      : state.rows.length
        ? html`<${Table} caption="Changes, the newest first" columns=${COLUMNS(role)} rows=${state.rows} id=${(row) => row.id} />`
        : html`<${Empty} title="No entries">Every change leaves an entry, whether it is made here, over HTTP or on the command line.<//>`}
    ${state.next === null ? null : html`<p><button type="button" onClick=${more}>Show older entries</button></p>`}
  `;
}

/** @param {string} text a local time */
const time = (text) => (text ? new Date(text).toISOString() : "");
