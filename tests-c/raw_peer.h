/*
 * A raw peer: speaks the stream protocol with an rsocket through rdma_* and verbs, correctly or with the
 * errors of a case. The rsocket that it attacks is in the same process, as is another pair of rsockets
 * that must not be affected.
 */
#ifndef TESTS_C_RAW_PEER_H
#define TESTS_C_RAW_PEER_H

#include "cases.h"
#include "conn_data.h"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <rdma/rsocket.h>

enum { DATA = 0, GRANT = 4, IOMAP = 6, CONTROL = 7 };
enum { DISCONNECT, KEEPALIVE, SHUTDOWN };
#define WORD(op, data) ((uint32_t)(op) << 29 | ((uint32_t)(data) & 0x1fffffff))

enum { PEER_BUFFER = 4096, PEER_CREDITS = 16, PEER_SENDS = 256, PEER_RECEIVES = 64 };
enum { PEER_MEMORY = 4096 + 2 * PEER_BUFFER };

struct peer {
	struct rdma_cm_id *listener, *id;
	/* Our connection data, and the victim's. */
	struct conn_data mine, theirs;
	struct ibv_mr *mr;
	unsigned posted, completed;
	/* Number of receives that peer_next_word has used. */
	unsigned received;
	int victim, victim_listener;
};

/* The peer's memory: SGL, iomap at 32, words of the victim at 2048, buffer at 4096. */
extern uint8_t peer_memory[PEER_MEMORY];

/* Creates a QP with receives and correct private data, which a case may change. */
void peer_prepare(struct peer *peer, bool receives);
struct rdma_conn_param peer_param(const void *data, uint8_t len);
void set_sizes(int fd, int receives, int iomap);

/* A listening rsocket on a port of the kernel's choice. */
int listen_on(union address *address, int backlog, int receives);

/* Returns a new id whose route to `to` is resolved. */
struct rdma_cm_id *peer_resolved(union address *to, struct rdma_event_channel *channel);

/* The victim accepts. */
void peer_connects(struct peer *peer, bool receives);

/* The victim starts to connect; its request has arrived and is not answered yet. */
void peer_is_asked(struct peer *peer);
int poll_one(int fd, short events);
void peer_accepts(struct peer *peer, bool receives);

/* Waits until these bytes have arrived in the peer's memory. */
void peer_has(size_t place, const char *bytes, size_t len);

/* Counts the open descriptors, after the first rpoll() that sleeps has made the one that a thread keeps. */
int fds_before(void);

/* Waits for the library's own thread to close what it still has open. */
void fds_come_back(int before);
void peer_close(struct peer *peer);

/* Polls completions until at most `left` requests are outstanding. Returns false if one failed. */
bool peer_wait(struct peer *peer, unsigned left);

/* Polls completions without waiting. Returns whether no request is outstanding. */
bool peer_is_done(struct peer *peer);

/* Posts one work request; false if it could not be posted. */
bool peer_post(struct peer *peer, enum ibv_wr_opcode opcode, uint32_t word, const void *bytes, uint32_t len,
	       uint64_t addr, uint32_t key);

/* Writes bytes and sends the immediate data after them, as the transport does it. */
bool peer_say(struct peer *peer, uint32_t word, const void *bytes, uint32_t len, uint64_t addr, uint32_t key);
bool peer_word(struct peer *peer, uint32_t word);

/* Waits for the victim's next message. At most PEER_RECEIVES of them can be received. */
uint32_t peer_next_word(struct peer *peer);

/* Sends data according to the protocol: into the first half of the victim's buffer, from `place` on. */
bool peer_data(struct peer *peer, uint32_t place, const char *text);

/* Sends a credit update with an entry of the SGL. */
bool peer_announce(struct peer *peer, uint16_t number, unsigned slot, uint64_t addr, uint32_t key,
		   uint32_t length);

/* An entry of the victim's mapping table. */
bool peer_map(struct peer *peer, uint32_t index, uint64_t offset, uint64_t addr, uint32_t key,
	      uint32_t length);

/* Two rsockets that send each other data until the end of the case. */
void good_start(void);

/* Waits for two more round trips of data. */
void good_goes_on(void);
void good_stop(void);

#endif
