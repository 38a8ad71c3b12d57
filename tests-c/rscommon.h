/*
 * Helpers of the rsocket programs (rs*.c): a connected pair in one process, patterns, poll bits.
 * The programs call r* functions only, so that rsplain.so can answer them with kernel sockets.
 */
#ifndef TESTS_C_RSCOMMON_H
#define TESTS_C_RSCOMMON_H

#include "common.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <rdma/rsocket.h>

/* Two connected stream sockets and the listener between them. */
struct rspair {
	int listener, client, server;
	union address to;
};

/* Called on a socket before it is bound or connected, for options. */
typedef void (*rs_prepare)(int fd);

socklen_t addr_len(const union address *address);
/* A blocking listener on a port that the kernel chose, which goes to `to`; -1 when that failed. */
int rs_listener(int family, union address *to, rs_prepare prepare);
bool rs_pair_with(struct rspair *pair, int family, rs_prepare prepare);
bool rs_pair(struct rspair *pair, int family);
void rs_pair_close(struct rspair *pair);
void rs_nonblock(int fd, bool on);

/* repoll_create, repoll_ctl and repoll_wait, which 44.0 lacks. */
struct repoll {
	int (*create)(int flags);
	int (*control)(int epfd, int op, int fd, struct epoll_event *event);
	int (*wait)(int epfd, struct epoll_event *events, int maxevents, int timeout);
};
bool find_repoll(struct repoll *repoll);

/* "IN|OUT", "0". */
const char *poll_str(short events);
/* rpoll with time-out 0: prints the bits there are now. */
short poll_now(const char *who, int fd, short events);
/* rpoll without time-out: silent, returns the bits. */
short poll_wait(int fd, short events);
/* poll_wait for HUP or ERR, which need no events. */
short poll_gone(int fd);
/* Milliseconds since a reading of CLOCK_MONOTONIC. */
long elapsed_ms(const struct timespec *since);
/* In a program of cases.h: the expression holds and took no less than so many milliseconds. */
#define EXPECT_LASTS(ms, expression)                                       \
	do {                                                               \
		struct timespec since_;                                    \
		clock_gettime(CLOCK_MONOTONIC, &since_);                   \
		EXPECT(expression);                                        \
		EXPECT(elapsed_ms(&since_) >= (ms));                       \
	} while (0)
/* SO_ERROR as a name. */
const char *so_error(int fd);

/* Bytes that depend on their position in the stream of `seed`. */
void fill(void *data, size_t len, unsigned seed, size_t offset);
bool filled(const void *data, size_t len, unsigned seed, size_t offset);
/* Transfers all of it. Returns the number of bytes, less after an error or the end of the stream. */
size_t send_all(int fd, const void *data, size_t len);
size_t recv_all(int fd, void *data, size_t len);
/* Sends bytes of `seed` until `*enough`, or until that fails. Returns their number. */
size_t send_until(int fd, const volatile bool *enough, unsigned seed);

/* Memory of this process that devices have pinned, in kB: VmPin of /proc/self/status; -1 when it cannot be read. */
long pinned_kb(void);

/* Writes a file of /etc/rdma/rsocket, which is read with the first socket; a negative number removes it. */
void rs_configure(const char *name, long number);

#endif
