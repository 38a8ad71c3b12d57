/*
 * A thread is cancelled (pthread_cancel(3)) in a call that blocks: it ends, as with a socket, and other threads can
 * still use the rsocket. Run on ours only; the reference's rsocket cannot be used after a cancelled rrecv.
 */
#include "rsblocked.h"

static void cancel(struct blocked *blocked)
{
	void *result;

	EXPECT(!pthread_cancel(blocked->thread) && !pthread_join(blocked->thread, &result));
	EXPECT(result == PTHREAD_CANCELED);
}

static bool works(void)
{
	char byte;

	return rsend(pair.client, "x", 1, 0) == 1 && rrecv(pair.server, &byte, 1, 0) == 1 &&
	       rsend(pair.server, "y", 1, 0) == 1 && rrecv(pair.client, &byte, 1, 0) == 1 && byte == 'y';
}

/* The call is cancelled more than once, and leaves no descriptor. */
static void cancelled(ssize_t (*call)(int), int *fd)
{
	struct blocked blocked;
	int before = 0;

	EXPECT(rs_pair(&pair, AF_INET));
	for (int round = 0; round < 3; round++) {
		if (round == 1)
			before = open_fds();
		start_blocked(&blocked, call, *fd);
		cancel(&blocked);
		EXPECT(works());
	}
	EXPECT(open_fds() == before);
	rs_pair_close(&pair);
}

static void in_recv(void) { cancelled(call_recv, &pair.server); }
static void in_poll(void) { cancelled(call_poll, &pair.server); }

/* A poll that sleeps in the kernel's, for several. */
static ssize_t call_poll_all(int fd)
{
	struct pollfd entries[] = { { .fd = fd, .events = POLLIN }, { .fd = pair.client, .events = POLLIN },
				    { .fd = pair.listener, .events = POLLIN } };

	return rpoll(entries, 3, -1);
}

static void in_poll_of_several(void) { cancelled(call_poll_all, &pair.server); }

/* A message, and the event that tells of it, are not lost with the thread. */
static void as_a_message_arrives(void)
{
	ssize_t (*const calls[])(int) = { call_recv, call_poll, call_poll_all };

	for (int round = 0; round < 60; round++) {
		struct blocked blocked;
		void *result;
		char byte;

		EXPECT(rs_pair(&pair, AF_INET));
		start_blocked(&blocked, calls[round % 3], pair.server);
		EXPECT(rsend(pair.client, "x", 1, 0) == 1);
		EXPECT(!pthread_cancel(blocked.thread) && !pthread_join(blocked.thread, &result));
		if (result == PTHREAD_CANCELED || round % 3)
			EXPECT(rrecv(pair.server, &byte, 1, 0) == 1 && byte == 'x');
		EXPECT(works());
		rs_pair_close(&pair);
	}
}

static struct repoll repoll;

static ssize_t call_epoll(int fd)
{
	struct epoll_event event;

	return repoll.wait(fd, &event, 1, -1);
}

static void in_repoll_wait(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 7 };
	struct blocked blocked;
	int ep;

	EXPECT(find_repoll(&repoll) && rs_pair(&pair, AF_INET) && (ep = repoll.create(0)) >= 0);
	EXPECT(!repoll.control(ep, EPOLL_CTL_ADD, pair.server, &event));
	start_blocked(&blocked, call_epoll, ep);
	cancel(&blocked);
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	EXPECT(repoll.wait(ep, &event, 1, -1) == 1 && event.data.u32 == 7);
	EXPECT(rrecv(pair.server, data, 1, 0) == 1 && works() && !rclose(ep));
	rs_pair_close(&pair);
}

static void in_accept(void)
{
	struct blocked blocked;
	int client = rsocket(AF_INET, SOCK_STREAM, 0), server;

	EXPECT(rs_pair(&pair, AF_INET));
	start_blocked(&blocked, call_accept, pair.listener);
	cancel(&blocked);
	EXPECT(!rconnect(client, &pair.to.sa, addr_len(&pair.to)) && (server = raccept(pair.listener, NULL, NULL)) >= 0);
	EXPECT(!rclose(client) && !rclose(server));
	rs_pair_close(&pair);
}

