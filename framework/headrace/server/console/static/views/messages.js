/** The messages of a stream: newest first, from a seq or a time, of a key, and the search by filter and condition. */

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { cli, get, path, query } from "../shared/api.js";
import { messageAt, useFilters } from "../shared/router.js";
import { Table } from "../shared/table.js";
import { brief, counted, number } from "../shared/text.js";
import { Copies, Empty, Failure, Loading, Time } from "../shared/ui.js";

const LIMIT = 50;
const NOTHING = { rows: [], examined: 0, position: null, more: false, remaining: null, running: false, error: null };

const COLUMNS = (stream) => [
  { name: "seq", title: "Seq", cell: (row) => html`<a href=${messageAt(stream, row.seq)}>${number(row.seq)}</a>` },
  { name: "key", title: "Key", cell: (row) => html`<code class="key">${row.key}</code>`, width: "key-column" },
  { name: "at", title: "Published", cell: (row) => html`<${Time} at=${row.inserted_at} />` },
  { name: "data", title: "Data", cell: (row) => html`<code class="brief">${brief(row.data)}</code>`, width: "wide" },
];

export function Messages({ stream, lastSeq }) {
  const [filters, change] = useFilters({ filter: "", where: "", key: "", from: "" });
  const [draft, setDraft] = useState(filters);
  useEffect(() => setDraft(filters), [filters.filter, filters.where, filters.key, filters.from]);
  const edit = (name) => (event) => setDraft({ ...draft, [name]: event.target.value });
  const onSubmit = (event) => {
    event.preventDefault();
    change({ filter: draft.filter.trim(), where: draft.where.trim(), key: draft.key, from: draft.from.trim() });
  };
  const filtered = filters.filter || filters.where || filters.key || filters.from;
  return html`
    <form class="filters" role="search" onSubmit=${onSubmit} aria-label="Search messages">
      <label class="grow">Keys <input type="search" data-search placeholder="orders.us.>" value=${draft.filter} onInput=${edit("filter")} /></label>
      <label class="grow">Condition <input type="search" placeholder="data.total > 100" value=${draft.where} onInput=${edit("where")} /></label>
      <label class="grow">Exactly the key <input type="search" value=${draft.key} onInput=${edit("key")} /></label>
      <label>From seq or time <input type="search" class="from" placeholder="4711 or 2030-01-31T12:00Z" value=${draft.from} onInput=${edit("from")} /></label>
      <button type="submit" class="primary">Search</button>
      ${filtered ? html`<button type="button" onClick=${() => change({ filter: "", where: "", key: "", from: "" })}>Clear</button>` : null}
    </form>
    <${Found} key=${JSON.stringify([stream, filters])} stream=${stream} filters=${filters} lastSeq=${lastSeq} />
  `;
}

