// Serves the files of the folder www by http in two processes: cluster.js ADDRESS PORT POLICY. With the policy rr the first
// process accepts and passes the connections on, with none the two accept.
'use strict';
const cluster = require('cluster');
const fs = require('fs');
const http = require('http');

const [address, port, policy] = process.argv.slice(2);
cluster.schedulingPolicy = policy === 'rr' ? cluster.SCHED_RR : cluster.SCHED_NONE;
if (cluster.isPrimary) {
  cluster.fork();
  cluster.fork();
  process.on('SIGTERM', () => {
    for (const worker of Object.values(cluster.workers)) worker.process.kill('SIGKILL');
    process.exit(0);
  });
} else {
  http.createServer((request, answer) => answer.end(fs.readFileSync(`www${request.url.split('?')[0]}`)))
    .listen(Number(port), address);
}
