/* Shutting down in every order, the end of the stream, poll bits, closing. */
#define _GNU_SOURCE
#include "rscommon.h"

static struct rspair pair;
static char buf[64];

/* What a send after the end returns is in ours/state_errors: the reference may return 1. */
static bool begin(const char *what)
{
	topic("%s", what);
	return rs_pair(&pair, AF_INET);
}

static void client_writes_no_more(void)
{
	if (!begin("SHUT_WR"))
		return;
	CALL((int)rsend(pair.client, "last", 4, 0));
	CALL(rshutdown(pair.client, SHUT_WR));
	poll_now("client", pair.client, POLLIN);
	CALL((int)rrecv(pair.server, buf, 64, MSG_WAITALL));
	CALL((int)rrecv(pair.server, buf, 64, 0));
	CALL((int)rrecv(pair.server, buf, 64, 0));
	poll_now("server", pair.server, POLLIN | POLLOUT);
	CALL((int)rsend(pair.server, "answer", 6, 0));
	CALL((int)rrecv(pair.client, buf, 6, MSG_WAITALL));
	CALL(rshutdown(pair.server, SHUT_WR));
	CALL((int)rrecv(pair.client, buf, 64, 0));
	obs("client becomes %s", poll_str(poll_gone(pair.client)));
	obs("server becomes %s", poll_str(poll_gone(pair.server)));
	rs_pair_close(&pair);
}

static void both_write_no_more(void)
{
	if (!begin("SHUT_WR on both"))
		return;
	CALL((int)rsend(pair.client, "c", 1, 0));
	CALL((int)rsend(pair.server, "s", 1, 0));
	CALL(rshutdown(pair.client, SHUT_WR));
	CALL(rshutdown(pair.server, SHUT_WR));
	CALL((int)rrecv(pair.client, buf, 64, MSG_WAITALL));
	CALL((int)rrecv(pair.server, buf, 64, MSG_WAITALL));
	CALL((int)rrecv(pair.client, buf, 64, 0));
	CALL((int)rrecv(pair.server, buf, 64, 0));
	rs_pair_close(&pair);
}

static void client_reads_no_more(void)
{
	if (!begin("SHUT_RD"))
		return;
	CALL(rshutdown(pair.client, SHUT_RD));
	CALL((int)rrecv(pair.client, buf, 64, 0));
	poll_now("client", pair.client, POLLIN);
	CALL((int)rsend(pair.client, "x", 1, 0));
	CALL((int)rrecv(pair.server, buf, 64, 0));
	poll_now("server", pair.server, POLLIN | POLLOUT);
	CALL(rshutdown(pair.client, SHUT_WR));
	CALL((int)rrecv(pair.server, buf, 64, 0));
	obs("server becomes %s", poll_str(poll_gone(pair.server)));
	rs_pair_close(&pair);
}

static void both_ways(void)
{
	if (!begin("SHUT_RDWR"))
		return;
	CALL((int)rsend(pair.client, "data", 4, 0));
	CALL(rshutdown(pair.client, SHUT_RDWR));
	obs("client becomes %s", poll_str(poll_gone(pair.client)));
	obs("server becomes %s", poll_str(poll_gone(pair.server)));
	poll_now("server", pair.server, POLLIN);
	CALL((int)rrecv(pair.server, buf, 2, 0));
	CALL((int)rrecv(pair.server, buf, 64, 0));
	CALL((int)rrecv(pair.server, buf, 64, 0));
	CALL((int)rrecv(pair.client, buf, 64, 0));
	CALL(rshutdown(pair.client, SHUT_RDWR));
	CALL(rshutdown(pair.server, SHUT_RDWR));
	obs("SO_ERROR %s %s", so_error(pair.client), so_error(pair.server));
	rs_pair_close(&pair);
}

static void peer_closes(void)
{
	if (!begin("close"))
		return;
	CALL((int)rsend(pair.client, "data", 4, 0));
	CALL(rclose(pair.client));
	pair.client = -1;
	obs("server becomes %s", poll_str(poll_gone(pair.server)));
	poll_now("server", pair.server, POLLIN | POLLOUT);
	CALL((int)rrecv(pair.server, buf, 64, MSG_WAITALL));
	CALL((int)rrecv(pair.server, buf, 64, 0));
	poll_now("server", pair.server, POLLIN | POLLOUT);
	rs_pair_close(&pair);
}

static void unread_data(void)
{
	if (!begin("close with unread data"))
		return;
	CALL((int)rsend(pair.client, "data", 4, 0));
	poll_wait(pair.server, POLLIN);
	CALL(rclose(pair.server));
	pair.server = -1;
	poll_gone(pair.client);
	obs("client becomes gone");
	rs_pair_close(&pair);
}

static void much_then_close(void)
{
	static char data[50000];
	size_t got = 0;
	ssize_t ret;

	if (!begin("much, then close"))
		return;
	fill(data, sizeof(data), 9, 0);
	CALL((int)rsend(pair.client, data, sizeof(data), 0));
	CALL(rclose(pair.client));
	pair.client = -1;
	memset(data, 0, sizeof(data));
	while ((ret = rrecv(pair.server, data + got, sizeof(data) - got, 0)) > 0)
		got += (size_t)ret;
	obs("received %zu, then %zd, %s", got, ret, filled(data, got, 9, 0) ? "as sent" : "damaged");
	rs_pair_close(&pair);
}

static void linger(int on, int seconds)
{
	struct linger value = { .l_onoff = on, .l_linger = seconds };

	topic("linger %d %d", on, seconds);
	if (!rs_pair(&pair, AF_INET))
		return;
	CALL(rsetsockopt(pair.client, SOL_SOCKET, SO_LINGER, &value, sizeof(value)));
	CALL(rclose(pair.client));
	pair.client = -1;
	poll_gone(pair.server);
	obs("server sees it");
	rs_pair_close(&pair);
}

/* rshutdown of an unconnected socket hangs with some references: see ours/state_errors. */
static void listening(void)
{
	union address to;
	int listener = rs_listener(AF_INET, &to, NULL);

	topic("listener closes");
	CALL(rclose(listener));
	listener = rsocket(AF_INET, SOCK_STREAM, 0);
	CALL(rconnect(listener, &to.sa, addr_len(&to)));
	CALL(rclose(listener));
}

/* The listener is closed; a connection that it accepted stays open. */
static void without_listener(void)
{
	if (!begin("listener gone"))
		return;
	CALL(rclose(pair.listener));
	pair.listener = -1;
	CALL((int)rsend(pair.client, "still", 5, 0));
	CALL((int)rrecv(pair.server, buf, 5, MSG_WAITALL));
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	client_writes_no_more();
	both_write_no_more();
	client_reads_no_more();
	both_ways();
	peer_closes();
	unread_data();
	much_then_close();
	linger(0, 0);
	linger(1, 5);
	linger(1, 0);
	listening();
	without_listener();
	return finish();
}
