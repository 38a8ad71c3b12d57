/*
 * Rsockets where only InfiniBand fails: streams and datagrams in several partitions, after a change
 * of LIDs, without a subnet manager, with a cable pulled. The far end is in the second host's
 * network namespace.
 */
#include "cases.h"
#include "fabric.h"
#include "rscommon.h"

#include <signal.h>

enum { BOTH = 0x8001 };

/* A socket on a host, bound to its address in a partition. */
static int socket_at(enum host host, int type, uint16_t pkey, union address *own)
{
	socklen_t len = sizeof(own->in);
	int fd;

	*own = host_addr(host, AF_INET, pkey, 0);
	EXPECT(enter_host(host));
	EXPECT((fd = rsocket(AF_INET, type, 0)) >= 0);
	EXPECT(!rbind(fd, &own->sa, sizeof(own->in)));
	EXPECT(!rgetsockname(fd, &own->sa, &len));
	EXPECT(enter_host(NEAR));
	return fd;
}

struct stream {
	int listener, client, server;
};

static struct stream connect_streams(uint16_t pkey)
{
	union address to, from;
	struct stream stream;

	stream.listener = socket_at(FAR, SOCK_STREAM, pkey, &to);
	EXPECT(!rlisten(stream.listener, 1));
	stream.client = socket_at(NEAR, SOCK_STREAM, pkey, &from);
	rs_nonblock(stream.client, true);
	EXPECT_ERROR(rconnect(stream.client, &to.sa, sizeof(to.in)), EINPROGRESS);
	EXPECT((stream.server = raccept(stream.listener, NULL, NULL)) >= 0);
	EXPECT(poll_wait(stream.client, POLLOUT) == POLLOUT);
	rs_nonblock(stream.client, false);
	return stream;
}

static void say(int from, int to, const char *text)
{
	char buffer[64] = "";
	ssize_t length = (ssize_t)strlen(text);

	EXPECT(rsend(from, text, (size_t)length, 0) == length);
	EXPECT(rrecv(to, buffer, (size_t)length, MSG_WAITALL) == length && !strcmp(buffer, text));
}

static void close_streams(struct stream stream)
{
	EXPECT(!rclose(stream.client) && !rclose(stream.server) && !rclose(stream.listener));
}

static void streams_in_two_partitions(void)
{
	struct stream usual = connect_streams(0), other = connect_streams(BOTH);

	for (int i = 0; i < 10; i++) {
		say(usual.client, usual.server, "default partition");
		say(other.server, other.client, "another partition");
	}
	close_streams(usual);
	close_streams(other);
}

/* A process of the far host that sends each datagram back, at this address. Its own: a process's datagram sockets share
 * a thread, which belongs to one host. */
static pid_t echo_at(uint16_t pkey, union address *address)
{
	char buffer[64];
	int ready[2], fd;
	pid_t child;

	EXPECT(!pipe(ready));
	child = fork();
	if (child == 0) {
		struct sockaddr_storage from;

		EXPECT(enter_host(FAR));
		*address = host_addr(FAR, AF_INET, pkey, 7600);
		EXPECT((fd = rsocket(AF_INET, SOCK_DGRAM, 0)) >= 0 && !rbind(fd, &address->sa, sizeof(address->in)));
		EXPECT(write(ready[1], "r", 1) == 1);
		for (;;) {
			socklen_t len = sizeof(from);
			ssize_t got = rrecvfrom(fd, buffer, sizeof(buffer), 0, (struct sockaddr *)&from, &len);

			if (got > 0)
				rsendto(fd, buffer, (size_t)got, 0, (struct sockaddr *)&from, len);
		}
	}
	EXPECT(child > 0 && read(ready[0], buffer, 1) == 1);
	close(ready[0]);
	close(ready[1]);
	*address = host_addr(FAR, AF_INET, pkey, 7600);
	return child;
}

static void end_echo(pid_t child)
{
	EXPECT(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
}

/* Datagrams until one comes back: those that are sent before the peer is known anew may be lost. */
static void echo(int fd, const union address *to, const char *text)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	ssize_t length = (ssize_t)strlen(text);
	char buffer[64] = "";

	do
		EXPECT(rsendto(fd, text, (size_t)length, 0, &to->sa, sizeof(to->in)) == length);
	while (!rpoll(&entry, 1, 100));
	EXPECT(rrecv(fd, buffer, sizeof(buffer), 0) == length && !strcmp(buffer, text));
	while (rpoll(&entry, 1, 200)) /* the rest of them */
		rrecv(fd, buffer, sizeof(buffer), 0);
}

static void datagrams_in_two_partitions(void)
{
	union address usual, other, own;
	pid_t first = echo_at(0, &usual), second = echo_at(BOTH, &other);
	int near = socket_at(NEAR, SOCK_DGRAM, 0, &own), second_near = socket_at(NEAR, SOCK_DGRAM, BOTH, &own);

	for (int i = 0; i < 3; i++) {
		echo(near, &usual, "default partition");
		echo(second_near, &other, "another partition");
	}
	EXPECT(!rclose(near) && !rclose(second_near));
	end_echo(first);
	end_echo(second);
}

