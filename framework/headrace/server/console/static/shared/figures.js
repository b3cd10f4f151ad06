/** The figures of rows of the live state, in tables and beside each other. */

import { html } from "../vendor/preact.js";
import { FIGURES } from "./described.js";
import { duration, number, rate, short, size } from "./text.js";
import { Figure } from "./ui.js";

const TEXTS = { count: short, seq: number, rate, bytes: size, seconds: duration };
const TONES = { warn: "warn", bad: "bad", stuck: "bad" };

const text = (figure, row) => TEXTS[figure.unit](row[figure.name]);
const tone = (figure, row) => (row[figure.name] ? (TONES[figure.tone] ?? "") : "");

/**
 * The columns of the figures of a kind of rows.
 * @param {string} kind
 * @param {Record<string, (row: any) => any>} [cells] cells that have more to show than the value, by the figures' names
 * @param {string[]} [only] the names of those that are shown
 */
export const figureColumns = (kind, cells = {}, only) =>
  FIGURES[kind]
    .filter((one) => !only || only.includes(one.name))
    .map((one) => ({
      name: one.name, title: one.title, sort: one.sort, hint: one.about, number: true, hide: one.unit === "seq" ? "narrow" : undefined,
      cell: cells[one.name] ?? ((row) => html`<span class=${tone(one, row)}>${text(one, row)}</span>`),
    }));

/** The figures of one row beside each other. `hrefs` are where some lead, by their names. */
export const Figures = ({ kind, row, label, hrefs = {}, children }) => html`<div class="figures" role="group" aria-label=${label}>
  ${FIGURES[kind].map((one) => html`<${Figure} label=${one.title.replace("/s", "")} value=${text(one, row)} unit=${one.unit === "rate" ? "/s" : ""} tone=${tone(one, row)} href=${hrefs[one.name]} />`)}
  ${children}
</div>`;

/** The figures of one row that are known, as facts. @param {string} kind @param {any} row */
export const figureFacts = (kind, row) =>
  FIGURES[kind].map((one) => (row[one.name] === null ? null : [one.title.replace("/s", ""), `${text(one, row)}${one.unit === "rate" ? "/s" : ""}`, one.about]));
