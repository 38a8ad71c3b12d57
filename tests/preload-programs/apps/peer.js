// A server that echoes what it gets, by net, and answers requests with their reversed body, by http on the next port; and
// a client that compares, and prints the number of bytes: peer.js server|client ADDRESS PORT
'use strict';
const assert = require('assert');
const crypto = require('crypto');
const http = require('http');
const net = require('net');

const [role, address, text] = process.argv.slice(2);
const port = Number(text);
const SIZES = [1, 100, 5000, 70000, 200000];

function serve() {
  net.createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket)).listen(port, address);
  http.createServer((request, answer) => {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => answer.end(Buffer.concat(parts).reverse()));
  }).listen(port + 1, address);
  process.on('SIGTERM', () => process.exit(0));
}

// Writes everything, ends, and reads until the end.
function echo(data) {
  return new Promise((resolve, reject) => {
    const parts = [];
    const socket = net.connect({ host: address, port, allowHalfOpen: true }, () => socket.end(data));
    socket.on('data', (part) => parts.push(part));
    socket.on('error', reject);
    socket.on('end', () => {
      assert(Buffer.concat(parts).equals(data), 'the echo differs');
      resolve(2 * data.length);
    });
  });
}

function post(agent, data) {
  return new Promise((resolve, reject) => {
    const request = http.request({ host: address, port: port + 1, method: 'POST', agent }, (answer) => {
      const parts = [];
      answer.on('data', (part) => parts.push(part));
      answer.on('end', () => {
        assert(Buffer.concat(parts).reverse().equals(data), 'the answer differs');
        resolve(2 * data.length);
      });
    });
    request.on('error', reject);
    request.end(data);
  });
}

async function ask() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 2 });
  let moved = 0;
  for (const size of SIZES) {
    const data = crypto.randomBytes(size);
    const all = [0, 1, 2, 3].map(() => echo(data)).concat([0, 1, 2, 3].map(() => post(agent, data)));
    for (const one of await Promise.all(all)) moved += one;
  }
  agent.destroy();
  console.log(moved);
}

if (role === 'server') serve();
else ask().catch((error) => { console.error(error); process.exit(1); });
