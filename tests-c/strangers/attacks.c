/* The attacks. An attack continues until it is killed; failures of its own connections do not matter. */
#include "strangers.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/wait.h>

enum { FLOODS = 4, HALF_OPEN = 200, TAKEN_BY_NOBODY = 1000, SILENT = 32, BUSY = 12, REJECTED_MS = 5000 };

static union address far_addr(void)
{
	const char *text = getenv(on_siw() ? "SIW_PEER_ADDR" : "RXE_PEER_ADDR");

	return make_addr(AF_INET, text ? text : "0.0.0.0", 0);
}

/* ---- handshakes ---------------------------------------------------------------------------------- */

/* Requests whose answers are never read, so that the last message of the handshake is not sent; the oldest are destroyed. */
static void half_open(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct raw raws[HALF_OPEN] = { { .id = NULL } };

	for (unsigned i = 0; channel; i++) {
		struct raw *raw = &raws[i % HALF_OPEN];

		raw_close(raw);
		if (raw_request(raw, channel, figures->port))
			figures->hits++;
		else
			raw_close(raw);
	}
}

/* Rsockets that connect and then stay idle, to the listener from which the server does not accept. */
static void never_accepted(void)
{
	for (unsigned i = 0; i < TAKEN_BY_NOBODY; i++) {
		union address to = server_addr(figures->silent_port);
		int fd = rsocket(AF_INET, SOCK_STREAM, 0);

		figures->attempts++;
		if (fd >= 0 && !rconnect(fd, &to.sa, sizeof(to.in)))
			figures->hits++;
		else
			rclose(fd);
	}
	pause();
}

/* Rsockets that connect and disconnect immediately. */
static void come_and_go(void)
{
	for (;;) {
		union address to = server_addr(figures->port);
		int fd = rsocket(AF_INET, SOCK_STREAM, 0);

		figures->attempts++;
		if (!rconnect(fd, &to.sa, sizeof(to.in)))
			figures->hits++;
		rclose(fd);
	}
}

/* ---- floods of messages -------------------------------------------------------------------------- */

/* Messages of one kind as fast as possible, over a few connections; a lost connection is replaced. */
static void flood(uint32_t op, uint32_t value, uint32_t len, bool word)
{
	struct raw raws[FLOODS] = { { .id = NULL } };

	for (;;)
		for (int i = 0; i < FLOODS; i++) {
			bool good = raws[i].id;

			for (int n = 0; good && n < 32; n++) {
				good = word ? raw_message(&raws[i], op, value, len)
					    : raw_write(&raws[i], raws[i].ring, raws[i].key, 0);
				figures->hits += good;
			}
			if (good)
				continue;
			raw_close(&raws[i]);
			if (!raw_connect(&raws[i], figures->port, true))
				raw_close(&raws[i]);
		}
}

static void keepalives(void) { flood(0, 0, 0, false); }
static void control_keepalives(void) { flood(RAW_CONTROL, RAW_KEEPALIVE, 0, true); }
static void grants(void) { flood(RAW_GRANT, RAW_RECEIVES / 2, 0, true); }
static void empty_messages(void) { flood(RAW_DATA, 0, 0, true); }
static void table_updates(void) { flood(RAW_IOMAP, 0, 0, true); }
static void single_bytes(void) { flood(RAW_DATA, 1, 1, true); }

/* ---- peers without receives ----------------------------------------------------------------------- */

/* Each peer sends a byte, and has no receive for the echo or for the server's disconnect message. */
static void no_receives(void)
{
	struct raw raws[SILENT] = { { .id = NULL } };

	for (int i = 0; i < SILENT; i++)
		if (raw_connect(&raws[i], figures->port, false) && raw_message(&raws[i], RAW_DATA, 1, 1))
			figures->hits++;
	pause();
}

static void run_link(const char *state, const char *argument)
{
	pid_t child = fork();

	if (child == 0) {
		execl(getenv("STRANGERS_LINK"), "link", device, state, argument, NULL);
		_exit(127);
	}
	waitpid(child, NULL, 0);
}

static void link_comes_back(int number)
{
	(void)number;
	run_link("good", NULL);
	_exit(0);
}

/* Connections over a link that then goes down. */
static void dead_hosts(void)
{
	signal(SIGTERM, link_comes_back);
	for (int i = 0; i < SILENT; i++) {
		union address from = far_addr(), to = server_addr(figures->port);
		int fd = rsocket(AF_INET, SOCK_STREAM, 0);

		figures->attempts++;
		if (fd >= 0 && !rbind(fd, &from.sa, sizeof(from.in)) && !rconnect(fd, &to.sa, sizeof(to.in)) &&
		    rsend(fd, "x", 1, 0) == 1)
			figures->hits++;
	}
	run_link("loss", "100");
	for (;;)
		pause();
}

/* ---- other connections' memory ----------------------------------------------------------------------- */

