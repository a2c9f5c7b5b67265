// BullMQ: "work" runs a worker of 64 jobs at a time; "COUNT RATE" enqueues, in bulk when there is no rate.
// process.hrtime and Python's time.monotonic() read the same clock of the machine.
import { openSync, writeSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { createRequire } from "node:module";

const { Queue, Worker } = createRequire(process.env.BENCH_MODULES + "/")("bullmq");
const now = () => Number(process.hrtime.bigint()) / 1e9;
const address = new URL(process.env.BENCH_REDIS_URL);
const connection = { host: address.hostname, port: Number(address.port), maxRetriesPerRequest: null };
const KEEP_NOTHING = { removeOnComplete: true };
const BULK = 500;

function work() {
  const notes = openSync(process.env.BENCH_NOTES, "a");
  const bytes = Buffer.alloc(8);
  const handler = async (job) => {
    bytes.writeDoubleLE(now() - job.data.due);
    writeSync(notes, bytes);
  };
  const worker = new Worker("work", handler, { connection, concurrency: 64 });
  process.on("SIGTERM", () => worker.close().then(() => process.exit(0)));
}

async function send(count, rate) {
  const queue = new Queue("work", { connection });
  if (rate === 0) {
    for (let sent = 0; sent < count; sent += BULK) {
      const jobs = Array.from({ length: Math.min(BULK, count - sent) }, () => ({
        name: "work", data: { due: now() }, opts: KEEP_NOTHING,
      }));
      await queue.addBulk(jobs);
    }
  } else {
    const start = now() + 0.2;
    const open = [];
    for (let n = 0; n < count; n += 1) {
      const due = start + n / rate;
      const wait = due - now();
      if (wait > 0) await sleep(wait * 1000);
      open.push(queue.add("work", { due }, KEEP_NOTHING));
    }
    await Promise.all(open);
  }
  await queue.close();
}

if (process.argv[2] === "work") work();
else await send(Number(process.argv[2]), Number(process.argv[3]));
