// pg-boss: a partitioned queue that notifies, `insert` for batches, workers that fetch batches without a pause, and the
// policy `key_strict_fifo` where order counts. A transactional worker commits its own rows with the completion.

import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const { PgBoss } = require("pg-boss");
const { Pool } = require("pg");

const EVENT = "order-created";
const queueOf = (reader) => `orders${reader}`;

export class Peer {
  static SETTINGS = {
    batch: 100,
    ordered_batch: 5, // a fetch that comes back short is followed by a pause, and a key has one job in work
    local_concurrency: 4,
    transactions: 7, // workers where each ack has a transaction of its own
    pool: 20,
    poll_seconds: 0.5,
    expire_seconds: 900,
    supervise_seconds: 60, // between two looks for jobs that expired
  };

  constructor({ url, readers, ordered, transaction }, settings) {
    Object.assign(this, { url, readers, ordered, transaction, settings });
  }

  async started(options) {
    const boss = new PgBoss({
      connectionString: this.url,
      max: this.settings.pool,
      useListenNotify: true,
      superviseIntervalSeconds: this.settings.supervise_seconds,
      monitorIntervalSeconds: this.settings.supervise_seconds,
      ...options,
    });
    boss.on("error", (error) => console.error(String(error)));
    await boss.start();
    return boss;
  }

  async setUp() {
    const boss = await this.started();
    for (let reader = 0; reader < this.readers; reader++) {
      await boss.createQueue(queueOf(reader), {
        partition: true,
        notify: true,
        policy: this.ordered ? "key_strict_fifo" : "standard",
        retryLimit: 10,
        retryDelay: 1,
        expireInSeconds: this.settings.expire_seconds,
      });
      if (this.readers > 1) await boss.subscribe(EVENT, queueOf(reader));
    }
    await boss.stop({ graceful: false });
  }

  async open() {
    this.boss = await this.started({ supervise: false, schedule: false });
    this.pool = new Pool({ connectionString: this.url, max: 2 });
  }

  async close() {
    await this.boss?.stop({ graceful: false });
    await this.pool?.end();
  }

  options(message, delay) {
    return { ...(this.ordered && { singletonKey: message.key }), ...(delay && { startAfter: delay }) };
  }

  async publish(messages, delay, db) {
    if (this.readers > 1) {
      for (const one of messages) await this.boss.publish(EVENT, one.order);
    } else if (messages.length === 1) {
      await this.boss.send(queueOf(0), messages[0].order, { ...this.options(messages[0], delay), ...(db && { db }) });
    } else {
      const jobs = messages.map((one) => ({ data: one.order, ...this.options(one, delay) }));
      await this.boss.insert(queueOf(0), jobs, db && { db });
    }
  }

  async openTransaction(messages) {
    const client = await this.pool.connect();
    await client.query("begin");
    await this.publish(messages, undefined, { executeSql: (text, values) => client.query(text, values) });
    return async () => {
      await client.query("commit");
      client.release();
    };
  }

  async remaining() {
    const { rows } = await this.pool.query(
      "select count(*)::int as count from pgboss.job where name like 'orders%' and state < 'completed'" +
        " and start_after < now() + interval '1 hour'",
    );
    return rows[0].count;
  }

  async consume(handler, reader, stopped) {
    const boss = await this.started();
    const effect = handler.mode === "effect";
    const single = effect && this.transaction === 1;
    const options = {
      batchSize: single ? 1 : this.ordered ? this.settings.ordered_batch : this.settings.batch,
      localConcurrency: single ? this.settings.transactions : this.settings.local_concurrency,
      burstWhenBatchFull: !single,
      pollingIntervalSeconds: this.settings.poll_seconds,
      notifyPollingIntervalSeconds: this.settings.poll_seconds, // retries and followers of a key are not notified
      transactional: effect,
    };
    await boss.work(queueOf(reader), options, async (jobs, tx) => {
      const write = tx && ((text, values) => tx.executeSql(text, values));
      if (effect && !single) return handler.writeAll(jobs.map((job) => job.data), write);
      await Promise.all(jobs.map((job) => handler.handle(job.data, write)));
    });
    await stopped;
    await boss.stop({ graceful: true, timeout: 5000 });
  }
}
