/** Tables: with captions, headers that sort, and rows that can be selected. */

import { html } from "../vendor/preact.js";

/**
 * @typedef {object} Column
 * @property {string} name
 * @property {any} title
 * @property {(row: any) => any} cell
 * @property {boolean} [number] aligned to the right
 * @property {string} [sort] the name by which the server sorts
 * @property {string} [hide] "phone": left out on a phone, "narrow": in any window of up to 1,400 pixels
 * @property {string} [width] a class
 * @property {string} [hint]
 */

/**
 * @param {{caption: string, columns: Column[], rows: any[], id: (row: any) => string | number, sort?: string, desc?: boolean,
 *   onSort?: (name: string, desc: boolean) => void, selected?: Set<any>, onSelect?: (selected: Set<any>) => void,
 *   selectLabel?: (row: any) => string, more?: (row: any) => any, tone?: (row: any) => string, stacked?: boolean}} props
 */
export function Table(props) {
  const { caption, columns, rows, id, selected, tone, more, stacked = true } = props;
  const width = columns.length + (selected ? 1 : 0);
  return html`<div class="table-scroll" tabindex="0" role="region" aria-label=${caption}>
    <table role="table" class=${stacked ? "stacked" : ""}>
      <caption>${caption}</caption>
      <thead role="rowgroup">
        <tr role="row">
          ${selected ? html`<th role="columnheader" class="select" scope="col"><${SelectAll} ...${props} /></th>` : null}
          ${columns.map((column) => html`<${Head} column=${column} ...${props} />`)}
        </tr>
      </thead>
      <tbody role="rowgroup">
        ${rows.map((row) => [
          html`<tr role="row" key=${id(row)} class=${tone?.(row) ?? ""}>
            ${selected ? html`<td role="cell" class="select"><${Select} row=${row} ...${props} /></td>` : null}
            ${columns.map((column, index) => html`<${Cell} column=${column} row=${row} first=${index === 0} />`)}
          </tr>`,
          more?.(row) ? html`<tr role="row" key=${`${id(row)}-more`} class="more"><td role="cell" colspan=${width}>${more(row)}</td></tr>` : null,
        ])}
      </tbody>
    </table>
  </div>`;
}

function Cell({ column, row, first }) {
  const kind = [column.number ? "number" : "", column.hide ? `hide-${column.hide}` : "", column.width ?? ""].join(" ");
  if (first) return html`<th role="rowheader" scope="row" class=${kind}>${column.cell(row)}</th>`;
  return html`<td role="cell" class=${kind} data-label=${column.title}>${column.cell(row)}</td>`;
}

function Head({ column, sort, desc, onSort }) {
  const kind = [column.number ? "number" : "", column.hide ? `hide-${column.hide}` : "", column.width ?? ""].join(" ");
  if (!column.sort || !onSort) return html`<th role="columnheader" scope="col" class=${kind} title=${column.hint}>${column.title}</th>`;
  const sorted = sort === column.sort;
  const order = sorted ? (desc ? "descending" : "ascending") : undefined;
  return html`<th role="columnheader" scope="col" class=${kind} aria-sort=${order} title=${column.hint}>
    <button type="button" class="sort" onClick=${() => onSort(column.sort, sorted ? !desc : Boolean(column.number))}>
      ${column.title}<i aria-hidden="true">${sorted ? (desc ? " ↓" : " ↑") : ""}</i>
    </button>
  </th>`;
}

function SelectAll({ rows, id, selected, onSelect, caption }) {
  const ids = rows.map(id);
  const all = ids.length > 0 && ids.every((one) => selected.has(one));
  return html`<input
    type="checkbox"
    checked=${all}
    aria-label=${`Select all of ${caption}`}
    onChange=${() => onSelect(new Set(all ? [] : ids))}
  />`;
}

function Select({ row, id, selected, onSelect, selectLabel }) {
  const own = id(row);
  const toggle = () => {
    const next = new Set(selected);
    if (!next.delete(own)) next.add(own);
    onSelect(next);
  };
  return html`<input type="checkbox" checked=${selected.has(own)} aria-label=${selectLabel(row)} onChange=${toggle} />`;
}

/** Links to the pages of a list that has an offset. */
export function Pages({ total, offset, limit, go }) {
  if (total <= limit && offset === 0) return null;
  const last = Math.min(offset + limit, total);
  return html`<nav class="pages" aria-label="Pages">
    <button type="button" class="small" disabled=${offset === 0} onClick=${() => go(Math.max(0, offset - limit))}>Previous</button>
    <span>${offset + 1}–${last} of ${total}</span>
    <button type="button" class="small" disabled=${last >= total} onClick=${() => go(offset + limit)}>Next</button>
  </nav>`;
}

/** Links through a list whose pages begin after a place. @param {{answer: any, after: string, change: (changed: any) => void}} props */
export function Further({ answer, after, change }) {
  const next = answer?.next ?? null;
  if (next === null && !after) return null;
  return html`<nav class="pages" aria-label="Pages">
    <button type="button" class="small" disabled=${!after} onClick=${() => change({ after: "" })}>First page</button>
    <button type="button" class="small" disabled=${next === null} onClick=${() => change({ after: next })}>Next</button>
  </nav>`;
}