/* A socket that is bound to no address has a path and a QP in each partition. */
static void datagrams_of_a_wildcard(void)
{
	union address any = any_addr(AF_INET, 0), usual, other;
	pid_t first = echo_at(0, &usual), second = echo_at(BOTH, &other);
	int near;

	EXPECT((near = rsocket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	EXPECT(!rbind(near, &any.sa, sizeof(any.in)));
	for (int i = 0; i < 3; i++) {
		echo(near, &usual, "default partition");
		echo(near, &other, "another partition");
	}
	EXPECT(!rclose(near));
	end_echo(first);
	end_echo(second);
}

static void datagrams_after_a_change_of_lids(void)
{
	union address to, own;
	pid_t far = echo_at(0, &to);
	int near = socket_at(NEAR, SOCK_DGRAM, 0, &own);
	unsigned int before = host_lid(FAR);

	echo(near, &to, "old LIDs");
	EXPECT(sm_renumber(true) && fabric_works());
	EXPECT(host_lid(FAR) != before);
	echo(near, &to, "new LIDs");
	EXPECT(!rclose(near));
	end_echo(far);
}

/* Sends for half a second. Returns the percentage that came back meanwhile. */
static int percent_back(int fd, const union address *to)
{
	int sent = 0, back = 0;
	struct timespec since;
	char buffer[64];

	clock_gettime(CLOCK_MONOTONIC, &since);
	while (elapsed_ms(&since) < 500) {
		struct pollfd entry = { .fd = fd, .events = POLLIN };

		sent += rsendto(fd, "x", 1, 0, &to->sa, sizeof(to->in)) == 1;
		rpoll(&entry, 1, 10);
		while (rrecv(fd, buffer, sizeof(buffer), MSG_DONTWAIT) >= 0)
			back++;
	}
	return sent ? back * 100 / sent : 0;
}

/* Paths are renewed while datagrams are sent over them all the time. */
static void steady_datagrams_after_a_change_of_lids(void)
{
	union address to, own;
	struct timespec since;
	unsigned int before = host_lid(FAR);
	pid_t far;
	int near;

	rs_configure("dgram_path_lifetime", 2);
	far = echo_at(0, &to);
	near = socket_at(NEAR, SOCK_DGRAM, 0, &own);
	echo(near, &to, "old LIDs");
	clock_gettime(CLOCK_MONOTONIC, &since);
	while (elapsed_ms(&since) < 5000)
		percent_back(near, &to);
	EXPECT(sm_renumber(before != 0x50) && fabric_works());
	EXPECT(host_lid(FAR) != before);
	clock_gettime(CLOCK_MONOTONIC, &since);
	while (percent_back(near, &to) < 80)
		EXPECT(elapsed_ms(&since) < 15000);
	rs_configure("dgram_path_lifetime", -1);
	EXPECT(!rclose(near));
	end_echo(far);
}

/* What was sent over the old LIDs is lost; the stream ends with an error, and new ones work. */
static void streams_after_a_change_of_lids(void)
{
	struct stream stream = connect_streams(0);
	char byte;

	say(stream.client, stream.server, "old LIDs");
	EXPECT(sm_renumber(host_lid(FAR) != 0x50) && fabric_works());
	EXPECT(rsend(stream.client, "x", 1, 0) == 1);
	EXPECT_ERROR(rrecv(stream.client, &byte, 1, 0), ETIMEDOUT);
	close_streams(stream);
	stream = connect_streams(0);
	say(stream.server, stream.client, "new LIDs");
	close_streams(stream);
}

static void streams_without_a_subnet_manager(void)
{
	struct stream stream = connect_streams(0);
	union address to = host_addr(FAR, AF_INET, 0, 7499);
	int fd;

	EXPECT(sm_stop());
	say(stream.client, stream.server, "nobody manages");
	EXPECT((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	EXPECT_ERROR(rconnect(fd, &to.sa, sizeof(to.in)), EINVAL); /* as the kernel says */
	EXPECT(!rclose(fd));
	EXPECT(sm_start("") && fabric_works());
	say(stream.server, stream.client, "managed again");
	close_streams(stream);
}

static void stream_over_a_pulled_cable(void)
{
	struct stream stream = connect_streams(0);
	char byte;

	EXPECT(cable(FAR, false) && await_port(FAR, "DOWN"));
	EXPECT(rsend(stream.client, "x", 1, 0) == 1);
	EXPECT_ERROR(rrecv(stream.client, &byte, 1, 0), ETIMEDOUT);
	EXPECT(cable(FAR, true) && fabric_works());
	close_streams(stream);
	stream = connect_streams(0);
	say(stream.client, stream.server, "plugged in");
	close_streams(stream);
}

static void datagrams_over_a_pulled_cable(void)
{
	union address to, own;
	pid_t far = echo_at(0, &to);
	int near = socket_at(NEAR, SOCK_DGRAM, 0, &own);

	echo(near, &to, "before");
	EXPECT(cable(FAR, false) && await_port(FAR, "DOWN"));
	for (int i = 0; i < 10; i++)
		EXPECT(rsendto(near, "lost", 4, 0, &to.sa, sizeof(to.in)) == 4);
	EXPECT(cable(FAR, true) && fabric_works());
	echo(near, &to, "after");
	EXPECT(!rclose(near));
	end_echo(far);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	if (!partition_link(NEAR, BOTH) || !partition_link(FAR, BOTH) || !partition_runs(NEAR, BOTH) || !partition_runs(FAR, BOTH))
		printf("FAIL set-up: no interfaces of the partition\n");
	CASE(streams_in_two_partitions);
	CASE(datagrams_in_two_partitions);
	CASE(datagrams_of_a_wildcard);
	CASE(datagrams_after_a_change_of_lids);
	CASE(steady_datagrams_after_a_change_of_lids);
	CASE(streams_after_a_change_of_lids);
	CASE(streams_without_a_subnet_manager);
	CASE(stream_over_a_pulled_cable);
	CASE(datagrams_over_a_pulled_cable);
	rs_configure("dgram_path_lifetime", -1);
	sm_renumber(false);
	cable(FAR, true);
	fabric_works();
	partition_unlink(NEAR, BOTH);
	partition_unlink(FAR, BOTH);
	return finish();
}
