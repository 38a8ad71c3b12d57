/*
 * The time of a process's first calls: first start; first bind ADDRESS; first connect ADDRESS PORT;
 * first message ADDRESS PORT, the first on a connection, of 64 KB, until the server's answer arrives;
 * first server ADDRESS PORT, which prints "ready" and accepts connections until it is killed.
 */
#define _GNU_SOURCE
#include "net.h"
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <time.h>

static double microseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static struct sockaddr_in address_of(const char *text, const char *port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };

	if (inet_pton(AF_INET, text, &address.sin_addr) != 1)
		exit(2);
	return address;
}

static bool bind_first(struct sockaddr_in address)
{
	struct rdma_cm_id *id;

	return rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0 && rdma_bind_addr(id, (struct sockaddr *)&address) == 0;
}

static bool connect_first(struct sockaddr_in address)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	return fd >= 0 && rconnect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
}

static char message[65536];

/* Returns whether all of the message was received. */
static bool receive_message(int fd)
{
	size_t done = 0;
	ssize_t count;

	while (done < sizeof(message) && (count = rrecv(fd, message + done, sizeof(message) - done, 0)) > 0)
		done += (size_t)count;
	return done == sizeof(message);
}

static int time_message(struct sockaddr_in address)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	double start;

	if (fd < 0 || rconnect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		return 1;
	start = microseconds();
	for (size_t done = 0; done < sizeof(message);) {
		ssize_t count = rsend(fd, message + done, sizeof(message) - done, 0);

		if (count <= 0)
			return 1;
		done += (size_t)count;
	}
	if (rrecv(fd, message, 1, 0) != 1)
		return 1;
	printf("first:message %.1f\n", microseconds() - start);
	return rclose(fd) != 0;
}

static int serve(struct sockaddr_in address)
{
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), fd;
	char end;

	if (rbind(listener, (struct sockaddr *)&address, sizeof(address)) || rlisten(listener, 128))
		return 1;
	puts("ready");
	fflush(stdout);
	while ((fd = raccept(listener, NULL, NULL)) >= 0) {
		if (receive_message(fd))
			rsend(fd, message, 1, 0);
		/* The client's end: on one processor, closing here would delay the client's receiving. */
		rrecv(fd, &end, 1, 0);
		rclose(fd);
	}
	return 1;
}

int main(int argc, char **argv)
{
	bool connects = argc == 4 && !strcmp(argv[1], "connect");
	double start;

	if (argc == 2 && !strcmp(argv[1], "start"))
		return 0;
	if (argc == 4 && !strcmp(argv[1], "server"))
		return serve(address_of(argv[2], argv[3]));
	if (argc == 4 && !strcmp(argv[1], "message"))
		return time_message(address_of(argv[2], argv[3]));
	if (!connects && !(argc == 3 && !strcmp(argv[1], "bind")))
		return 2;
	start = microseconds();
	if (!(connects ? connect_first(address_of(argv[2], argv[3])) : bind_first(address_of(argv[2], "0")))) {
		perror(argv[1]);
		return 1;
	}
	printf("first:%s %.1f\n", argv[1], microseconds() - start);
	return 0;
}