/** A page is one request, unless there is a filter or a condition. Then it is a search, step by step. */
function Found({ stream, filters, lastSeq }) {
  const searching = Boolean(filters.filter || filters.where || (filters.from && !/^\d+$/.test(filters.from)));
  const [state, setState] = useState({ ...NOTHING, running: true });
  const aborting = useRef(null);
  const [newest, setNewest] = useState(null);

  async function load(old) {
    aborting.current?.abort();
    const own = (aborting.current = new AbortController());
    const show = (changed) => !own.signal.aborted && setState((before) => ({ ...before, ...changed }));
    setState({ ...old, running: true, error: null });
    try {
      if (searching) await search(stream, filters, old, show, own.signal);
      else show(await page(stream, filters, old, own.signal));
    } catch (error) {
      show({ error });
    }
    show({ running: false });
  }

  useEffect(() => {
    load(NOTHING);
    setNewest(lastSeq);
    return () => aborting.current?.abort();
  }, []);
  const stop = () => {
    aborting.current?.abort();
    setState((old) => ({ ...old, running: false }));
  };
  const again = () => {
    setNewest(lastSeq);
    load(NOTHING);
  };
  const shown = Math.max(newest, state.rows[0]?.seq ?? 0); // the messages may be newer than the live state when they were loaded
  const fresh = newest !== null && lastSeq > shown && !filters.from && !searching;
  const options = { filter: filters.filter || filters.key || undefined, where: filters.where || undefined, from: filters.from || undefined };
  return html`
    <div class="list-head">
      <span role="status">${progress(state, searching)}</span>
      ${state.running && searching ? html`<button type="button" class="small" onClick=${stop}>Cancel the search</button>` : null}
      ${fresh ? html`<button type="button" class="small" onClick=${again}>Show ${counted(lastSeq - shown, "newer message")}</button>` : null}
      <${Copies} target=${first(stream, filters)} command=${cli("stream view", [stream], filters.from ? options : { ...options, last: LIMIT })} />
    </div>
    <${Failure} error=${state.error} again=${again} />
    ${state.rows.length
      ? html`<${Table} caption=${`Messages of ${stream}`} columns=${COLUMNS(stream)} rows=${state.rows} id=${(row) => row.seq} />`
      : state.running ? html`<${Loading} />` : state.error ? null : html`<${Nothing} stream=${stream} filtered=${searching || filters.key || filters.from} more=${state.more} />`}
    ${state.more && !state.running ? html`<p><button type="button" onClick=${() => load(state)}>${searching ? "Go on with the search" : "Show more"}</button></p>` : null}
  `;
}

function Nothing({ stream, filtered, more }) {
  if (filtered) return html`<${Empty} title=${more ? "Nothing found so far" : "No message matches"}>Change the filter or the condition. A filter such as <code>orders.></code> matches all keys that begin with <code>orders.</code><//>`;
  return html`<${Empty} title="The stream has no messages">Publish one above, or with <code>headrace publish ${stream}</code>.<//>`;
}

function progress(state, searching) {
  if (!searching) return state.rows.length ? counted(state.rows.length, "message") : "";
  const parts = [`${counted(state.rows.length, "message")} found, ${number(state.examined)} examined`];
  if (state.position !== null && state.more) parts.push(`at seq ${number(state.position)}`);
  if (state.remaining) parts.push(`about ${number(state.remaining)} left`);
  return parts.join(", ") + (state.running ? " …" : ".");
}

/** The address of the first page. */
function first(stream, filters) {
  if (filters.filter || filters.where || (filters.from && !/^\d+$/.test(filters.from))) return path`streams/${stream}/search` + query(step(filters, null));
  if (filters.from) return path`streams/${stream}/messages` + query({ start_seq: filters.from, key: filters.key, limit: LIMIT });
  return path`streams/${stream}/messages` + query({ sort: "seq_desc", key: filters.key, limit: LIMIT });
}

async function page(stream, filters, old, signal) {
  const more = old.position === null ? "" : `&after=${old.position}`;
  const answer = await get(first(stream, filters) + more, signal);
  return { rows: [...old.rows, ...answer.data], more: answer.next !== undefined, position: answer.next ?? null };
}

/** The parameters of a step of the search: backwards from the end, or forwards from a place. */
function step(filters, position) {
  const seq = /^\d+$/.test(filters.from);
  const forwards = Boolean(filters.from);
  return {
    filter: filters.filter || filters.key, where: filters.where, limit: LIMIT,
    since: filters.from && !seq ? time(filters.from) : undefined,
    after: forwards ? (position ?? (seq ? Number(filters.from) - 1 : 0)) : undefined,
    before: forwards ? undefined : (position ?? undefined),
  };
}

/** @param {string} text a time, which is local without a zone */
function time(text) {
  const found = new Date(text);
  return Number.isNaN(found.getTime()) ? text : found.toISOString();
}

async function search(stream, filters, old, show, signal) {
  let { rows, examined, position } = old;
  const wanted = rows.length + LIMIT;
  for (let more = true; more && rows.length < wanted; ) {
    const answer = await get(path`streams/${stream}/search` + query(step(filters, position)), signal);
    rows = [...rows, ...answer.data];
    examined += answer.examined;
    position = answer.position;
    more = answer.more;
    show({ rows, examined, position, more, remaining: answer.remaining });
  }
}