/* Writes to the memory of another connection with its address and rkey: each attempt ends the attacker's connection. */
static void known_keys(void)
{
	struct raw other = { .id = NULL }, raw;

	for (;;) {
		/* Sends data from time to time, so that the server does not close the connection as idle. */
		if (!other.id || !raw_message(&other, RAW_DATA, 1, 1) || !raw_reap(&other, 0)) {
			raw_close(&other);
			raw_connect(&other, figures->port, true);
			continue;
		}
		/* On iWARP a write completes when TCP has it: what was rejected shows by the end of the connection. */
		if (raw_connect(&raw, figures->port, true) &&
		    raw_write(&raw, other.ring + other.ring_length / 2, other.key, 64) && raw_reap(&raw, 0))
			figures->hits += !on_siw() || !raw_ends(&raw, REJECTED_MS);
		raw_close(&raw);
	}
}

/* ---- limits --------------------------------------------------------------------------------------- */

/* Streams that are busy enough for their buffers to grow. */
static void busy_streams(void)
{
	static uint8_t bytes[1 << 18];
	int fds[BUSY];

	for (int i = 0; i < BUSY; i++) {
		union address to = server_addr(figures->port);

		figures->attempts++;
		fds[i] = rsocket(AF_INET, SOCK_STREAM, 0);
		if (!rconnect(fds[i], &to.sa, sizeof(to.in)))
			figures->hits++;
		rfcntl(fds[i], F_SETFL, O_NONBLOCK);
	}
	for (;;)
		for (int i = 0; i < BUSY; i++) {
			if (rsend(fds[i], bytes, sizeof(bytes), 0) < 0 && errno != EAGAIN)
				pause();
			while (rrecv(fds[i], bytes, sizeof(bytes), 0) > 0)
				;
		}
}

/* ---- datagrams ------------------------------------------------------------------------------------- */

/* The protocol's header, in network byte order. */
struct datagram_header {
	uint32_t tag;
	uint8_t version, op, length, reserved;
	uint32_t qpn, addr;
} __attribute__((packed));

/* UDP datagrams with queue pairs and addresses of other hosts than the sender. */
static void forged_datagrams(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	union address to = server_addr(figures->datagram_port), own = local_addr(AF_INET, 0);
	struct datagram_header header = { htonl(0x55555555), 4, 0, 16, 0, 0, own.in.sin_addr.s_addr };

	bind(fd, &own.sa, sizeof(own.in));
	for (uint32_t i = 1;; i++) {
		/* QP numbers of this device, arbitrary ones, then unused addresses. */
		header.op = i % 2 ? 7 : 0;
		header.qpn = htonl((i % 3 ? 17 + i % 64 : i * 2654435761u >> 8) << 8);
		header.addr = i % 5 ? own.in.sin_addr.s_addr : htonl(0x0a000000 | (i & 0xffffff));
		figures->attempts++;
		figures->hits += sendto(fd, &header, sizeof(header), 0, &to.sa, sizeof(to.in)) == sizeof(header);
		if (i % 256 == 0)
			sched_yield();
	}
}

static void nothing(void)
{
	for (;;)
		pause();
}

#define LITTLE_LOCKED 8192
const struct attack attacks[] = {
	{ .name = "nothing", .run = nothing, .processes = 1, .clients = 100, .datagrams = true },
	{ .name = "half_open", .run = half_open, .processes = 2, .clients = 100 },
	{ .name = "never_accepted", .run = never_accepted, .processes = 1, .clients = 100, .limits = { 1024, 0 } },
	{ .name = "come_and_go", .run = come_and_go, .processes = 4, .clients = 100, .limits = { 1024, 0 } },
	{ .name = "keepalives", .run = keepalives, .processes = 1, .clients = 100 },
	{ .name = "control_keepalives", .run = control_keepalives, .processes = 1, .clients = 100 },
	{ .name = "grants", .run = grants, .processes = 1, .clients = 100 },
	{ .name = "empty_messages", .run = empty_messages, .processes = 1, .clients = 100 },
	{ .name = "table_updates", .run = table_updates, .processes = 1, .clients = 100 },
	{ .name = "single_bytes", .run = single_bytes, .processes = 1, .clients = 100 },
	{ .name = "no_receives", .run = no_receives, .processes = 1, .clients = 100 },
	{ .name = "dead_hosts", .run = dead_hosts, .processes = 1, .clients = 100, .far = true },
	{ .name = "known_keys", .run = known_keys, .processes = 2, .clients = 100 },
	/* A stream locks 260 KB: these clients, a reconnecting one, and the busy ones need three quarters of the limit. */
	{ .name = "little_locked_memory", .run = busy_streams, .processes = 1, .clients = 10,
	  .limits = { 0, LITTLE_LOCKED } },
	{ .name = "forged_datagrams", .run = forged_datagrams, .processes = 2, .clients = 100, .datagrams = true,
	  .rxe_only = true },
};
const unsigned attack_count = sizeof(attacks) / sizeof(attacks[0]);
