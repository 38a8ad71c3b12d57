/* Both ends of a connection across the lab's network, in one process. */
#ifndef TESTS_RSFAULTS_ENDS_H
#define TESTS_RSFAULTS_ENDS_H

#include "faults.h"

static int client, server, listener;

/* The script beside this file: "down", "good", "loss 5", "delay 20ms". */
static inline void link_is(const char *state)
{
	char command[512];

	snprintf(command, sizeof(command), "%s %s %s", getenv("RSFAULTS_LINK"), device, state);
	EXPECT(system(command) == 0);
}

static inline void connected(void)
{
	int entries = 4;
	union address address;
	/* Closing the server must not wait for a client that was killed without disconnecting. */
	struct linger linger = { .l_onoff = 1, .l_linger = 1 };

	link_is("good");
	listener = listen_far(&address);
	client = rsocket(AF_INET, SOCK_STREAM, 0);
	EXPECT(client >= 0 && !rsetsockopt(client, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof(entries)));
	EXPECT(!rconnect(client, &address.sa, sizeof(address.in)));
	EXPECT((server = raccept(listener, NULL, NULL)) >= 0);
	EXPECT(!rsetsockopt(server, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
}

static inline uint8_t byte_at(size_t place) { return (uint8_t)(place * 13 + place / 251); }

/* Reads up to offset `until`, or to the end. */
static inline size_t receive_to(size_t got, size_t until)
{
	static uint8_t bytes[7777];

	while (got < until) {
		size_t len = until - got < sizeof(bytes) ? until - got : sizeof(bytes);
		ssize_t count = rrecv(server, bytes, len, 0);

		if (count < 0)
			printf("     after %zu bytes: %s\n", got, errno_name(errno));
		EXPECT(count >= 0);
		if (count == 0)
			break;
		for (ssize_t i = 0; i < count; i++)
			EXPECT(bytes[i] == byte_at(got + (size_t)i));
		got += (size_t)count;
	}
	return got;
}

static inline void all_closed(void)
{
	EXPECT(!rclose(client) && !rclose(server) && !rclose(listener));
}

#endif
