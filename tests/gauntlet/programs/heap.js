// A heap of some hundred megabytes, worker threads with heaps of their own, and child processes:
// `node heap.js heap|workers|children [MILLIONS]`. Prints sums that are always the same.
'use strict';
const { Worker, isMainThread, workerData, parentPort } = require('worker_threads');
const { execFileSync } = require('child_process');

function work(count, seed) {
  const table = new Map();
  let list = null;
  for (let i = 0; i < count; i++) {
    const entry = { number: i, text: 'text ' + ((i * 7919 + seed) % 1000003), next: i % 50 ? list : null, parts: [i, i / 3] };
    list = entry;
    table.set('key' + (i * 31 % count), entry);
  }
  for (let i = 0; i < count; i += 3) table.delete('key' + i);
  const bytes = Buffer.alloc(count * 40);
  for (let i = 0; i < bytes.length; i += 8) bytes.writeDoubleLE(i * seed, i);
  let sum = 0;
  for (const [key, entry] of table) {
    sum = (sum * 31 + key.length + entry.text.length + entry.number + (entry.next ? entry.next.number : 0)) % 1000000007;
  }
  for (let i = 0; i < bytes.length; i += 8) sum = (sum + bytes.readDoubleLE(i)) % 1000000007;
  return `${table.size} ${sum}`;
}

const COUNT = 400000;
if (!isMainThread) {
  parentPort.postMessage(work(workerData.count, workerData.seed));
} else if (process.argv[2] === 'heap') {
  console.log(work(COUNT * 2, 1));
} else if (process.argv[2] === 'workers') {
  const seeds = [1, 2, 3, 4];
  Promise.all(seeds.map((seed) => new Promise((resolve, reject) => {
    const worker = new Worker(__filename, { workerData: { seed, count: COUNT / 4 } });
    worker.on('message', resolve);
    worker.on('error', reject);
  }))).then((results) => console.log(results.join('\n')));
} else if (process.argv[2] === 'child') {
  console.log(work(COUNT / 8, Number(process.argv[3])));
} else {
  const mine = work(COUNT / 4, 0);
  for (let i = 0; i < 20; i++) process.stdout.write(execFileSync(process.execPath, [__filename, 'child', i]));
  console.log(mine);
}
