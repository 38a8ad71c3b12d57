/*
 * fork() while rsockets are open: what a child does with its copies does not touch the parent's.
 * Run on ours only.
 */
#include "cases.h"
#include "rscommon.h"

#include <sys/mman.h>

static struct rspair pair;

/* Replaces the C library's function, also for the library. A kernel before 4.14 has no MADV_WIPEONFORK. */
static bool is_old;
static volatile unsigned int wiped, not_inherited;

int madvise(void *start, size_t len, int advice)
{
	if (is_old && advice == MADV_WIPEONFORK) {
		errno = EINVAL;
		return -1;
	}
	wiped += advice == MADV_WIPEONFORK;
	not_inherited += advice == MADV_DONTFORK;
	return (int)syscall(SYS_madvise, start, len, advice);
}

static void exchange(const char *text)
{
	char buf[16] = "";
	size_t len = strlen(text);

	EXPECT(rsend(pair.client, text, len, 0) == (ssize_t)len);
	EXPECT(rrecv(pair.server, buf, len, MSG_WAITALL) == (ssize_t)len && !strcmp(buf, text));
	EXPECT(rsend(pair.server, text, len, 0) == (ssize_t)len);
	EXPECT(rrecv(pair.client, buf, len, MSG_WAITALL) == (ssize_t)len && !strcmp(buf, text));
}

static void child_exits(pid_t child)
{
	EXPECT(child_done(child));
}

/* All of its copies, in any order, while the parent goes on. */
static void child_closes_its_copies(void)
{
	pid_t child;

	EXPECT(rs_pair(&pair, AF_INET));
	exchange("before");
	child = fork();
	if (child == 0) {
		/* A connection has two descriptors. */
		int fds = open_fds();

		EXPECT(!rclose(pair.client) && open_fds() == fds - 2);
		EXPECT(!rclose(pair.listener) && open_fds() == fds - 3);
		EXPECT(!rclose(pair.server) && open_fds() == fds - 5);
		_exit(CHILD_DONE);
	}
	exchange("meanwhile");
	child_exits(child);
	exchange("after");
	EXPECT(poll_wait(pair.client, POLLIN | POLLOUT) == POLLOUT);
	rs_pair_close(&pair);
}

/* Memory that a device writes is no page of the child, with either kernel. */
static void the_child_gets_no_buffers(void)
{
	for (int old = 0; old < 2; old++) {
		wiped = not_inherited = 0;
		is_old = old;
		EXPECT(rs_pair(&pair, AF_INET));
		EXPECT(old ? !wiped && not_inherited : wiped && !not_inherited);
		rs_pair_close(&pair);
	}
}

/* exit() runs the library's destructors in the child. */
static void child_exits_normally(void)
{
	pid_t child;

	EXPECT(rs_pair(&pair, AF_INET));
	child = fork();
	if (child == 0)
		exit(CHILD_DONE);
	child_exits(child);
	exchange("after");
	rs_pair_close(&pair);
}

/* The listener still accepts when the child has closed its copy. */
static void listener_goes_on(void)
{
	union address to;
	int listener = rs_listener(AF_INET, &to, NULL), fd;
	pid_t child = fork();

	if (child == 0) {
		EXPECT(!rclose(listener));
		_exit(CHILD_DONE);
	}
	child_exits(child);
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	EXPECT(!rconnect(fd, &to.sa, sizeof(to.in)));
	EXPECT(!rclose(raccept(listener, NULL, NULL)));
	EXPECT(!rclose(fd) && !rclose(listener));
}

/* A child can create its own sockets. */
static void child_begins_anew(void)
{
	pid_t child;

	EXPECT(rs_pair(&pair, AF_INET));
	child = fork();
	if (child == 0) {
		EXPECT(rs_pair(&pair, AF_INET));
		exchange("child");
		rs_pair_close(&pair);
		_exit(CHILD_DONE);
	}
	exchange("parent");
	child_exits(child);
	exchange("parent");
	rs_pair_close(&pair);
}

/* The parent is blocked in a call while another thread forks. */
static void *waits(void *argument)
{
	char byte;

	(void)argument;
	return (void *)rrecv(pair.server, &byte, 1, 0);
}

static void fork_beside_a_blocked_thread(void)
{
	pthread_t thread;
	void *ret;
	pid_t child;

	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(!pthread_create(&thread, NULL, waits, NULL));
	for (int i = 0; i < 5; i++) {
		child = fork();
		if (child == 0) {
			EXPECT(!rclose(pair.server));
			_exit(CHILD_DONE);
		}
		child_exits(child);
	}
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	pthread_join(thread, &ret);
	EXPECT((long)ret == 1);
	rs_pair_close(&pair);
}

static struct repoll repoll;

/* One event, of the member whose number is 7. */
static void reports_reading(int ep)
{
	struct epoll_event event = { 0 };

	EXPECT(repoll.wait(ep, &event, 1, -1) == 1 && event.events == EPOLLIN && event.data.u32 == 7);
}

/* A repoll works in the parent only: a child's process does not get its events. */
static void the_parents_repoll(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 7 };
	char byte;
	int ep;
	pid_t child;

	EXPECT(find_repoll(&repoll));
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT((ep = repoll.create(0)) >= 0);
	EXPECT(!repoll.control(ep, EPOLL_CTL_ADD, pair.server, &event));
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	EXPECT(repoll.wait(ep, &event, 1, -1) == 1);
	child = fork();
	if (child == 0) {
		alarm(hang_seconds());
		EXPECT_ERROR(repoll.wait(ep, &event, 1, 0), EBADF);
		EXPECT_ERROR(repoll.control(ep, EPOLL_CTL_ADD, pair.client, &event), EBADF);
		EXPECT(!rclose(ep));
		_exit(CHILD_DONE);
	}
	child_exits(child);
	/* Still readable, then not, then again. */
	reports_reading(ep);
	EXPECT(rrecv(pair.server, &byte, 1, 0) == 1);
	EXPECT(repoll.wait(ep, &event, 1, 0) == 0);
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	reports_reading(ep);
	EXPECT(!rclose(ep));
	rs_pair_close(&pair);
}

/* As of a program that calls daemon(3) after it has made its repoll. */
static void a_repoll_for_the_child(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 7 };
	int ep;
	pid_t child;

	EXPECT(find_repoll(&repoll) && rs_pair(&pair, AF_INET));
	EXPECT((ep = repoll.create(0)) >= 0);
	child = fork();
	if (child == 0) {
		alarm(hang_seconds());
		/* Not with the parent's rsockets. */
		EXPECT_ERROR(repoll.control(ep, EPOLL_CTL_ADD, pair.server, &event), EBADF);
		EXPECT(rs_pair(&pair, AF_INET));
		EXPECT(!repoll.control(ep, EPOLL_CTL_ADD, pair.server, &event));
		EXPECT(rsend(pair.client, "x", 1, 0) == 1);
		reports_reading(ep);
		EXPECT(!rclose(ep));
		rs_pair_close(&pair);
		_exit(CHILD_DONE);
	}
	EXPECT(!rclose(ep));
	child_exits(child);
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(child_closes_its_copies);
	CASE(the_child_gets_no_buffers);
	CASE(child_exits_normally);
	CASE(listener_goes_on);
	CASE(child_begins_anew);
	CASE(fork_beside_a_blocked_thread);
	CASE(the_parents_repoll);
	CASE(a_repoll_for_the_child);
	return finish();
}
