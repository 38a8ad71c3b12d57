/* Links that lose packets, or go down for a while or permanently: data arrives complete, or the calls fail. */
#include "ends.h"

#include <netinet/tcp.h>

/* The transport gives up after eight tries of some seconds each. */
enum { ALARM_SECONDS = 60 };

static size_t amount;

static ssize_t sends_all(void)
{
	static uint8_t bytes[10000];

	for (size_t sent = 0; sent < amount;) {
		size_t len = amount - sent < sizeof(bytes) ? amount - sent : sizeof(bytes);

		for (size_t i = 0; i < len; i++)
			bytes[i] = byte_at(sent + i);
		EXPECT(rsend(client, bytes, len, 0) == (ssize_t)len);
		sent += len;
	}
	return rshutdown(client, SHUT_WR);
}

static ssize_t sends_all_and_closes(void)
{
	EXPECT(!sends_all() && !rclose(client));
	client = rsocket(AF_INET, SOCK_STREAM, 0);
	return 0;
}

static void transfer_by(ssize_t (*sends)(void), const char *link, size_t bytes)
{
	struct call call;

	connected();
	amount = bytes;
	link_is(link);
	call_begin(&call, sends);
	EXPECT(receive_to(0, SIZE_MAX) == amount);
	call_end(&call, 0, 0);
	link_is("good");
	all_closed();
}
static void transfer(const char *link, size_t bytes) { transfer_by(sends_all, link, bytes); }
static void loss_of_1_percent(void) { transfer("loss 1", 1 << 20); }
static void loss_of_5_percent(void) { transfer("loss 5", 1 << 17); }
static void loss_of_10_percent(void) { transfer("loss 10", 1 << 16); }

/* rclose(3) may return before, but what was sent arrives. */
static void close_on_a_slow_link(void) { transfer_by(sends_all_and_closes, "delay 5ms", 195312); }
static void close_on_a_very_slow_link(void) { transfer_by(sends_all_and_closes, "delay 3000ms", 1 << 17); }

static void link_that_comes_back(void)
{
	struct call call;
	size_t got;

	connected();
	amount = 1 << 20;
	call_begin(&call, sends_all);
	got = receive_to(0, 1 << 18);
	/* rxe ends a connection that sends a packet while the interface is down. siw does so in any case. */
	await_sleep(&call.tid);
	link_is(on_siw() ? "loss 100" : "down");
	link_is("good");
	EXPECT(receive_to(got, SIZE_MAX) == amount);
	call_end(&call, 0, 0);
	all_closed();
}

/* The size of TCP's send buffer: the smallest, the usual and the largest one. */
static void tcp_buffer(const char *sizes)
{
	FILE *file = fopen("/proc/sys/net/ipv4/tcp_wmem", "we");

	EXPECT(file && fputs(sizes, file) >= 0 && !fclose(file));
}

/* Two short messages behind a large one, which TCP cannot take yet, are sent as one. Some of these cross a page of the send
 * buffer: each begins eight bytes further in its page than the previous one (docs/compatibility.md). */
static ssize_t sends_large_and_short(void)
{
	static uint8_t bytes[1 << 16];
	const size_t lengths[] = { 8176, 12, 12 };

	amount = 0;
	for (int i = 0; i < 600 * 3; i++) {
		size_t len = lengths[i % 3];

		for (size_t j = 0; j < len; j++)
			bytes[j] = byte_at(amount + j);
		EXPECT(rsend(client, bytes, len, 0) == (ssize_t)len);
		amount += len;
	}
	return rshutdown(client, SHUT_WR);
}

static void short_messages_on_a_slow_link(void)
{
	struct call call;

	tcp_buffer("4096 16384 16384");
	connected();
	link_is("delay 5ms");
	call_begin(&call, sends_large_and_short);
	EXPECT(receive_to(0, SIZE_MAX) == amount);
	call_end(&call, 0, 0);
	link_is("good");
	all_closed();
	tcp_buffer("4096 16384 4194304");
}

static ssize_t receives(void) { return rrecv(client, (char[1]){ 0 }, 1, 0); }

/* TCP, below siw, retries for a quarter of an hour; this sets the number of retries. */
static void tcp_tries(const char *times)
{
	FILE *file = fopen("/proc/sys/net/ipv4/tcp_retries2", "we");

	EXPECT(file && fputs(times, file) >= 0 && !fclose(file));
}

