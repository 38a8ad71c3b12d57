/* Sending and receiving on connected streams: flags, partial reads, vectors, large transfers. */
#define _GNU_SOURCE
#include "rscommon.h"

#include <sched.h>

enum { LARGE = 4 << 20 };

static struct rspair pair;

/* Returns when `count` bytes can be read at once. */
static void await_bytes(int fd, size_t count)
{
	char scratch[4096];

	poll_wait(fd, POLLIN);
	while (rrecv(fd, scratch, sizeof(scratch), MSG_PEEK) < (ssize_t)count)
		pause_briefly();
}

static void small(void)
{
	char buf[64] = "";

	topic("small");
	CALL((int)rsend(pair.client, "hello world", 11, 0));
	await_bytes(pair.server, 11);
	CALL((int)rrecv(pair.server, buf, 5, MSG_PEEK));
	CALL((int)rrecv(pair.server, buf, 64, MSG_PEEK));
	CALL((int)rrecv(pair.server, buf, 5, 0));
	obs("read %.5s", buf);
	CALL((int)rrecv(pair.server, buf, 64, MSG_PEEK));
	CALL((int)rread(pair.server, buf, 64));
	obs("read %.6s", buf);
	CALL((int)rwrite(pair.server, "answer", 6));
	CALL((int)rrecv(pair.client, buf, 6, MSG_WAITALL));
	obs("read %.6s", buf);
	CALL((int)rsend(pair.client, "one", 3, 0));
	CALL((int)rsend(pair.client, "two", 3, 0));
	await_bytes(pair.server, 6);
	CALL((int)rrecv(pair.server, buf, 64, 0));
	obs("read %.6s", buf);
}

static void flags(void)
{
	char buf[64];

	topic("flags");
	CALL((int)rrecv(pair.server, buf, 64, MSG_DONTWAIT));
	CALL((int)rrecv(pair.server, buf, 64, MSG_DONTWAIT | MSG_PEEK));
	CALL((int)rrecv(pair.server, buf, 64, MSG_DONTWAIT | MSG_WAITALL));
	CALL((int)rsend(pair.client, "x", 1, MSG_NOSIGNAL));
	CALL((int)rrecv(pair.server, buf, 1, MSG_NOSIGNAL));
	CALL((int)rsend(pair.client, "x", 1, MSG_DONTWAIT));
	await_bytes(pair.server, 1);
	CALL((int)rrecv(pair.server, buf, 64, MSG_DONTWAIT));
}

static void empty(void)
{
	char buf[8] = "";

	topic("zero length");
	CALL((int)rsend(pair.client, buf, 0, 0));
	CALL((int)rwrite(pair.client, buf, 0));
	CALL((int)rrecv(pair.server, buf, 8, MSG_DONTWAIT));
	CALL((int)rsend(pair.client, "ab", 2, 0));
	await_bytes(pair.server, 2);
	CALL((int)rrecv(pair.server, buf, 0, 0));
	CALL((int)rrecv(pair.server, buf, 8, 0));
}

static void *writer_of_parts(void *argument)
{
	(void)argument;
	for (int i = 0; i < 10; i++) {
		rsend(pair.client, "0123456789", 10, 0);
		pause_briefly();
	}
	return NULL;
}

static void wait_all(void)
{
	char buf[200];
	struct worker *worker;

	topic("MSG_WAITALL");
	worker = worker_start(writer_of_parts, NULL);
	CALL((int)rrecv(pair.server, buf, 100, MSG_WAITALL));
	worker_join(worker);
	obs("last %.10s", buf + 90);
}

/* The address of a stream's sender is the peer's. */
static void senders(void)
{
	char buf[4];

	CALL((int)rsend(pair.client, "0123", 4, 0));
	await_bytes(pair.server, 4);
	for (socklen_t room = 0; room <= 32; room += 16) {
		union address from = { 0 }, peer = { 0 };
		socklen_t len = room, peer_len = room;

		CALL((int)rrecvfrom(pair.server, buf, 1, 0, &from.sa, &len));
		CALL(rgetpeername(pair.server, &peer.sa, &peer_len));
		obs("room %u: length %u and %u, %s", room, len, peer_len, memcmp(&from, &peer, sizeof(from)) ? "another" : "the peer");
	}
	CALL((int)rrecv(pair.server, buf, 4, MSG_DONTWAIT));
}

