/*
 * The program that the scripts of docs/examples/bpftrace trace in tests/diag/bpftrace: traced ADDRESS PORT CONNECTIONS
 *
 * Connects to itself over rsockets, sends a different number of bytes over each connection, and prints what the scripts
 * must find: "connect MICROSECONDS" (as measured by the program), "sent SOCKET BYTES", "received SOCKET BYTES", and
 * last "refused", a connection to an unused port. The sockets stay open to the end, so that their numbers differ.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rsocket.h>

enum { MOST = 64, PIECE = 3000 };

static struct sockaddr_in address;
static int connections, listener, accepted[MOST], connected[MOST];
static size_t received[MOST];
static char bytes[PIECE];

static int must(int result, const char *what)
{
	if (result < 0) {
		perror(what);
		exit(1);
	}
	return result;
}

static void *serve(void *unused)
{
	for (int i = 0; i < connections; i++) {
		char into[1000];
		int got;

		accepted[i] = must(raccept(listener, NULL, NULL), "raccept");
		while ((got = must(rrecv(accepted[i], into, sizeof(into), 0), "rrecv")) > 0)
			received[i] += got;
	}
	return unused;
}

static long microseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* One connection: i + 1 complete pieces, some bytes, and the end of the stream. */
static void transfer(int i)
{
	size_t left = (i + 1) * PIECE + i, total = left;
	int fd = connected[i] = must(rsocket(AF_INET, SOCK_STREAM, 0), "rsocket");
	long start = microseconds();

	must(rconnect(fd, (struct sockaddr *)&address, sizeof(address)), "rconnect");
	printf("connect %ld\n", microseconds() - start);
	while (left > 0)
		left -= must(rsend(fd, bytes, left < PIECE ? left : PIECE, 0), "rsend");
	must(rshutdown(fd, SHUT_WR), "rshutdown");
	printf("sent %d %zu\n", fd, total);
}

static void refused(void)
{
	struct sockaddr_in nobody = address;
	int fd = must(rsocket(AF_INET, SOCK_STREAM, 0), "rsocket");

	nobody.sin_port = htons(ntohs(address.sin_port) + 1);
	if (rconnect(fd, (struct sockaddr *)&nobody, sizeof(nobody)) == 0 || errno != ECONNREFUSED) {
		fputs("the connection was not refused\n", stderr);
		exit(1);
	}
	puts("refused");
	rclose(fd);
}

int main(int argc, char **argv)
{
	pthread_t server;

	if (argc != 4 || (connections = atoi(argv[3])) < 1 || connections > MOST)
		return 2;
	address.sin_family = AF_INET;
	address.sin_port = htons(atoi(argv[2]));
	inet_pton(AF_INET, argv[1], &address.sin_addr);
	listener = must(rsocket(AF_INET, SOCK_STREAM, 0), "rsocket");
	must(rbind(listener, (struct sockaddr *)&address, sizeof(address)), "rbind");
	must(rlisten(listener, connections), "rlisten");
	if (pthread_create(&server, NULL, serve, NULL))
		return 1;
	for (int i = 0; i < connections; i++)
		transfer(i);
	pthread_join(server, NULL);
	for (int i = 0; i < connections; i++) {
		printf("received %d %zu\n", accepted[i], received[i]);
		rclose(connected[i]);
		rclose(accepted[i]);
	}
	rclose(listener);
	refused();
	printf("pid %d\n", getpid());
	return 0;
}
