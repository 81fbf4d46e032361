// BullMQ on Node: `node bullmq_app.mjs work` is its worker, `... produce` its producer; see tally.py and produce.py.
import { createRequire } from "node:module";

const { Queue, Worker } = createRequire(`${process.env.RMQ_PEERS_HOME}/`)("bullmq");
const { default: Redis } = createRequire(`${process.env.RMQ_PEERS_HOME}/`)("ioredis");

const PART = process.env.RMQ_PEERS_PART;
const MESSAGES = Number(process.env.RMQ_PEERS_MESSAGES);
const CONCURRENCY = Number(process.env.RMQ_PEERS_CONCURRENCY ?? "100");
const url = process.env.RMQ_PEERS_URL;
const wall = () => BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e6));
const monotonic = () => Number(process.hrtime.bigint());
const body = (when) => String(when).padEnd(100, "x");
const own = new Redis(url, { maxRetriesPerRequest: null });
const push = (key, value) => own.rpush(key, JSON.stringify(value));
const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));

function work() {
  const last = MESSAGES + (PART === "drain" ? 0 : 1);
  const samples = PART === "paced" ? [] : null;
  let number = 0, began, cpu;
  async function handle(job) {
    number += 1;
    if (samples && number > 1) samples.push(Number(wall() - BigInt(job.data.body.slice(0, 19))));
    if (number === 1) {
      began = monotonic();
      cpu = process.cpuUsage();
      if (PART !== "drain") await push("peers:ready", {});
    } else if (number === last) {
      const ended = monotonic(), spent = process.cpuUsage(cpu);
      await push("peers:done", { began, ended, cpu: (spent.user + spent.system) * 1000, late: samples });
    }
  }
  const connection = new Redis(url, { maxRetriesPerRequest: null });
  new Worker("noop", handle, { connection, concurrency: CONCURRENCY });
}

async function produce() {
  const defaultJobOptions = { removeOnComplete: true };
  const queue = new Queue("noop", { connection: new Redis(url), defaultJobOptions });
  const send = () => queue.add("noop", { body: body(wall()) });
  if (PART === "drain") {
    const made = Array.from({ length: 500 }, () => ({ name: "noop", data: { body: body(wall()) } }));
    for (let sent = 0; sent < MESSAGES; sent += 500) await queue.addBulk(made.slice(0, MESSAGES - sent));
    process.exit(0);
  }
  await send();
  await own.blpop("peers:ready", 60);
  const began = monotonic(), start = performance.now();
  for (let tick = 0; tick < MESSAGES; tick += 1) {
    if (PART === "paced") await sleep(Math.max(0, start + tick * 10 - performance.now()));
    await send();
  }
  await push("peers:sent", { began, ended: monotonic() });
  process.exit(0);
}

if (process.argv[2] === "work") work();
else await produce();
