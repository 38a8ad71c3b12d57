/*
 * Helpers of the conformance programs. What they print is compared byte for
 * byte between two libraries, so nothing here prints a pointer, a time, a
 * kernel-chosen port, a QP number or a descriptor number.
 */
#ifndef TESTS_C_COMMON_H
#define TESTS_C_COMMON_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <netdb.h>
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* ---- program frame -------------------------------------------------- */

/* Device under test: "rxe", "siw" or "ib". */
extern const char *device;
bool on_siw(void);
bool on_ib(void);

/* Reads the device from argv[1] (default rxe), makes stdout line buffered. */
void start(int argc, char **argv);
/*
 * Prints the number of declared cases, if there are any, and the last line of a complete run. A run
 * without that line ended early.
 */
int finish(void);
/*
 * A program that prints PASS or FAIL for each case declares its cases where it names them: finish()
 * prints `CASES N`, and the judge requires N results. DECLARE_CASE declares one case, by a byte in
 * a section of its own, which exists even if control never reaches the case. declare_cases()
 * declares the cases of a table.
 */
#define DECLARE_CASE                                                       \
	do {                                                               \
		static const char declared_ __attribute__((section("cases"), used)) = 1; \
	} while (0)
void declare_cases(size_t count);
/* A declared case that does not run on this device, or that was not asked for. */
void leave_case(const char *name, const char *why);
/* A declared case that cannot run on this machine. */
void skip_case(const char *name, const char *why);
/* The program does not apply here: prints the reason and exits with 0. */
void skip_all(const char *why) __attribute__((noreturn));

/* ---- printing -------------------------------------------------------- */

