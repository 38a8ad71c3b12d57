/*
 * A command of making or freeing a connection that blocks, as in the firmware of an adapter: ibv_create_cq and
 * ibv_destroy_cq of this program, which the library calls instead of those of libibverbs. Meanwhile nothing else is
 * late: established connections, datagrams, closing and ending.
 */
#include "raw_peer.h"
#include "rscommon.h"

#include <dlfcn.h>
#include <semaphore.h>

enum { BLOCK = 100000 };

static struct rspair pair, blocked;
static char data[BLOCK], got[BLOCK];

/* ---- the commands -------------------------------------------------------------------------------- */

enum command { CREATE_CQ, DESTROY_CQ };

/* How many commands of each kind pass before one blocks; none does below 0. Those of the tester always pass. */
static int passing[2] = { -1, -1 };
static pthread_t tester;
static sem_t is_blocked, may_go_on;
/* Number of CQs that were destroyed. */
static int destroyed;

static void command(enum command kind)
{
	int left = __atomic_load_n(&passing[kind], __ATOMIC_SEQ_CST);

	if (left < 0 || pthread_equal(tester, pthread_self()))
		return;
	while (left >= 0 && !__atomic_compare_exchange_n(&passing[kind], &left, left - 1, false,
							 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
	if (left != 0)
		return;
	sem_post(&is_blocked);
	sem_wait(&may_go_on);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int comp_vector)
{
	struct ibv_cq *(*create)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int) =
		(__typeof__(create))dlsym(RTLD_NEXT, "ibv_create_cq");

	command(CREATE_CQ);
	return create(context, cqe, cq_context, channel, comp_vector);
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	int (*destroy)(struct ibv_cq *) = (__typeof__(destroy))dlsym(RTLD_NEXT, "ibv_destroy_cq");

	command(DESTROY_CQ);
	__atomic_fetch_add(&destroyed, 1, __ATOMIC_SEQ_CST);
	return destroy(cq);
}

static void block(enum command kind, int after)
{
	EXPECT(!sem_init(&is_blocked, 0, 0) && !sem_init(&may_go_on, 0, 0));
	tester = pthread_self();
	__atomic_store_n(&passing[kind], after, __ATOMIC_SEQ_CST);
}

/* One call of the library waits in a command. */
static void await_block(void)
{
	EXPECT(!sem_wait(&is_blocked));
}

static void unblock(void)
{
	EXPECT(!sem_post(&may_go_on));
}

/* ---- a connection that is being made --------------------------------------------------------------- */

/* The answer to a connection request blocks, after the two CQs of the client. `pair` is connected. */
static void answer_blocks(void)
{
	enum { CLIENT_CQS = 2 };

	EXPECT(rs_pair(&pair, AF_INET));
	blocked = (struct rspair){ .client = -1, .server = -1 };
	EXPECT((blocked.listener = rs_listener(AF_INET, &blocked.to, NULL)) >= 0);
	EXPECT((blocked.client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0);
	block(CREATE_CQ, CLIENT_CQS);
	EXPECT_ERROR(rconnect(blocked.client, &blocked.to.sa, sizeof(blocked.to.in)), EINPROGRESS);
	await_block();
}

/* The QP of a connecting rsocket is made only now. `pair` is connected. */
static void connect_blocks(void)
{
	EXPECT(rs_pair(&pair, AF_INET));
	blocked = (struct rspair){ .client = -1, .server = -1 };
	EXPECT((blocked.listener = rs_listener(AF_INET, &blocked.to, NULL)) >= 0);
	EXPECT((blocked.client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0);
	block(CREATE_CQ, 0);
	EXPECT_ERROR(rconnect(blocked.client, &blocked.to.sa, sizeof(blocked.to.in)), EINPROGRESS);
	await_block();
}

static void exchange(const struct rspair *between)
{
	EXPECT(rsend(between->client, "there", 5, 0) == 5);
	EXPECT(rrecv(between->server, got, 5, MSG_WAITALL) == 5 && !memcmp(got, "there", 5));
	EXPECT(rsend(between->server, "back", 4, 0) == 4);
	EXPECT(rrecv(between->client, got, 4, MSG_WAITALL) == 4 && !memcmp(got, "back", 4));
}

/* The blocked command returns: the connection is made. */
static void connection_goes_on(void)
{
	unblock();
	EXPECT(poll_wait(blocked.client, POLLOUT) == POLLOUT && !strcmp(so_error(blocked.client), "0"));
	EXPECT((blocked.server = raccept(blocked.listener, NULL, NULL)) >= 0);
	rs_nonblock(blocked.client, false);
	exchange(&blocked);
	rs_pair_close(&blocked);
}

/* ---- what is not late -------------------------------------------------------------------------------- */

/*
 * The receiver makes no call, and its first buffer is smaller: its reactor gives the sender space. `pair` has sent
 * nothing yet.
 */
static void first_messages(void)
{
	enum { FIRST = 32768 };

	fill(data, FIRST, 5, 0);
	EXPECT(rsend(pair.client, data, FIRST, 0) == FIRST);
	EXPECT(rrecv(pair.server, got, FIRST, MSG_WAITALL) == FIRST && filled(got, FIRST, 5, 0));
	rs_pair_close(&pair);
}

static void first_messages_beside_an_answer(void)
{
	answer_blocks();
	first_messages();
	connection_goes_on();
}

static void first_messages_beside_a_connect(void)
{
	connect_blocks();
	first_messages();
	connection_goes_on();
}

/* The reactor finds the route to the peer, and reads the UDP socket. */
static void datagram_beside_an_answer(void)
{
	union address from = local_addr(AF_INET, 0), to = local_addr(AF_INET, 0);
	int sender, receiver;
	socklen_t len = sizeof(to);

	answer_blocks();
	EXPECT((sender = rsocket(AF_INET, SOCK_DGRAM, 0)) >= 0 && (receiver = rsocket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	EXPECT(!rbind(sender, &from.sa, sizeof(from.in)) && !rbind(receiver, &to.sa, sizeof(to.in)));
	EXPECT(!rgetsockname(receiver, &to.sa, &len));
	EXPECT(rsendto(sender, "datagram", 8, 0, &to.sa, sizeof(to.in)) == 8);
	EXPECT(rrecv(receiver, got, BLOCK, 0) == 8 && !memcmp(got, "datagram", 8));
	EXPECT(!rclose(sender) && !rclose(receiver));
	connection_goes_on();
	rs_pair_close(&pair);
}

/* Only an event of the connection manager tells that a process has ended. */
static void end_of_a_peer_beside_an_answer(void)
{
	union address to;
	int ends[2], listener, server;
	char byte;
	pid_t child;

	EXPECT(!pipe(ends));
	child = fork();
	if (child == 0) {
		int fd;

		EXPECT(read(ends[0], &to, sizeof(to)) == sizeof(to));
		EXPECT((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0 && !rconnect(fd, &to.sa, sizeof(to.in)));
		EXPECT(rsend(fd, "x", 1, 0) == 1);
		pause();
	}
	EXPECT((listener = rs_listener(AF_INET, &to, NULL)) >= 0);
	EXPECT(write(ends[1], &to, sizeof(to)) == sizeof(to));
	EXPECT((server = raccept(listener, NULL, NULL)) >= 0 && rrecv(server, &byte, 1, 0) == 1);
	answer_blocks();
	EXPECT(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	EXPECT(poll_gone(server) & (POLLHUP | POLLERR));
	connection_goes_on();
	EXPECT(!rclose(server) && !rclose(listener));
	rs_pair_close(&pair);
}

/* Freeing a connection that is closed in the background, because its peer has no receives. */
static void first_messages_beside_freeing(void)
{
	struct peer peer = { 0 };

	peer_connects(&peer, false);
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!rfcntl(peer.victim, F_SETFL, O_NONBLOCK));
	EXPECT(rsend(peer.victim, "nobody", 6, 0) == 6);
	block(DESTROY_CQ, 0);
	EXPECT(!rclose(peer.victim));
	peer.victim = 0;
	peer_close(&peer);
	await_block();
	first_messages();
	unblock();
}

/* ---- closing and ending ------------------------------------------------------------------------------ */

static void close_of_the_listener(void)
{
	answer_blocks();
	EXPECT(!rclose(blocked.listener));
	exchange(&pair);
	unblock();
	/* It may be connected before. */
	EXPECT(poll_wait(blocked.client, POLLIN) & (POLLHUP | POLLERR));
	blocked.listener = -1;
	rs_pair_close(&blocked);
	/* The thread goes on. */
	EXPECT((blocked.listener = rs_listener(AF_INET, &blocked.to, NULL)) >= 0);
	EXPECT((blocked.client = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	EXPECT(!rconnect(blocked.client, &blocked.to.sa, sizeof(blocked.to.in)));
	EXPECT((blocked.server = raccept(blocked.listener, NULL, NULL)) >= 0);
	exchange(&blocked);
	rs_pair_close(&blocked);
	rs_pair_close(&pair);
}

/* The process that exits has sent its last message, and closed the connection, in the background. */
static void exit_beside_an_answer(void)
{
	union address to;
	int ends[2], listener, server;
	pid_t child;

	EXPECT(!pipe(ends));
	child = fork();
	EXPECT(child >= 0);
	if (child == 0) {
		int fd;

		alarm(hang_seconds());
		EXPECT(read(ends[0], &to, sizeof(to)) == sizeof(to));
		EXPECT((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0 && !rconnect(fd, &to.sa, sizeof(to.in)));
		answer_blocks();
		rs_nonblock(fd, true);
		EXPECT(rsend(fd, "last", 4, 0) == 4);
		EXPECT(!rclose(fd));
		exit(CHILD_DONE);
	}
	EXPECT((listener = rs_listener(AF_INET, &to, NULL)) >= 0);
	EXPECT(write(ends[1], &to, sizeof(to)) == sizeof(to));
	EXPECT((server = raccept(listener, NULL, NULL)) >= 0);
	EXPECT(rrecv(server, got, 4, MSG_WAITALL) == 4 && !memcmp(got, "last", 4));
	EXPECT(rrecv(server, got, 1, 0) == 0);
	EXPECT(child_done(child));
	EXPECT(!rclose(server) && !rclose(listener));
}

/* The child has neither thread, and none that holds a lock. */
static void fork_beside_an_answer(void)
{
	pid_t child;

	answer_blocks();
	child = fork();
	EXPECT(child >= 0);
	if (child == 0) {
		struct rspair own;

		alarm(hang_seconds());
		EXPECT(rs_pair(&own, AF_INET));
		exchange(&own);
		rs_pair_close(&own);
		EXPECT(!rclose(blocked.listener) && !rclose(blocked.client) && !rclose(pair.server));
		exit(CHILD_DONE);
	}
	exchange(&pair);
	EXPECT(child_done(child));
	connection_goes_on();
	exchange(&pair);
	rs_pair_close(&pair);
}

/* ---- a timer of a stream that is closed -------------------------------------------------------------- */

static volatile pid_t receiver_tid;

static void *receives(void *fd)
{
	char byte;

	receiver_tid = gettid();
	EXPECT_ERROR(rrecv(*(int *)fd, &byte, 1, 0), EBADF);
	return NULL;
}

static void *closes(void *fd)
{
	EXPECT(!rclose(*(int *)fd));
	return NULL;
}

static void stays_in_handler(int signal)
{
	(void)signal;
	sem_post(&is_blocked);
	while (sem_wait(&may_go_on))
		;
}

/* rclose waits for a call that waits for data, and that a signal handler keeps. A timer expires, and frees nothing. */
static void timer_beside_a_close(void)
{
	enum { SECOND_MS = 1000 };
	struct sigaction action = { .sa_handler = stays_in_handler };
	struct linger at_once = { .l_onoff = 1, .l_linger = 0 };
	pthread_t receiver, closer;
	int one = 1, before;

	EXPECT(!sem_init(&is_blocked, 0, 0) && !sem_init(&may_go_on, 0, 0));
	EXPECT(!sigaction(SIGUSR1, &action, NULL));
	EXPECT(rs_pair(&pair, AF_INET));
	exchange(&pair);
	EXPECT(!pthread_create(&receiver, NULL, receives, &pair.server));
	EXPECT(await_sleep(&receiver_tid));
	EXPECT(!rsetsockopt(pair.server, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)));
	EXPECT(!rsetsockopt(pair.server, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof(one)));
	EXPECT(!rsetsockopt(pair.server, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)));
	EXPECT(!pthread_kill(receiver, SIGUSR1));
	await_block();
	before = __atomic_load_n(&destroyed, __ATOMIC_SEQ_CST);
	EXPECT(!pthread_create(&closer, NULL, closes, &pair.server));
	/* Nothing tells that the timer has expired without an effect. */
	EXPECT(rpoll(NULL, 0, 2 * SECOND_MS) == 0);
	EXPECT(__atomic_load_n(&destroyed, __ATOMIC_SEQ_CST) == before);
	unblock();
	EXPECT(!pthread_join(receiver, NULL) && !pthread_join(closer, NULL));
	EXPECT(__atomic_load_n(&destroyed, __ATOMIC_SEQ_CST) > before);
	EXPECT(!rclose(pair.client) && !rclose(pair.listener));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(first_messages_beside_an_answer);
	CASE(first_messages_beside_a_connect);
	/* A message without a receive ends an iWARP connection, and rclose then frees it in this thread. */
	CASE_IF(!on_siw(), first_messages_beside_freeing);
	CASE(end_of_a_peer_beside_an_answer);
	CASE_IF(!on_siw(), datagram_beside_an_answer);
	CASE(close_of_the_listener);
	CASE(exit_beside_an_answer);
	CASE(fork_beside_an_answer);
	CASE(timer_beside_a_close);
	return finish();
}
