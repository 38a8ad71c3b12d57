/*
 * An echo server on blocking rsockets, with a thread for each client: rsockets do not survive fork(2).
 *
 * blocking_server PORT answers the clients of echo_client.c.
 */
#include <rdma/rsocket.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fatal(const char *what)
{
	perror(what);
	exit(1);
}

/* A call may take less than it was given. */
static bool send_all(int fd, const char *bytes, size_t length)
{
	while (length > 0) {
		/* Without the flag a client that has gone ends the process by SIGPIPE. */
		ssize_t count = rsend(fd, bytes, length, MSG_NOSIGNAL);

		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return false;
		bytes += count;
		length -= (size_t)count;
	}
	return true;
}

static void *serve(void *argument)
{
	int fd = (int)(intptr_t)argument;
	char bytes[16384];
	ssize_t count;

	/* It ends with 0 when the client has closed or shut down its side. */
	while ((count = rrecv(fd, bytes, sizeof(bytes), 0)) != 0) {
		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0 || !send_all(fd, bytes, (size_t)count)) {
			perror("client");
			break;
		}
	}
	/* Waits until the client has what was sent. */
	if (rclose(fd))
		perror("rclose");
	return NULL;
}

static void start(int fd, const pthread_attr_t *detached)
{
	pthread_t thread;
	int on = 1, error;

	/* Otherwise a client whose host has lost its power would keep its thread for ever. */
	if (rsetsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)))
		perror("SO_KEEPALIVE");
	error = pthread_create(&thread, detached, serve, (void *)(intptr_t)fd);
	if (error) {
		fprintf(stderr, "pthread_create: %s\n", strerror(error));
		rclose(fd);
	}
}

int main(int argc, char **argv)
{
	/* IPv4: over iWARP a listener at the IPv6 wildcard takes no IPv4 clients. */
	struct sockaddr_in any = { .sin_family = AF_INET };
	pthread_attr_t detached;
	int listener, fd;

	if (argc != 2) {
		fprintf(stderr, "usage: %s PORT\n", argv[0]);
		return 2;
	}
	any.sin_port = htons((in_port_t)atoi(argv[1]));
	listener = rsocket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || rbind(listener, (struct sockaddr *)&any, sizeof(any)) || rlisten(listener, 64))
		fatal("cannot listen");
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	printf("listening\n");
	fflush(stdout);
	for (;;) {
		fd = raccept(listener, NULL, NULL);
		if (fd >= 0)
			start(fd, &detached);
		else if (errno != EINTR && errno != ECONNABORTED)
			/* For example EMFILE: the connections that there are end with the process. */
			fatal("raccept");
	}
}
