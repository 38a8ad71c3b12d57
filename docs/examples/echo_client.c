/*
 * A client for echo_server.c: echo_client ADDRESS PORT sends its input and prints what comes back.
 * The calls are those of sockets with an r before their names.
 */
#include <rdma/rsocket.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void fatal(const char *what)
{
	perror(what);
	exit(1);
}

static int connect_to(const char *address, const char *port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
	int fd, error = getaddrinfo(address, port, &hints, &found);

	if (error) {
		fprintf(stderr, "%s: %s\n", address, gai_strerror(error));
		exit(1);
	}
	fd = rsocket(found->ai_family, SOCK_STREAM, 0);
	if (fd < 0 || rconnect(fd, found->ai_addr, found->ai_addrlen))
		fatal("rconnect");
	freeaddrinfo(found);
	return fd;
}

int main(int argc, char **argv)
{
	char bytes[4096];
	ssize_t length, sent, count;
	int fd;

	if (argc != 3) {
		fprintf(stderr, "usage: %s ADDRESS PORT\n", argv[0]);
		return 2;
	}
	fd = connect_to(argv[1], argv[2]);
	while ((length = read(STDIN_FILENO, bytes, sizeof(bytes))) > 0) {
		/* A call may take less than it was given. */
		for (sent = 0; sent < length; sent += count) {
			count = rsend(fd, bytes + sent, (size_t)(length - sent), MSG_NOSIGNAL);
			if (count < 0)
				fatal("rsend");
		}
		count = rrecv(fd, bytes, (size_t)length, MSG_WAITALL);
		if (count < 0)
			fatal("rrecv");
		if (fwrite(bytes, 1, (size_t)count, stdout) < (size_t)count)
			fatal("output");
		/* No call has failed, and errno says nothing. */
		if (count < length) {
			fprintf(stderr, "echo: the server has ended the connection\n");
			return 1;
		}
	}
	if (length < 0)
		fatal("input");
	if (fflush(stdout))
		fatal("output");
	/* Waits until all data has arrived, as for a TCP socket with SO_LINGER. */
	if (rclose(fd))
		fatal("rclose");
	return 0;
}
