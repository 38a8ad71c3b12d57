/* A hundred connections at once, data on each of them, polled together. */
#define _GNU_SOURCE
#include "rscommon.h"

enum { COUNT = 100, ROUNDS = 3, LENGTH = 3000 };

static int clients[COUNT], servers[COUNT];
static char data[LENGTH];

static int connect_all(int listener, const union address *to)
{
	int count = 0;

	for (int i = 0; i < COUNT; i++) {
		clients[i] = rsocket(AF_INET, SOCK_STREAM, 0);
		if (!SETUP(!rconnect(clients[i], &to->sa, addr_len(to))))
			break;
		servers[i] = raccept(listener, NULL, NULL);
		if (!SETUP(servers[i] >= 0))
			break;
		count++;
	}
	return count;
}

/* All clients send; the servers are read as rpoll finds them readable. */
static size_t read_by_poll(unsigned round)
{
	static size_t got[COUNT];
	struct pollfd fds[COUNT];
	size_t open = COUNT, good = 0;

	memset(got, 0, sizeof(got));
	for (int i = 0; i < COUNT; i++)
		fds[i] = (struct pollfd){ .fd = servers[i], .events = POLLIN };
	while (open && rpoll(fds, COUNT, -1) > 0)
		for (unsigned i = 0; i < COUNT; i++) {
			ssize_t ret;

			if (!(fds[i].revents & POLLIN))
				continue;
			ret = rrecv(servers[i], data, LENGTH - got[i], 0);
			if (ret <= 0)
				return good;
			good += filled(data, (size_t)ret, i + round, got[i]) ? (size_t)ret : 0;
			got[i] += (size_t)ret;
			if (got[i] == LENGTH) {
				fds[i].events = 0;
				open--;
			}
		}
	return good;
}

static void traffic(void)
{
	for (unsigned round = 0; round < ROUNDS; round++) {
		size_t sent = 0, back = 0;

		topic("round %u", round);
		for (unsigned i = 0; i < COUNT; i++) {
			fill(data, LENGTH, i + round, 0);
			sent += send_all(clients[i], data, LENGTH);
		}
		obs("sent %zu, received %zu", sent, read_by_poll(round));
		for (unsigned i = 0; i < COUNT; i++) {
			fill(data, LENGTH, i, 0);
			sent = send_all(servers[i], data, LENGTH);
			back += recv_all(clients[i], data, sent);
		}
		obs("sent back %zu", back);
	}
}

int main(int argc, char **argv)
{
	union address to;
	int listener, count, ended = 0;
	char byte;

	start(argc, argv);
	/* 44.0 fails before a hundred. */
	if (!optional_symbol("repoll_create"))
		skip_all("this library can not have so many connections");
	topic("connect");
	listener = rs_listener(AF_INET, &to, NULL);
	count = connect_all(listener, &to);
	obs("connected %d", count);
	if (count == COUNT)
		traffic();
	topic("close");
	for (int i = 0; i < count; i++)
		rclose(clients[i]);
	for (int i = 0; i < count; i++)
		ended += rrecv(servers[i], &byte, 1, 0) == 0;
	obs("ended %d", ended);
	for (int i = 0; i < count; i++)
		rclose(servers[i]);
	CALL(rclose(listener));
	return finish();
}
