/*
 * Small messages in a row on a link with a delay: those that follow the first few are held and sent together, and whatever
 * the program does next, all of them arrive, in order.
 */
#include "ends.h"

#include <netinet/tcp.h>

enum { ROW = 40, SIZE = 100, TOTAL = ROW * SIZE };

static size_t sent, expected = TOTAL;
static int ready[2];

/* Sends the next `len` bytes of the pattern. */
static void send_next(size_t len)
{
	static uint8_t bytes[1 << 16];

	for (size_t i = 0; i < len; i++)
		bytes[i] = byte_at(sent + i);
	EXPECT(rsend(client, bytes, len, 0) == (ssize_t)len);
	sent += len;
}

static void send_row(void)
{
	for (int i = 0; i < ROW; i++)
		send_next(SIZE);
}

/* Number of packets that the client's device has sent. */
static long packets(void)
{
	FILE *file = fopen("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts", "re");
	long count = 0;

	EXPECT(file && fscanf(file, "%ld", &count) == 1);
	fclose(file);
	return count;
}

static void slow(void)
{
	connected();
	EXPECT(!pipe(ready));
	link_is("delay 20ms");
}

static void end(void)
{
	link_is("good");
	all_closed();
}

/* The client is closed already, or another process's. */
static void end_of_server(void)
{
	link_is("good");
	EXPECT(!rclose(server) && !rclose(listener));
}

/* Receives everything in a thread, then says so. */
static ssize_t receives_all(void)
{
	EXPECT(receive_to(0, expected) == expected);
	EXPECT(write(ready[1], "", 1) == 1);
	return 0;
}

/* Waits for that without a call of the library. */
static void all_arrives(struct call *call)
{
	EXPECT(read(ready[0], (char[1]){ 0 }, 1) == 1);
	call_end(call, 0, 0);
}

static void are_sent_together(void)
{
	struct call call;
	long before;

	slow();
	before = packets();
	send_row();
	call_begin(&call, receives_all);
	all_arrives(&call);
	EXPECT(packets() - before < ROW / 2);
	end();
}

static void arrive_without_another_call(void)
{
	struct call call;

	slow();
	call_begin(&call, receives_all);
	send_row();
	all_arrives(&call);
	end();
}

static ssize_t receives_answer(void) { return rrecv(client, (char[1]){ 0 }, 1, 0); }

static ssize_t polls(void)
{
	struct pollfd entry = { .fd = client, .events = POLLIN };

	EXPECT(rpoll(&entry, 1, -1) == 1 && entry.revents == POLLIN);
	return receives_answer();
}

/* While another thread waits for data in `waits`. */
static void arrive_beside(ssize_t (*waits)(void))
{
	struct call all, answer;

	slow();
	call_begin(&answer, waits);
	call_begin(&all, receives_all);
	send_row();
	all_arrives(&all);
	EXPECT(rsend(server, "x", 1, 0) == 1);
	call_end(&answer, 1, 0);
	end();
}
static void arrive_while_another_thread_receives(void) { arrive_beside(receives_answer); }
static void arrive_while_another_thread_polls(void) { arrive_beside(polls); }

/* What follows a row comes after it. */
static void then_a_large_message(void)
{
	struct call call;

	slow();
	send_row();
	call_begin(&call, receives_all);
	send_next(60000);
	send_row();
	all_arrives(&call);
	EXPECT(receive_to(TOTAL, sent) == sent);
	end();
}

static void then_shutdown(void)
{
	slow();
	send_row();
	EXPECT(!rshutdown(client, SHUT_WR));
	EXPECT(receive_to(0, SIZE_MAX) == TOTAL);
	end();
}

static ssize_t closes(void) { return rclose(client); }

static void then_close(void)
{
	struct call call;

	slow();
	send_row();
	call_begin(&call, closes);
	EXPECT(receive_to(0, SIZE_MAX) == TOTAL);
	call_end(&call, 0, 0);
	end_of_server();
}

static void then_close_of_a_nonblocking_one(void)
{
	slow();
	EXPECT(!rfcntl(client, F_SETFL, O_NONBLOCK));
	send_row();
	EXPECT(!rclose(client));
	EXPECT(receive_to(0, SIZE_MAX) == TOTAL);
	end_of_server();
}

static void then_riowrite(void)
{
	char mapped[8] = "";
	struct call call;
	off_t offset;

	slow();
	/* The client's first message after it follows the mapping. */
	EXPECT((offset = riomap(server, mapped, sizeof(mapped), PROT_WRITE, 0, -1)) >= 0);
	EXPECT(rsend(server, "x", 1, 0) == 1 && receives_answer() == 1);
	send_row();
	EXPECT(riowrite(client, "written", 8, offset, 0) == 8);
	send_next(1);
	call_begin(&call, receives_all);
	all_arrives(&call);
	EXPECT(receive_to(TOTAL, TOTAL + 1) == TOTAL + 1);
	EXPECT(!strcmp(mapped, "written"));
	EXPECT(!riounmap(server, mapped, sizeof(mapped)));
	end();
}

static void with_nodelay(void)
{
	struct call call;
	int on = 1;

	slow();
	send_next(SIZE * ROW / 2);
	for (int i = 0; i < ROW / 2; i++) {
		if (i == ROW / 4)
			EXPECT(!rsetsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
		send_next(SIZE);
	}
	call_begin(&call, receives_all);
	all_arrives(&call);
	end();
}

/* Longer than the send buffer, the peer's buffer, and all credits. */
static void long_row(void)
{
	enum { LONG = 400000 };
	struct call call;

	slow();
	link_is("delay 1ms");
	expected = LONG;
	call_begin(&call, receives_all);
	while (sent < LONG)
		send_next(sent + 97 <= LONG ? 97 : LONG - sent);
	all_arrives(&call);
	end();
}

/* A process that exits without closing its socket. */
static void then_exit(void)
{
	union address address;
	pid_t child;

	link_is("good");
	listener = listen_far(&address);
	child = fork();
	if (child == 0) {
		client = connect_to(&address);
		link_is("delay 20ms");
		send_row();
		exit(0);
	}
	EXPECT((server = raccept(listener, NULL, NULL)) >= 0);
	EXPECT(receive_to(0, TOTAL) == TOTAL);
	EXPECT(waitpid(child, NULL, 0) == child);
	end_of_server();
}

/* The peer's host is gone: the row is lost, and calls say so. */
static void then_nothing_arrives(void)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 1 };

	slow();
	link_is("loss 100");
	send_row();
	EXPECT(receives_answer() == -1 && errno == ETIMEDOUT);
	EXPECT(!rsetsockopt(client, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) && !rclose(client));
	end_of_server();
}

void held_cases(void)
{
	/* Soft-iWARP completes a message when TCP has it, so none is on its way. */
	FAULT_IF(!on_siw(), are_sent_together);
	FAULT_IF(!on_siw(), arrive_without_another_call);
	FAULT_IF(!on_siw(), arrive_while_another_thread_receives);
	FAULT_IF(!on_siw(), arrive_while_another_thread_polls);
	FAULT_IF(!on_siw(), then_a_large_message);
	FAULT_IF(!on_siw(), then_shutdown);
	FAULT_IF(!on_siw(), then_close);
	FAULT_IF(!on_siw(), then_close_of_a_nonblocking_one);
	FAULT_IF(!on_siw(), then_riowrite);
	FAULT_IF(!on_siw(), with_nodelay);
	FAULT_IF(!on_siw(), long_row);
	FAULT_IF(!on_siw(), then_exit);
	FAULT_IF(!on_siw(), then_nothing_arrives);
}
