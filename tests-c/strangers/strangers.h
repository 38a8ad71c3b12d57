/*
 * An epoll server on rsockets, honest clients that it echoes for, and strangers that misbehave towards it. Each part is a
 * process of its own; what they measure is in memory that all of them share.
 */
#ifndef TESTS_STRANGERS_H
#define TESTS_STRANGERS_H

#define _GNU_SOURCE
#include "rscommon.h"

#include <sys/types.h>

enum { MAX_CLIENTS = 100, MESSAGE = 2048, DATAGRAM = 512, DATAGRAM_CLIENTS = 4 };
/* The server closes a connection from which it has received nothing for this long. */
enum { IDLE_US = 1000000 };

/* Written by one process each, read by the one that judges. */
struct figures {
	/* Server. */
	volatile uint16_t port, datagram_port, silent_port;
	volatile bool stop_server, stop_honest;
	volatile long longest_turn_us, longest_oversleep_us;
	volatile unsigned fds_now, fds_most, connections, most_connections, accepted, closed;
	volatile long pinned_kb, most_pinned_kb;
	volatile unsigned no_descriptor;
	/* Honest clients. */
	volatile unsigned long messages, datagrams, reconnects;
	volatile long longest_wait_us, longest_connect_us, longest_datagram_us;
	volatile unsigned connected, expired, broken, corrupted, refused, datagrams_lost;
	volatile char why[96];
	/* Strangers: attempts made, and those that the attack calls a success. */
	volatile unsigned long attempts, hits;
};
extern struct figures *figures;

struct limits {
	/* 0: as they are. */
	unsigned descriptors;
	unsigned long locked_kb;
};

/* Returns when figures->stop_server is set and everything is closed. */
void serve(const struct limits *limits);
/* Returns when figures->stop_honest is set. */
void be_honest(unsigned clients, bool datagrams);

/* One way to misbehave: runs until it is killed. */
struct attack {
	const char *name;
	void (*run)(void);
	/* Processes that run it, and honest clients beside them. */
	unsigned processes, clients;
	struct limits limits;
	bool datagrams, rxe_only, far;
};
extern const struct attack attacks[];
extern const unsigned attack_count;

long now_us(void);
void raise_to(volatile long *most, long value);
union address server_addr(uint16_t port);

/* raw.c: a peer that speaks the stream protocol by rdma_* and verbs. */
struct raw {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	uint8_t *memory;
	unsigned posted, completed;
	/* What the server said. */
	uint64_t sgl, ring;
	uint32_t key, ring_length;
};
enum { RAW_DATA = 0, RAW_GRANT = 4, RAW_IOMAP = 6, RAW_CONTROL = 7, RAW_KEEPALIVE = 1 };
enum { RAW_RECEIVES = 64, RAW_SENDS = 128 };
/* Whether the server accepted. Without receives the server's messages are not taken. */
bool raw_connect(struct raw *raw, uint16_t port, bool receives);
void raw_close(struct raw *raw);
/* One message, or one plain write without `word`; false when the connection is over. */
bool raw_message(struct raw *raw, uint32_t op, uint32_t value, uint32_t len);
bool raw_write(struct raw *raw, uint64_t addr, uint32_t key, uint32_t len);
/* Takes the completions there are; false when one failed. */
bool raw_reap(struct raw *raw, unsigned left);
/* Whether the connection ends before nothing was heard of it for this time: its receives are flushed. */
bool raw_ends(struct raw *raw, int timeout_ms);
/* Sends a request of which the answer goes to the channel; whether it could. */
bool raw_request(struct raw *raw, struct rdma_event_channel *channel, uint16_t port);

#endif