static void vectors(void)
{
	char a[4] = "", b[8] = "", buf[32] = "";
	struct iovec out[4] = { { "abc", 3 }, { NULL, 0 }, { "defgh", 5 }, { "ij", 2 } };
	struct iovec in = { buf, sizeof(buf) };
	struct msghdr msg = { .msg_iov = out, .msg_iovlen = 4 };

	topic("vectors");
	CALL((int)rwritev(pair.client, out, 4));
	await_bytes(pair.server, 10);
	CALL((int)rreadv(pair.server, &in, 1));
	obs("read %.10s", buf);
	CALL((int)rsendmsg(pair.client, &msg, 0));
	await_bytes(pair.server, 10);
	msg = (struct msghdr){ .msg_iov = &in, .msg_iovlen = 1 };
	CALL((int)rrecvmsg(pair.server, &msg, 0));
	obs("read %.10s", buf);
	CALL((int)rsend(pair.client, "0123456789", 10, 0));
	await_bytes(pair.server, 10);
	in = (struct iovec){ a, 3 };
	CALL((int)rreadv(pair.server, &in, 1));
	in = (struct iovec){ b, 7 };
	CALL((int)rreadv(pair.server, &in, 1));
	obs("read %s %s", a, b);
	CALL((int)rsendto(pair.client, "x", 1, 0, NULL, 0));
	CALL((int)rrecvfrom(pair.server, buf, 1, 0, NULL, NULL));
	senders();
}

/* Number of bytes to send in calls of `step` bytes: small calls take long. */
static size_t amount(size_t step)
{
	return step * 2000 < LARGE ? step * 2000 : LARGE;
}

/* Sends amount(step) bytes in calls of `step`; the pattern's seed is the step. */
static void *sender(void *argument)
{
	size_t step = ((size_t *)argument)[0], done = 0, all = amount(step);
	int fd = (int)((size_t *)argument)[1];
	char *data = malloc(step);

	while (done < all) {
		size_t now = step < all - done ? step : all - done;

		fill(data, now, (unsigned)step, done);
		if (send_all(fd, data, now) != now)
			break;
		done += now;
	}
	free(data);
	return (void *)done;
}

/* Receives everything even if the data is wrong, so that the sender does not wait. */
static size_t receive_checked(int fd, size_t read_step, size_t step)
{
	size_t done = 0, good = 0, all = amount(step);
	char *data = malloc(read_step);

	while (done < all) {
		ssize_t ret = rrecv(fd, data, read_step, 0);

		if (ret <= 0)
			break;
		if (filled(data, (size_t)ret, (unsigned)step, done))
			good += (size_t)ret;
		done += (size_t)ret;
	}
	free(data);
	return good;
}

static void large(void)
{
	static const size_t steps[][2] = {
		{ LARGE, LARGE }, { 1 << 20, 1000 }, { 65536, 65536 }, { 4097, 100000 },
		{ 100, 65536 }, { 63, 64 },
	};

	topic("large");
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		size_t to_server[2] = { steps[i][0], (size_t)pair.client };
		struct worker *worker = worker_start(sender, to_server);
		size_t got = receive_checked(pair.server, steps[i][1], steps[i][0]);

		obs("by %zu to %zu: sent %zu, received %zu", steps[i][0], steps[i][1],
		    (size_t)worker_join(worker), got);
	}
}

static void *receiver(void *argument)
{
	(void)argument;
	return (void *)receive_checked(pair.client, 65536, 50000);
}

