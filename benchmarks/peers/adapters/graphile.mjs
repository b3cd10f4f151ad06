// Graphile Worker: a task, `addJobs` for batches, its local queue and batched completion, as its page on performance
// recommends, and a job queue for each key where order counts.

import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { Pool } = require("pg");

const TASK = "handle";
const quiet = new Logger(() => (level, text) => level === "error" && console.error(text));

export class Peer {
  static SETTINGS = { concurrency: 64, local_queue: 500, complete_ms: 0, pool: 20, poll_ms: 1000 };

  constructor({ url, ordered }, settings) {
    Object.assign(this, { url, ordered, settings });
  }

  async setUp() {
    await this.open();
    await this.utils.migrate();
    await this.close();
  }

  async open() {
    this.pool = new Pool({ connectionString: this.url, max: 8 });
    this.utils = await makeWorkerUtils({ pgPool: this.pool, logger: quiet });
  }

  async close() {
    await this.utils.release();
    await this.pool.end();
  }

  spec(message, delay) {
    return {
      ...(this.ordered && { queueName: message.key }),
      ...(delay && { runAt: new Date(Date.now() + delay * 1000) }),
    };
  }

  async publish(messages, delay) {
    if (messages.length === 1) {
      await this.utils.addJob(TASK, messages[0].order, this.spec(messages[0], delay));
    } else {
      await this.utils.addJobs(
        messages.map((one) => ({ identifier: TASK, payload: one.order, ...this.spec(one, delay) })),
      );
    }
  }

  async openTransaction(messages) {
    const client = await this.pool.connect();
    await client.query("begin");
    for (const one of messages)
      await client.query("select graphile_worker.add_job($1, $2::json, queue_name := $3)", [
        TASK,
        JSON.stringify(one.order),
        this.ordered ? one.key : null,
      ]);
    return async () => {
      await client.query("commit");
      client.release();
    };
  }

  async remaining() {
    const { rows } = await this.pool.query(
      "select count(*)::int as count from graphile_worker.jobs where run_at < now() + interval '1 hour'",
    );
    return rows[0].count;
  }

  async consume(handler, reader, stopped) {
    const runner = await run({
      logger: quiet,
      noHandleSignals: true,
      taskList: { [TASK]: (order) => handler.handle(order) },
      preset: {
        worker: {
          connectionString: this.url,
          concurrentJobs: this.settings.concurrency,
          maxPoolSize: this.settings.pool,
          pollInterval: this.settings.poll_ms,
          // A local queue pauses after a fetch that comes back short, as it does where each key has one job in work.
          ...(!this.ordered && { localQueue: { size: this.settings.local_queue } }),
          completeJobBatchDelay: this.settings.complete_ms,
          failJobBatchDelay: this.settings.complete_ms,
        },
      },
    });
    await stopped;
    await runner.stop();
  }
}
