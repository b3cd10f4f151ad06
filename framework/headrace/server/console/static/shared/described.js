/** What the server describes. It fills this in when it makes the script, see `headrace.server.console.files`. */

/**
 * @typedef {object} Described
 * @property {string} name of the field in rows of the live state
 * @property {string} title
 * @property {"count" | "seq" | "rate" | "bytes" | "seconds"} unit
 * @property {string} about
 * @property {"" | "warn" | "bad" | "stuck"} tone the color of values other than 0
 * @property {string | null} sort the name by which the server sorts
 */

/** @type {Record<string, Described[]>} the figures of a stream, consumer, process and source */
export const FIGURES = {};
