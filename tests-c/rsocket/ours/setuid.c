/*
 * Programs that change their user while they are connected, as daemons do once they know their
 * client. The kernel refuses write(2) on a device file to a process with other credentials than it
 * had when it opened the file, which is how software devices are notified of new work; with the
 * reference such connections fail. Also addresses passed to streams, which are ignored as by TCP.
 */
#include "cases.h"
#include "rscommon.h"
#include "raw_peer.h"

#include <grp.h>
#include <signal.h>

static struct rspair pair;
static char data[300000], back[sizeof(data)];

enum { NOBODY = 65534 };

static void become_nobody(void)
{
	EXPECT(!setgroups(0, NULL) && !setgid(NOBODY) && !setuid(NOBODY));
}

static void *echo(void *argument)
{
	(void)argument;
	recv_all(pair.server, back, sizeof(back));
	send_all(pair.server, back, sizeof(back));
	return NULL;
}

/* More than all buffers hold, so that control messages are needed as well. */
static void there_and_back(void)
{
	pthread_t thread;

	fill(data, sizeof(data), 5, 0);
	pthread_create(&thread, NULL, echo, NULL);
	EXPECT(send_all(pair.client, data, sizeof(data)) == sizeof(data));
	memset(data, 0, sizeof(data));
	EXPECT(recv_all(pair.client, data, sizeof(data)) == sizeof(data));
	EXPECT(filled(data, sizeof(data), 5, 0));
	pthread_join(thread, NULL);
}

static void stream(void)
{
	EXPECT(rs_pair(&pair, AF_INET));
	become_nobody();
	EXPECT(rsend(pair.client, "x", 1, 0) == 1 && rrecv(pair.server, back, 1, 0) == 1);
	there_and_back();
	EXPECT(!rshutdown(pair.client, SHUT_WR) && rrecv(pair.server, back, 1, 0) == 0);
	EXPECT(!rclose(pair.client) && !rclose(pair.server));
}

static void waiting(void)
{
	struct pollfd fds[2] = { { .events = POLLIN }, { .events = POLLIN } };

	EXPECT(rs_pair(&pair, AF_INET));
	become_nobody();
	fds[0].fd = pair.server;
	fds[1].fd = pair.client;
	EXPECT(rpoll(fds, 2, 0) == 0);
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	EXPECT(rpoll(fds, 2, -1) == 1 && fds[0].revents == POLLIN);
	EXPECT(rrecv(pair.server, back, 1, 0) == 1);
}

static void with_mappings(int fd)
{
	int count = 1;

	EXPECT(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &count, sizeof(count)));
}

static void mapped_memory(void)
{
	off_t offset;

	EXPECT(rs_pair_with(&pair, AF_INET, with_mappings));
	offset = riomap(pair.server, back, 4096, PROT_WRITE, 0, -1);
	EXPECT(offset != -1);
	become_nobody();
	fill(data, 4096, 6, 0);
	EXPECT(rsend(pair.server, "x", 1, 0) == 1 && rrecv(pair.client, back + 8192, 1, 0) == 1);
	EXPECT(riowrite(pair.client, data, 4096, offset, 0) == 4096);
	EXPECT(rsend(pair.client, "x", 1, 0) == 1 && rrecv(pair.server, back + 8192, 1, 0) == 1);
	EXPECT(filled(back, 4096, 6, 0));
}

static void datagrams(void)
{
	union address to = local_addr(AF_INET, 0);
	int a = rsocket(AF_INET, SOCK_DGRAM, 0), b = rsocket(AF_INET, SOCK_DGRAM, 0);
	socklen_t len = sizeof(to);

	EXPECT(a >= 0 && b >= 0 && !rbind(b, &to.sa, sizeof(to.in)));
	EXPECT(!rgetsockname(b, &to.sa, &len));
	EXPECT(rsendto(a, "one", 3, 0, &to.sa, len) == 3 && rrecv(b, back, sizeof(back), 0) == 3);
	become_nobody();
	EXPECT(rsendto(a, "three", 5, 0, &to.sa, len) == 5 && rrecv(b, back, sizeof(back), 0) == 5);
}

/* ---- what was made before the change and is used after it -------------------------------------- */

static int client_starts(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(fd >= 0);
	rs_nonblock(fd, true);
	EXPECT_ERROR(rconnect(fd, &pair.to.sa, addr_len(&pair.to)), EINPROGRESS);
	return fd;
}

