// The process of a peer in JavaScript: `node program.mjs ADAPTER JSON`, with the protocol of program.py.

import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(import.meta.url);
const { Pool } = require("pg");

const SCATTER = 7919; // as in messages.py
const TEXT = Array.from({ length: 1 << 16 }, () =>
  "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ".charAt(Math.random() * 52),
).join("");
const PROGRESS_EVERY = 20; // milliseconds
const WORK = 1; // milliseconds that a handler of `work` awaits

function message(number, keys, note, at) {
  const key = Number((BigInt(number) * BigInt(SCATTER)) % BigInt(keys));
  const start = (number * 31) % (TEXT.length - note);
  const lines = [
    { sku: `sku-${String(number % 997).padStart(5, "0")}`, quantity: 1 + (number % 9), cents: 1999 },
    { sku: `sku-${String(number % 991).padStart(5, "0")}`, quantity: 1, cents: 450 },
  ];
  return { number, key: `orders.${key}`, order: { number, at, key, lines, note: TEXT.slice(start, start + note) } };
}

function made(first, count, keys, note) {
  const now = Number(process.hrtime.bigint());
  return Array.from({ length: count }, (_, index) => message(first + index, keys, note, now));
}

// The handler of a job, and its observations: see recorder.py.
class Handler {
  constructor(mode, pool, seconds, held) {
    this.mode = mode;
    this.entries = [];
    this.handled = 0;
    this.released = new Promise((resolve) => (this.release = resolve));
    this.pool = pool;
    this.seconds = seconds;
    this.held = held;
    this.failed = false;
  }

  note(number, at) {
    this.entries.push(BigInt(number), process.hrtime.bigint(), BigInt(at));
  }

  async handle(order, write) {
    if (this.mode === "fail" && order.number === 0 && !this.failed) {
      this.failed = true;
      throw new Error("the first attempt of message 0 fails");
    }
    this.note(order.number, order.at);
    if (this.mode === "work") await sleep(WORK);
    else if (this.mode === "slow") await sleep(this.seconds * 1000);
    else if (this.mode === "hold" && order.number === this.held) await this.released;
    else if (this.mode === "effect") {
      write ??= (text, values) => this.pool.query(text, values);
      await write("insert into effects (number) values ($1)", [order.number]);
    }
    if (["work", "slow"].includes(this.mode) || (this.mode === "hold" && order.number === this.held))
      this.note(~order.number, order.at);
    this.handled += 1;
  }

  async writeAll(orders, write) {
    for (const order of orders) this.note(order.number, order.at);
    await write("insert into effects (number) select * from unnest($1::bigint[])", [orders.map((one) => one.number)]);
    this.handled += orders.length;
  }
}

class Program {
  constructor(peer) {
    this.peer = peer;
    this.stopped = new Promise((resolve) => (this.stopping = resolve));
  }

  async opened() {
    this.open ??= this.peer.open();
    await this.open;
  }

  async set_up() {
    await this.peer.setUp();
    return {};
  }

  async begin() {
    return {};
  }

  async publish({ first, most, seconds, batch, keys, note, delay }) {
    await this.opened();
    const start = process.hrtime.bigint();
    const end = start + BigInt(Math.round(seconds * 1e9));
    let count = 0;
    while (count < most && process.hrtime.bigint() < end) {
      const size = Math.min(batch, most - count);
      await this.peer.publish(made(first + count, size, keys, note), delay);
      count += size;
    }
    return { count, start: Number(start), end: Number(process.hrtime.bigint()) };
  }

  async pace({ first, rate, batch, seconds, keys, note }) {
    await this.opened();
    const ticks = Math.floor((rate * seconds) / batch);
    const start = Number(process.hrtime.bigint());
    const calls = [];
    let late = 0;
    for (let tick = 0; tick < ticks; tick++) {
      const due = start + tick * (batch / rate) * 1e9;
      const ahead = (due - Number(process.hrtime.bigint())) / 1e6;
      if (ahead >= 1) await sleep(Math.floor(ahead)); // a timer of Node.js has milliseconds
      while (Number(process.hrtime.bigint()) < due) await new Promise(setImmediate);
      late = Math.max(late, Number(process.hrtime.bigint()) - due);
      calls.push(this.peer.publish(made(first + tick * batch, batch, keys, note)));
    }
    const end = start + ticks * (batch / rate) * 1e9;
    await Promise.all(calls);
    await sleep(Math.max(0, (end - Number(process.hrtime.bigint())) / 1e6));
    return { count: ticks * batch, start, end, late_ms: late / 1e6 };
  }

  async late({ first, keys, note }) {
    await this.opened();
    this.commit_ = await this.peer.openTransaction(made(first, 1, keys, note));
    await this.peer.publish(made(first + 1, 1, keys, note));
    return { waits: false };
  }

  async commit() {
    await this.commit_();
    return {};
  }

  async remaining() {
    await this.opened();
    return { remaining: await this.peer.remaining() };
  }

  async stored() {
    await this.opened();
    return { stored: await this.peer.remaining() };
  }

  async close() {
    await this.peer.close();
    this.open = undefined;
    return {};
  }

  async consume({ reader, mode, trace, effects, seconds = 0, held = 0 }) {
    this.trace = trace;
    this.pool = effects ? new Pool({ connectionString: effects, max: 16 }) : undefined;
    this.handler = new Handler(mode, this.pool, seconds, held);
    this.consuming = this.peer.consume(this.handler, reader, this.stopped);
    this.consuming.catch((error) => say({ failed: String(error.stack) }));
    let last = 0;
    this.progress = setInterval(() => {
      if (this.handler.handled !== last) say({ handled: (last = this.handler.handled) });
    }, PROGRESS_EVERY);
    return {};
  }

  async count() {
    return { handled: this.handler.handled };
  }

  async release() {
    this.handler.release();
    return {};
  }

  async stop() {
    this.stopping();
    await this.consuming.catch(() => {});
    clearInterval(this.progress);
    await this.pool?.end();
    writeFileSync(this.trace, Buffer.from(new BigInt64Array(this.handler.entries).buffer));
    return { handled: this.handler.handled };
  }
}

function say(answer) {
  process.stdout.write(JSON.stringify(answer) + "\n");
}

const given = JSON.parse(process.argv[3]);
const { Peer } = await import(`./${process.argv[2]}`);
const settings = { ...Peer.SETTINGS };
for (const [name, value] of Object.entries(given.settings)) {
  if (!(name in settings)) throw new Error(`Unknown option ${name}. There are ${Object.keys(settings).join(", ")}.`);
  settings[name] = typeof settings[name] === "number" ? Number(value) : value;
}
const program = new Program(new Peer(given, settings));
say({ done: "start", settings });
const lines = createInterface({ input: process.stdin });
lines.on("close", () => process.exit(0));
let last = Promise.resolve();
lines.on("line", (line) => {
  const { do: name, ...rest } = JSON.parse(line);
  last = last.then(async () => {
    try {
      say({ done: name, ...(await program[name](rest)) });
    } catch (error) {
      say({ failed: String(error.stack) });
    }
  });
});
await once(lines, "close");