static void in_connect(void)
{
	struct blocked blocked;
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(fd >= 0);
	start_blocked(&blocked, call_connect, fd);
	cancel(&blocked);
	EXPECT(!rclose(fd));
}

/* The peer's word that it has read comes later than it has read: on soft-iWARP some time later. */
static void read_until_there_is_room(void)
{
	struct pollfd ends[] = { { .fd = pair.client, .events = POLLOUT }, { .fd = pair.server, .events = POLLIN } };

	while (rsend(pair.client, "z", 1, MSG_DONTWAIT) != 1) {
		EXPECT(rpoll(ends, 2, -1) > 0);
		if (ends[1].revents)
			EXPECT(rrecv(pair.server, data, sizeof(data), 0) > 0);
	}
}

static void in_send(void)
{
	struct blocked blocked;

	EXPECT(rs_pair(&pair, AF_INET));
	fill_up(pair.client);
	start_blocked(&blocked, call_send, pair.client);
	cancel(&blocked);
	read_until_there_is_room();
	rs_pair_close(&pair);
}

/* Of two waiting threads the one that sleeps in the channel, and the one that it wakes. */
static void one_of_two(void)
{
	struct blocked first, second;

	for (int which = 0; which < 2; which++) {
		EXPECT(rs_pair(&pair, AF_INET));
		start_blocked(&first, call_recv, pair.server);
		start_blocked(&second, call_recv, pair.server);
		cancel(which ? &second : &first);
		EXPECT(rsend(pair.client, "x", 1, 0) == 1);
		join(which ? &first : &second);
		EXPECT((which ? first : second).ret == 1 && works());
		rs_pair_close(&pair);
	}
}

/* Calls that need not sleep: a cancellation point all the same, as those of sockets. */
static ssize_t call_recv_now(int fd) { return rrecv(fd, data, 1, MSG_DONTWAIT); }
static ssize_t call_recvmsg_now(int fd)
{
	struct iovec part = { data, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	return rrecvmsg(fd, &message, MSG_DONTWAIT);
}
static ssize_t call_accept_now(int fd) { return raccept(fd, NULL, NULL); }
/* None of our rsockets: the fast path does not take it. */
static ssize_t call_send_in_vain(int fd) { return rsend(fd + 1000, "x", 1, 0); }

static ssize_t (*repeated)(int);
static volatile bool repeats;

static void *repeat(void *unused)
{
	for (;;) {
		repeated(pair.server);
		repeats = true;
	}
	return unused;
}

static void without_sleep(void)
{
	ssize_t (*const calls[])(int) = { call_recv_now, call_recvmsg_now, call_accept_now, call_send_in_vain };

	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		struct blocked blocked;

		EXPECT(rs_pair(&pair, AF_INET));
		repeated = calls[i];
		repeats = false;
		EXPECT(!pthread_create(&blocked.thread, NULL, repeat, NULL));
		while (!repeats)
			pause_briefly();
		cancel(&blocked);
		EXPECT(works());
		rs_pair_close(&pair);
	}
}

/* rclose cannot be cancelled. */
static ssize_t call_close(int fd)
{
	ssize_t ret;

	pthread_cancel(pthread_self());
	ret = rclose(fd);
	pair.server = -1;
	pthread_testcancel();
	return ret;
}

static void pending_in_close(void)
{
	pthread_t thread;
	struct blocked blocked = { .call = call_close };
	char byte;

	EXPECT(rs_pair(&pair, AF_INET));
	blocked.fd = pair.server;
	EXPECT(!pthread_create(&thread, NULL, block, &blocked) && !pthread_join(thread, NULL) && pair.server == -1);
	EXPECT(rrecv(pair.client, &byte, 1, 0) == 0);
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(in_recv);
	CASE(in_poll);
	CASE(in_poll_of_several);
	CASE(as_a_message_arrives);
	CASE(in_repoll_wait);
	CASE(in_accept);
	/* Soft-iWARP's rdma_connect waits for TCP in the kernel. */
	CASE_IF(!on_siw(), in_connect);
	CASE(in_send);
	CASE(one_of_two);
	CASE(without_sleep);
	CASE(pending_in_close);
	return finish();
}