/* Nothing is acknowledged any more: waiting calls fail after the retries of the transport. */
static void stays_away(const char *link, int error)
{
	struct call call;
	bool reported;
	ssize_t sent;

	connected();
	alarm(ALARM_SECONDS);
	call_begin(&call, receives);
	link_is(link);
	/* The send fails if the connection has already ended. As with TCP, one call reports the error: if it is this one, the
	 * other one returns 0. */
	sent = rsend(client, "x", 1, 0);
	reported = sent < 0 && errno == ECONNRESET;
	expect(sent == 1 || reported || errno == EPIPE, "sent, or too late", errno, __LINE__);
	call_end(&call, reported ? 0 : -1, reported ? 0 : error);
	EXPECT_ERROR(rsend(client, "x", 1, 0), EPIPE);
	EXPECT(!rclose(client));
	link_is("good");
	EXPECT(!rclose(server) && !rclose(listener));
}
static void link_that_loses_everything(void)
{
	tcp_tries("3");
	/* siw reports that the connection was lost, not why. */
	stays_away("loss 100", on_siw() ? ECONNRESET : ETIMEDOUT);
	tcp_tries("15");
}
/* Nothing is sent: only keepalives notice that the peer does not answer. */
static void idle_with_keepalive(void)
{
	const int on = 1;
	struct call call;

	tcp_tries("3");
	connected();
	alarm(ALARM_SECONDS);
	EXPECT(!rsetsockopt(client, IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof(on)));
	EXPECT(!rsetsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)));
	call_begin(&call, receives);
	link_is("loss 100");
	call_end(&call, -1, on_siw() ? ECONNRESET : ETIMEDOUT);
	EXPECT(!rclose(client));
	link_is("good");
	EXPECT(!rclose(server) && !rclose(listener));
	tcp_tries("15");
}
/* Devices on Ethernet end the connection when their link goes down; an InfiniBand adapter sends again for a while. */
static void link_that_stays_down(void) { stays_away("down", on_ib() ? ETIMEDOUT : ECONNRESET); }

/* Closing waits for the acknowledgement of sent data for at most the time of SO_LINGER. */
static void close_without_link(void)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 1 };

	connected();
	alarm(ALARM_SECONDS);
	EXPECT(!rsetsockopt(client, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	link_is("loss 100");
	EXPECT(rsend(client, "x", 1, 0) == 1);
	EXPECT(!rclose(client));
	link_is("good");
	EXPECT(!rclose(server) && !rclose(listener));
}

static ssize_t sends_much(void)
{
	static char bytes[1 << 20];

	while (rsend(client, bytes, sizeof(bytes), 0) > 0)
		;
	return -1;
}

/* rshutdown(3) ends the calls of other threads at once, as with TCP: the transport gives up much later. */
static int how;
static ssize_t shuts_down(void) { return rshutdown(client, how); }

static void shutdown_ends_calls(int direction, ssize_t (*calls)(void), ssize_t result)
{
	struct call call, shutdown;
	time_t start;

	connected();
	alarm(ALARM_SECONDS);
	call_begin(&call, calls);
	link_is("loss 100");
	EXPECT(rsend(client, "x", 1, MSG_DONTWAIT) == 1 || errno == EAGAIN);
	how = direction;
	start = time(NULL);
	shutdown = (struct call){ .body = shuts_down };
	EXPECT(!pthread_create(&shutdown.thread, NULL, call_body, &shutdown));
	call_end(&call, result, EPIPE);
	EXPECT(time(NULL) - start <= 1);
	link_is("good");
	call_end(&shutdown, 0, 0);
	all_closed();
}
static void shut_reading_without_link(void) { shutdown_ends_calls(SHUT_RD, receives, 0); }
static void shut_writing_without_link(void) { shutdown_ends_calls(SHUT_WR, sends_much, -1); }
static void shut_both_without_link(void) { shutdown_ends_calls(SHUT_RDWR, receives, 0); }

void link_cases(void)
{
	FAULT(loss_of_1_percent);
	FAULT(loss_of_5_percent);
	FAULT(loss_of_10_percent);
	FAULT(short_messages_on_a_slow_link);
	FAULT(close_on_a_slow_link);
	/* The other transports give up earlier. */
	FAULT_IF(on_siw(), close_on_a_very_slow_link);
	FAULT(link_that_comes_back);
	FAULT(link_that_loses_everything);
	FAULT(idle_with_keepalive);
	FAULT(link_that_stays_down);
	/* A disconnect message that rxe could not send has left its QP 1 in the error state, from which the kernel's MAD layer
	 * recovers the send queue only: the device receives no CM messages any more. */
	if (!on_siw() && chosen("link_that_stays_down"))
		link_is("anew");
	FAULT(close_without_link);
	FAULT(shut_reading_without_link);
	FAULT(shut_writing_without_link);
	FAULT(shut_both_without_link);
}
