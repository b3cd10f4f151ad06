/** The server's descriptions. It fills this in when it makes the script, see `headrace.server.console.files`. */

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

/**
 * @typedef {object} Setting
 * @property {string} name in the API
 * @property {string} about what it means, with its limits
 * @property {"number" | "text" | "list" | "choice" | "boolean" | "delays"} kind
 * @property {string[]} choices
 * @property {string | null} unit
 * @property {boolean} optional may be empty, which means none
 */

/** @type {Record<string, Setting[]>} the settings of a stream and a consumer that can be changed */
export const SETTINGS = {};
