/*
 * A thread that stops while it registers an rsocket with the library's own thread, as if it were interrupted there by a
 * signal handler that waits for another thread: epoll_ctl of this program, which the library calls, does not return.
 * Calls that need the library's thread wait for it at most, and other calls on the same rsockets do not wait.
 */
#include "raw_peer.h"
#include "rscommon.h"

#include <semaphore.h>

/* The rsocket of the calls. */
static int tested;
static pthread_t stopped;
static sem_t has_stopped, may_go_on;
static volatile pid_t caller_id;

/* Replaces the C library's function. */
int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	if (op == EPOLL_CTL_ADD && stopped && pthread_equal(stopped, pthread_self())) {
		sem_post(&has_stopped);
		sem_wait(&may_go_on);
	}
	return syscall(SYS_epoll_ctl, epoll, op, fd, event);
}

static void *make_datagram_socket(void *unused)
{
	int fd;

	stopped = pthread_self();
	EXPECT((fd = rsocket(AF_INET, SOCK_DGRAM, 0)) >= 0 && !rclose(fd));
	return unused;
}

/* Makes the call in a thread, beside one that has stopped, and meanwhile other calls on the same rsocket. */
static void beside_a_stopped_thread(void *(*call)(void *))
{
	pthread_t stopping, caller;
	struct pollfd entry = { .fd = tested, .events = POLLIN };
	int value;
	socklen_t len = sizeof(value);

	EXPECT(!sem_init(&has_stopped, 0, 0) && !sem_init(&may_go_on, 0, 0));
	EXPECT(!pthread_create(&stopping, NULL, make_datagram_socket, NULL) && !sem_wait(&has_stopped));
	EXPECT(!pthread_create(&caller, NULL, call, NULL));
	EXPECT(await_sleep(&caller_id));
	EXPECT(!rgetsockopt(tested, SOL_SOCKET, SO_SNDBUF, &value, &len));
	EXPECT(rpoll(&entry, 1, 0) == 0);
	EXPECT(!sem_post(&may_go_on));
	EXPECT(!pthread_join(caller, NULL) && !pthread_join(stopping, NULL));
}

/* ---- the calls ---------------------------------------------------------------------------------------- */

static void *switch_keepalives_on(void *unused)
{
	caller_id = gettid();
	EXPECT(!rsetsockopt(tested, SOL_SOCKET, SO_KEEPALIVE, &(int){ 1 }, sizeof(int)));
	return unused;
}

static void keepalives(void)
{
	struct rspair pair;

	EXPECT(rs_pair(&pair, AF_INET));
	tested = pair.client;
	beside_a_stopped_thread(switch_keepalives_on);
	rs_pair_close(&pair);
}

static void *shut_down(void *unused)
{
	caller_id = gettid();
	EXPECT(!rshutdown(tested, SHUT_WR));
	return unused;
}

/* A peer without receives, so the data does not arrive. Over iWARP it counts as arrived. */
static void shutdown_in_the_background(void)
{
	struct peer peer = { 0 };

	peer_connects(&peer, false);
	tested = peer.victim;
	rs_nonblock(tested, true);
	EXPECT(rsend(tested, "nobody", 6, 0) == 6);
	beside_a_stopped_thread(shut_down);
	peer_close(&peer);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(keepalives);
	CASE_IF(!on_siw(), shutdown_in_the_background);
	return finish();
}