static void both_ways(void)
{
	size_t to_server[2] = { 30000, (size_t)pair.client };
	size_t to_client[2] = { 50000, (size_t)pair.server };
	struct worker *workers[3];
	size_t got;

	topic("both ways");
	workers[0] = worker_start(sender, to_server);
	workers[1] = worker_start(sender, to_client);
	workers[2] = worker_start(receiver, NULL);
	got = receive_checked(pair.server, 65536, 30000);
	obs("server received %zu", got);
	obs("client received %zu", (size_t)worker_join(workers[2]));
	obs("sent %zu %zu", (size_t)worker_join(workers[0]), (size_t)worker_join(workers[1]));
}

/* A peer that does not read: the sender blocks, and continues later. */
static void full(void)
{
	static char data[100000];
	struct pollfd entry = { .fd = pair.client, .events = POLLOUT };
	size_t sent = 0, received = 0;
	bool good = true;
	int error = 0;
	ssize_t ret;

	topic("full");
	/* Data of the previous case may still fill the buffer. */
	poll_wait(pair.client, POLLOUT);
	rs_nonblock(pair.client, true);
	for (;;) {
		fill(data, sizeof(data), 3, sent);
		ret = rsend(pair.client, data, sizeof(data), 0);
		if (ret > 0) {
			sent += (size_t)ret;
			continue;
		}
		/* The send queue may have been what was full: completions of it bring space back. */
		error = errno;
		if (rpoll(&entry, 1, 200) != 1)
			break;
	}
	obs("stopped by %s", errno_name(error));
	CHECK(sent > 0);
	poll_now("client", pair.client, POLLOUT);
	while (received < sent) {
		ret = rrecv(pair.server, data, sizeof(data), 0);
		if (ret <= 0)
			break;
		good = good && filled(data, (size_t)ret, 3, received);
		received += (size_t)ret;
	}
	CHECK(received == sent && good);
	CALL((int)rrecv(pair.server, data, 1, MSG_DONTWAIT));
	poll_wait(pair.client, POLLOUT);
	CALL((int)rsend(pair.client, "x", 1, 0));
	CALL((int)rrecv(pair.server, data, 1, 0));
	rs_nonblock(pair.client, false);
}

/*
 * Whether each send of a block that follows POLLOUT takes all of it, while the peer reads only when there is no space.
 * Programs that send to each other so, in blocking mode, would wait for each other otherwise.
 */
static bool blocks_fit(size_t block)
{
	static char data[65536];
	struct pollfd entry = { .fd = pair.client, .events = POLLOUT };
	size_t sent = 0, received = 0, total = 16 * sizeof(data);
	bool whole = true, good = true;
	ssize_t ret;

	while (received < total) {
		while (sent < total && rpoll(&entry, 1, 0) == 1) {
			fill(data, block, 4, sent);
			ret = rsend(pair.client, data, block, MSG_DONTWAIT);
			whole = whole && ret == (ssize_t)block;
			sent += ret > 0 ? (size_t)ret : 0;
		}
		ret = rrecv(pair.server, data, sizeof(data), MSG_DONTWAIT);
		good = good && filled(data, ret > 0 ? (size_t)ret : 0, 4, received);
		received += ret > 0 ? (size_t)ret : 0;
	}
	return whole && good;
}

/* Each on a connection of its own. The first blocks of a connection may be up to 8 KB. */
static void blocks(void)
{
	topic("blocks");
	for (size_t block = 512; block <= 8192; block *= 2) {
		rs_pair_close(&pair);
		if (rs_pair(&pair, AF_INET))
			obs("%zu bytes: %s", block, blocks_fit(block) ? "whole" : "short");
	}
	obs("16384 bytes: %s", blocks_fit(16384) ? "whole" : "short");
}

int main(int argc, char **argv)
{
	start(argc, argv);
	topic("connect");
	if (rs_pair(&pair, AF_INET)) {
		small();
		flags();
		empty();
		wait_all();
		vectors();
		large();
		both_ways();
		full();
		blocks();
	}
	rs_pair_close(&pair);
	return finish();
}
