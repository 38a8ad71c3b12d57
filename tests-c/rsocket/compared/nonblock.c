/* Non-blocking connecting and accepting: results, poll bits and SO_ERROR in each state. */
#define _GNU_SOURCE
#include "rscommon.h"

static int new_client(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	rs_nonblock(fd, true);
	return fd;
}

/* A non-blocking connect fails with EINPROGRESS, or succeeds immediately on the same host. */
static void begin(int fd, const union address *to)
{
	int ret;

	errno = 0;
	ret = rconnect(fd, &to->sa, addr_len(to));
	if (ret && errno != EINPROGRESS)
		obs("rconnect -> %d %s", ret, errno_name(errno));
	else
		obs("rconnect -> begun");
}

static void success(void)
{
	union address to;
	int listener = rs_listener(AF_INET, &to, NULL), client = new_client(), server;
	char byte;

	topic("success");
	rs_nonblock(listener, true);
	poll_now("listener", listener, POLLIN);
	CALL(raccept(listener, NULL, NULL));
	begin(client, &to);
	obs("client becomes %s", poll_str(poll_wait(client, POLLOUT)));
	obs("SO_ERROR %s", so_error(client));
	obs("listener becomes %s", poll_str(poll_wait(listener, POLLIN)));
	server = raccept(listener, NULL, NULL);
	CHECK(server >= 0);
	rs_nonblock(server, true);
	CALL(raccept(listener, NULL, NULL));
	poll_now("client", client, POLLIN | POLLOUT);
	poll_now("server", server, POLLIN | POLLOUT);
	CALL((int)rrecv(client, &byte, 1, 0));
	CALL((int)rrecv(server, &byte, 1, 0));
	CALL((int)rsend(client, "x", 1, 0));
	obs("server becomes %s", poll_str(poll_wait(server, POLLIN)));
	CALL((int)rrecv(server, &byte, 1, 0));
	CALL((int)rrecv(server, &byte, 1, 0));
	rclose(client);
	rclose(server);
	rclose(listener);
}

/* Connected to before raccept: the listener is readable, the client can send already. */
static void before_accept(void)
{
	union address to;
	int listener = rs_listener(AF_INET, &to, NULL), client = new_client(), server;
	char buf[8] = "";

	topic("data before accept");
	begin(client, &to);
	poll_wait(client, POLLOUT);
	CALL((int)rsend(client, "early", 5, 0));
	obs("listener becomes %s", poll_str(poll_wait(listener, POLLIN)));
	server = raccept(listener, NULL, NULL);
	CALL((int)rrecv(server, buf, 5, MSG_WAITALL));
	obs("read %s", buf);
	rclose(client);
	rclose(server);
	rclose(listener);
}

static void *accept_later(void *argument)
{
	int fd = raccept(*(int *)argument, NULL, NULL);

	return (void *)(long)fd;
}

static void blocking_accept(void)
{
	union address to;
	int listener = rs_listener(AF_INET, &to, NULL), client = new_client(), server;
	struct worker *worker = worker_start(accept_later, &listener);

	topic("blocking accept");
	begin(client, &to);
	server = (int)(long)worker_join(worker);
	CHECK(server >= 0);
	poll_wait(client, POLLOUT);
	obs("SO_ERROR %s", so_error(client));
	rclose(client);
	rclose(server);
	rclose(listener);
}

static void several(void)
{
	union address to;
	int listener = rs_listener(AF_INET, &to, NULL), clients[8], servers[8], count = 0;

	topic("several");
	for (int i = 0; i < 8; i++) {
		clients[i] = new_client();
		begin(clients[i], &to);
	}
	for (int i = 0; i < 8; i++)
		count += poll_wait(clients[i], POLLOUT) == POLLOUT;
	obs("connected %d", count);
	rs_nonblock(listener, true);
	for (count = 0; count < 8; count++) {
		poll_wait(listener, POLLIN);
		servers[count] = raccept(listener, NULL, NULL);
		if (!CHECK(servers[count] >= 0))
			break;
	}
	CALL(raccept(listener, NULL, NULL));
	while (count > 0)
		rclose(servers[--count]);
	for (int i = 0; i < 8; i++)
		rclose(clients[i]);
	rclose(listener);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	success();
	before_accept();
	blocking_accept();
	several();
	return finish();
}
