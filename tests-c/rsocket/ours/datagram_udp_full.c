/*
 * Datagram sockets whose UDP socket has no room: they are not writable, and become so when there is. Run on ours only, for
 * the reference's datagrams do not work over RoCE.
 *
 * Packets to a neighbour that does not answer wait for its MAC address, and take the room that the socket has.
 */
#include "cases.h"
#include "rscommon.h"

#include <pthread.h>

enum { BYTES = 1024, MOST = 1000, LEAST_BUFFER = 2048 };

static union address silent_neighbour(uint8_t number)
{
	union address address = local_addr(AF_INET, 7471);

	((uint8_t *)&address.in.sin_addr)[3] = number;
	return address;
}

/* The neighbour is not given up meanwhile. */
static void be_patient(void)
{
	FILE *setting = fopen("/proc/sys/net/ipv4/neigh/v0/retrans_time_ms", "we");

	EXPECT(setting && fputs("600000", setting) >= 0 && !fclose(setting));
}

/* Its packets leave. */
static void appears(const union address *neighbour)
{
	const uint8_t *a = (const uint8_t *)&neighbour->in.sin_addr;
	char command[128];

	snprintf(command, sizeof(command), "ip neigh replace %d.%d.%d.%d lladdr 02:00:00:00:00:99 dev v0 nud permanent",
		 a[0], a[1], a[2], a[3]);
	EXPECT(system(command) == 0);
}

static int full(const union address *to)
{
	union address own = local_addr(AF_INET, 0);
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0), size = LEAST_BUFFER, sent = 0;
	char bytes[BYTES] = { 0 };

	EXPECT(fd >= 0 && !rbind(fd, &own.sa, addr_len(&own)));
	EXPECT(!rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)));
	EXPECT(poll_wait(fd, POLLOUT) == POLLOUT);
	while (rsendto(fd, bytes, BYTES, MSG_DONTWAIT, &to->sa, addr_len(to)) == BYTES)
		EXPECT(++sent < MOST);
	EXPECT_ERROR(rsendto(fd, bytes, BYTES, MSG_DONTWAIT, &to->sa, addr_len(to)), EAGAIN);
	return fd;
}

struct waiting {
	int fd;
	union address to;
	ssize_t result;
};

static void *wait_by_rpoll(void *argument)
{
	struct waiting *waiting = argument;

	waiting->result = poll_wait(waiting->fd, POLLOUT) == POLLOUT;
	return NULL;
}

static void *wait_by_sending(void *argument)
{
	struct waiting *waiting = argument;
	char byte = 0;

	waiting->result = rsendto(waiting->fd, &byte, 1, 0, &waiting->to.sa, addr_len(&waiting->to));
	return NULL;
}

static void *wait_by_edge(void *argument)
{
	struct waiting *waiting = argument;
	struct epoll_event event = { .events = EPOLLOUT | EPOLLET };
	struct repoll repoll;
	int set, result;

	if (find_repoll(&repoll)) {
		EXPECT((set = repoll.create(0)) >= 0);
		EXPECT(!repoll.control(set, EPOLL_CTL_ADD, waiting->fd, &event));
		/* As epoll_wait(2) it is interrupted by the SIGCHLD of system(3), which no handler catches. */
		do
			result = repoll.wait(set, &event, 1, -1);
		while (result == -1 && errno == EINTR);
		waiting->result = result == 1 && event.events == EPOLLOUT;
		EXPECT(!rclose(set));
	} else {
		waiting->result = poll_wait(waiting->fd, POLLOUT) == POLLOUT;
	}
	return NULL;
}

static void waits_for_room(void *(*how)(void *), uint8_t neighbour)
{
	struct waiting waiting = { .to = silent_neighbour(neighbour) };
	struct pollfd entry = { .events = POLLOUT };
	pthread_t thread;

	entry.fd = waiting.fd = full(&waiting.to);
	EXPECT(rpoll(&entry, 1, 0) == 0);
	EXPECT(!pthread_create(&thread, NULL, how, &waiting));
	appears(&waiting.to);
	EXPECT(!pthread_join(thread, NULL));
	EXPECT(waiting.result == 1);
	EXPECT(rpoll(&entry, 1, 0) == 1 && entry.revents == POLLOUT);
	EXPECT(!rclose(waiting.fd));
}

static void not_writable_for_rpoll(void) { waits_for_room(wait_by_rpoll, 100); }
static void not_writable_for_repoll(void) { waits_for_room(wait_by_edge, 101); }
static void a_blocking_send_waits(void) { waits_for_room(wait_by_sending, 102); }

int main(int argc, char **argv)
{
	start(argc, argv);
	be_patient();
	CASE(not_writable_for_rpoll);
	CASE(not_writable_for_repoll);
	CASE(a_blocking_send_waits);
	return finish();
}