/* A new client: connected, and accepted by the pair's listener. */
static void client_comes(void)
{
	pair.client = client_starts();
	EXPECT((pair.server = raccept(pair.listener, NULL, NULL)) >= 0);
	EXPECT(poll_wait(pair.client, POLLOUT) == POLLOUT);
	rs_nonblock(pair.client, false);
}

static void client_goes(void)
{
	EXPECT(!rclose(pair.client) && !rclose(pair.server));
}

/* Requests come to the listener as events of a device file that was opened by another user. */
static void listener(void)
{
	EXPECT((pair.listener = rs_listener(AF_INET, &pair.to, NULL)) >= 0);
	become_nobody();
	for (int i = 0; i < 2; i++) {
		client_comes();
		there_and_back();
		client_goes();
	}
	EXPECT(!rclose(pair.listener));
}

static void connecting(void)
{
	EXPECT((pair.client = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	become_nobody();
	EXPECT((pair.listener = rs_listener(AF_INET, &pair.to, NULL)) >= 0);
	EXPECT(!rconnect(pair.client, &pair.to.sa, addr_len(&pair.to)));
	EXPECT((pair.server = raccept(pair.listener, NULL, NULL)) >= 0);
	there_and_back();
	client_goes();
	EXPECT(!rclose(pair.listener));
}

static void binding(void)
{
	socklen_t len = sizeof(pair.to);

	EXPECT((pair.listener = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	become_nobody();
	pair.to = local_addr(AF_INET, 0);
	EXPECT(!rbind(pair.listener, &pair.to.sa, addr_len(&pair.to)));
	EXPECT(!rlisten(pair.listener, 4));
	EXPECT(!rgetsockname(pair.listener, &pair.to.sa, &len));
	client_comes();
	there_and_back();
	client_goes();
	EXPECT(!rclose(pair.listener));
}

/* A process of the user nobody that connects to the given address, and stays. */
static pid_t start_peer(int *tell)
{
	int ends[2];
	pid_t child;

	EXPECT(!pipe(ends));
	child = fork();
	EXPECT(child >= 0);
	if (child == 0) {
		/* By who will kill it. */
		become_nobody();
		EXPECT(read(ends[0], &pair.to, sizeof(pair.to)) == sizeof(pair.to));
		EXPECT((pair.client = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
		EXPECT(!rconnect(pair.client, &pair.to.sa, addr_len(&pair.to)));
		for (;;)
			pause();
	}
	EXPECT(!close(ends[0]));
	*tell = ends[1];
	return child;
}

/* Only the connection manager's events show its end: it sends no shutdown message. */
static void peer_is_killed(void)
{
	int tell, status, before, error;
	pid_t child = start_peer(&tell);
	ssize_t ret;

	before = fds_before();
	EXPECT((pair.listener = rs_listener(AF_INET, &pair.to, NULL)) >= 0);
	EXPECT(write(tell, &pair.to, sizeof(pair.to)) == sizeof(pair.to));
	EXPECT((pair.server = raccept(pair.listener, NULL, NULL)) >= 0);
	become_nobody();
	EXPECT(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	ret = rrecv(pair.server, back, 1, 0);
	error = errno;
	EXPECT(ret == 0 || (ret == -1 && error == ECONNRESET));
	EXPECT(!rclose(pair.server) && !rclose(pair.listener));
	fds_come_back(before);
}

/* Not an address: recvfrom() has not changed it, and its length is 0 or not. */
static void streams_ignore_addresses(void)
{
	union address none;
	struct iovec part = { "cd", 2 };
	struct msghdr msg = { .msg_name = &none, .msg_namelen = 3, .msg_iov = &part, .msg_iovlen = 1 };

	memset(&none, 0xff, sizeof(none));
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT(rsendto(pair.client, "ab", 2, 0, &none.sa, sizeof(none)) == 2);
	EXPECT(rsendmsg(pair.client, &msg, 0) == 2);
	EXPECT(recv_all(pair.server, back, 4) == 4 && !memcmp(back, "abcd", 4));
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(stream);
	CASE(waiting);
	CASE(mapped_memory);
	CASE_IF(!on_siw(), datagrams);
	CASE(listener);
	CASE(connecting);
	CASE(binding);
	CASE(peer_is_killed);
	CASE(streams_ignore_addresses);
	return finish();
}