/* Starts a case: all following lines carry its name. */
void topic(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* One observation, one line. */
void obs(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
const char *errno_name(int value);
const char *eai_name(int value);
/* "a.b.c.d:port", ports of the ephemeral range shown as EPH. */
const char *addr_str(const struct sockaddr *sa);
const char *gid_str(const union ibv_gid *gid);
/* Bytes as run-length hex: "5ax12 00x44". */
const char *bytes_str(const void *data, size_t len);
const char *qp_type_str(int type);
/* Names that stand for ids (and their QP numbers) in the output. */
void id_name(const struct rdma_cm_id *id, const char *name);
void id_forget(const struct rdma_cm_id *id);
const char *id_str(const struct rdma_cm_id *id);
const char *qpn_str(uint32_t qpn);
void show_id(const struct rdma_cm_id *id);
void show_event(const char *who, const struct rdma_cm_event *event);
/* State and limits of the id's QP; siw's kernel does not fill them in. */
void show_qp(const char *who, const struct rdma_cm_id *id);
void show_wc(const char *who, int ret, const struct ibv_wc *wc);

/* Runs a call that returns 0/-1 (or a count), prints result and errno. */
int obs_call(const char *text, int ret, int error);
#define CALL(expression)                                                   \
	__extension__({                                                    \
		errno = 0;                                                 \
		int call_ret_ = (expression);                              \
		int call_errno_ = errno;                                   \
		obs_call(#expression, call_ret_, call_errno_);             \
	})
/* The same for calls that return a pointer: prints NULL or "set". */
bool obs_pointer(const char *text, const void *pointer, int error);
#define CALL_PTR(expression)                                               \
	__extension__({                                                    \
		errno = 0;                                                 \
		void *call_ptr_ = (expression);                            \
		obs_pointer(#expression, call_ptr_, errno);                \
		call_ptr_;                                                 \
	})
/* Prints "text: yes" or "text: no". */
bool obs_bool(const char *text, bool value);
#define CHECK(expression) obs_bool(#expression, (expression))
/* A preparation step: prints a line only if it fails. */
bool setup_ok(const char *text, bool good, int error);
#define SETUP(expression)                                                  \
	__extension__({                                                    \
		errno = 0;                                                 \
		bool setup_good_ = (expression);                           \
		setup_ok(#expression, setup_good_, errno);                 \
	})

/* ---- addresses -------------------------------------------------------- */

union address {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_ib ib;
	struct sockaddr_storage storage;
};
/* Address of the device under test; port in host order. */
union address local_addr(int family, uint16_t port);
union address any_addr(int family, uint16_t port);
/* An address inside the device's subnet at which nothing answers. */
union address silent_addr(uint16_t port);
/* An address for which the lab has no route. */
union address unrouted_addr(uint16_t port);
/* IPv4 address text of the device, for rdma_getaddrinfo. */
const char *local_node(int family);
union address make_addr(int family, const char *text, uint16_t port);

/* ---- events ------------------------------------------------------------ */

/* Gets one event and prints it under the name `who`; not acked. */
struct rdma_cm_event *get_event(const char *who, struct rdma_event_channel *channel);
/* get_event, checks the type, acks; returns the event's id or NULL. */
struct rdma_cm_id *take_event(const char *who, struct rdma_event_channel *channel,
			      enum rdma_cm_event_type type);
/* take_event without printing when the event is the expected one, status 0. */
struct rdma_cm_id *quiet_event(struct rdma_event_channel *channel,
			       enum rdma_cm_event_type type);
/* Whether the channel's descriptor is readable now (no waiting). */
bool channel_ready(const struct rdma_event_channel *channel);

/* ---- two sides in one process ------------------------------------------ */

struct pair {
	enum rdma_port_space ps;
	struct rdma_event_channel *server_channel, *client_channel;
	struct rdma_cm_id *listener, *server, *client;
	union address to;
};

struct ibv_qp_init_attr qp_attr(enum rdma_port_space ps);
struct rdma_conn_param conn_param(const void *data, uint8_t len);
/* A QP number that no device and no recent connection uses: the IB CM refuses
 * a number that is still in TIMEWAIT as stale. */
uint32_t invented_qpn(void);
/* Channels, ids, a listener on a port the kernel chose. */
bool pair_open(struct pair *pair, enum rdma_port_space ps, int family);
/* Client up to ROUTE_RESOLVED, then a QP. */
bool pair_resolve(struct pair *pair, bool with_qp);
/* Connect request delivered; pair->server exists (with a QP if asked). */
bool pair_request(struct pair *pair, struct rdma_conn_param *param, bool with_qp);
/* All of the above, accept, ESTABLISHED on both sides. */
bool pair_connect(struct pair *pair, enum rdma_port_space ps, int family);
/* Disconnects if connected; drains, destroys everything that exists. */
void pair_close(struct pair *pair);
/* Destroys the id with its QP and releases its name. */
int id_destroy(struct rdma_cm_id *id);

/* ---- threads and children ------------------------------------------------ */

/* The thread's lines are kept and printed when it is joined. */
struct worker;
struct worker *worker_start(void *(*body)(void *), void *argument);
/* Returns when the worker's thread sleeps, or has ended. */
void worker_await_sleep(const struct worker *worker);
void *worker_join(struct worker *worker);
/* Runs body in a child; prints how it ended (exit status or signal). */
int in_child(const char *name, void (*body)(void *), void *argument);
/* Number of open descriptors of this process. */
int open_fds(void);
/*
 * Pause in a loop that waits for another thread, process or device. A loop without a pause or
 * another system call never ends in a lab with virtual time. It is no cancellation point, keeps
 * errno, and may be called by signal handlers.
 */
void pause_briefly(void);
/* Whether the thread sleeps in the kernel: state S of /proc. It may only sleep briefly. */
bool sleeps(pid_t tid);
/* The same in two parts, for many checks: the thread's file in /proc, and its state. */
int open_stat(pid_t tid);
bool stat_sleeps(int stat);
/* Returns when the thread sleeps at several checks in a row; false if it has ended. 0: not there yet. */
bool await_sleep(const volatile pid_t *tid);

/* Function of newer references, NULL where the library has none. */
void *optional_symbol(const char *name);

#endif
