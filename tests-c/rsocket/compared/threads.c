/* Many threads: reader and writer of one socket, connections at once, listeners at once. */
#define _GNU_SOURCE
#include "rscommon.h"

enum { THREADS = 6, ROUNDS = 5, AMOUNT = 300000 };

static struct rspair pair;

static void *writer(void *argument)
{
	int fd = (int)(long)argument;
	char *data = malloc(AMOUNT);
	size_t sent;

	fill(data, AMOUNT, 1, 0);
	sent = send_all(fd, data, AMOUNT);
	free(data);
	return (void *)sent;
}

static void *reader(void *argument)
{
	int fd = (int)(long)argument;
	char *data = malloc(AMOUNT);
	size_t got = recv_all(fd, data, AMOUNT);

	got = filled(data, got, 1, 0) ? got : 0;
	free(data);
	return (void *)got;
}

static void four_threads(void)
{
	struct worker *workers[4];

	topic("reader and writer on both ends");
	if (!rs_pair(&pair, AF_INET))
		return;
	workers[0] = worker_start(writer, (void *)(long)pair.client);
	workers[1] = worker_start(writer, (void *)(long)pair.server);
	workers[2] = worker_start(reader, (void *)(long)pair.client);
	workers[3] = worker_start(reader, (void *)(long)pair.server);
	for (int i = 0; i < 4; i++)
		obs("%s %zu", i < 2 ? "sent" : "received", (size_t)worker_join(workers[i]));
	rs_pair_close(&pair);
}

/* Whole connections, each thread with its own listener. */
static void *own_pairs(void *argument)
{
	long good = 0;
	char byte;

	(void)argument;
	for (int i = 0; i < ROUNDS; i++) {
		struct rspair own;

		good += rs_pair(&own, AF_INET) && rsend(own.client, "x", 1, 0) == 1 &&
			rrecv(own.server, &byte, 1, 0) == 1;
		rs_pair_close(&own);
	}
	return (void *)good;
}

static void separate(void)
{
	struct worker *workers[THREADS];
	long good = 0;

	topic("separate connections");
	for (int i = 0; i < THREADS; i++)
		workers[i] = worker_start(own_pairs, NULL);
	for (int i = 0; i < THREADS; i++)
		good += (long)worker_join(workers[i]);
	obs("good %ld of %d", good, THREADS * ROUNDS);
}

/* Threads with clients of one listener; each sends its number and receives it back. */
static void *numbered_client(void *argument)
{
	int number = (int)(long)argument, back = -1, fd = rsocket(AF_INET, SOCK_STREAM, 0);

	if (rconnect(fd, &pair.to.sa, addr_len(&pair.to)) ||
	    rsend(fd, &number, sizeof(number), 0) != sizeof(number) ||
	    rrecv(fd, &back, sizeof(back), MSG_WAITALL) != sizeof(back))
		back = -2;
	rclose(fd);
	return (void *)(long)(back == number);
}

static void *echo(void *argument)
{
	int fd = (int)(long)argument, number;

	if (rrecv(fd, &number, sizeof(number), MSG_WAITALL) == sizeof(number))
		rsend(fd, &number, sizeof(number), 0);
	rrecv(fd, &number, sizeof(number), 0);
	rclose(fd);
	return NULL;
}

static void one_listener(void)
{
	struct worker *clients[THREADS], *servers[THREADS];
	int listener = rs_listener(AF_INET, &pair.to, NULL);
	long good = 0;

	topic("one listener");
	for (int i = 0; i < THREADS; i++)
		clients[i] = worker_start(numbered_client, (void *)(long)i);
	for (int i = 0; i < THREADS; i++)
		servers[i] = worker_start(echo, (void *)(long)raccept(listener, NULL, NULL));
	for (int i = 0; i < THREADS; i++) {
		good += (long)worker_join(clients[i]);
		worker_join(servers[i]);
	}
	obs("good %ld", good);
	CALL(rclose(listener));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	four_threads();
	separate();
	one_listener();
	return finish();
}
