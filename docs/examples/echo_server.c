/*
 * An echo server on rsockets for many clients in one thread, by repoll, the epoll(7) of rsockets.
 *
 * echo_server PORT. Needs rdma-core 65.0 or this library.
 */
#include <rdma/rsocket.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { EVENTS = 64 };

/* What a client has sent and not got back. */
struct client {
	int fd;
	size_t start, end;
	char bytes[16384];
};

static int instance;

static void fatal(const char *what)
{
	perror(what);
	exit(1);
}

static void watch(struct client *client, int operation, unsigned events)
{
	struct epoll_event event = { .events = events, .data.ptr = client };

	if (repoll_ctl(instance, operation, client->fd, &event))
		fatal("repoll_ctl");
}

static void accept_clients(int listener)
{
	int fd;

	while ((fd = raccept(listener, NULL, NULL)) >= 0) {
		struct client *client = calloc(1, sizeof(*client));

		if (!client) {
			rclose(fd);
			continue;
		}
		client->fd = fd;
		rfcntl(fd, F_SETFL, O_NONBLOCK);
		watch(client, EPOLL_CTL_ADD, EPOLLIN);
	}
	if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ECONNABORTED)
		fatal("raccept");
}

static void close_client(struct client *client)
{
	/* rdma-core does not close a member of an instance. */
	repoll_ctl(instance, EPOLL_CTL_DEL, client->fd, NULL);
	rclose(client->fd);
	free(client);
}

/* After a call that has failed. */
static void wait_or_close(struct client *client, unsigned events)
{
	if (errno == EAGAIN)
		watch(client, EPOLL_CTL_MOD, events);
	else
		close_client(client);
}

static void serve(struct client *client)
{
	ssize_t count;

	for (;;) {
		if (client->start < client->end) {
			count = rsend(client->fd, client->bytes + client->start, client->end - client->start, MSG_NOSIGNAL);
			if (count < 0) {
				wait_or_close(client, EPOLLOUT);
				return;
			}
			client->start += (size_t)count;
			continue;
		}
		count = rrecv(client->fd, client->bytes, sizeof(client->bytes), 0);
		if (count < 0) {
			wait_or_close(client, EPOLLIN);
			return;
		}
		if (count == 0) {
			close_client(client);
			return;
		}
		client->start = 0;
		client->end = (size_t)count;
	}
}

int main(int argc, char **argv)
{
	/* IPv4: over iWARP a listener at the IPv6 wildcard takes no IPv4 clients. */
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct epoll_event events[EVENTS];
	struct client listener;
	int count;

	if (argc != 2) {
		fprintf(stderr, "usage: %s PORT\n", argv[0]);
		return 2;
	}
	any.sin_port = htons((in_port_t)atoi(argv[1]));
	listener.fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	instance = repoll_create(0);
	if (listener.fd < 0 || instance < 0 || rbind(listener.fd, (struct sockaddr *)&any, sizeof(any)) ||
	    rlisten(listener.fd, 64))
		fatal("cannot listen");
	watch(&listener, EPOLL_CTL_ADD, EPOLLIN);
	printf("listening\n");
	fflush(stdout);
	while ((count = repoll_wait(instance, events, EVENTS, -1)) >= 0 || errno == EINTR)
		for (int i = 0; i < count; i++)
			if (events[i].data.ptr == &listener)
				accept_clients(listener.fd);
			else
				serve(events[i].data.ptr);
	fatal("repoll_wait");
}
