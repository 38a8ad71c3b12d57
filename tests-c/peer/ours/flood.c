/*
 * A peer that floods an rsocket with messages that are no data: calls with a time limit end in time.
 * The flood is as fast as can be: whenever the library finds that nothing has arrived, one more
 * message is sent, and waited for; for data the peer must have credit. Run on ours only; the
 * reference has no limits, or does not return.
 */
#include "raw_peer.h"
#include "rscommon.h"

enum { LIMIT_MS = 50 };

static struct peer peer;
static int (*poll_device)(struct ibv_cq *, int, struct ibv_wc *);
/* The victim's queue of what it receives, once something arrived. */
static struct ibv_cq *received;
/* What the flood consists of. */
static uint32_t word;
static bool flooding;
static unsigned long sent;
/* Number of the last message of data that the victim allows, and of the last one sent. */
static uint16_t credit_limit, data_sent;

/* The victim grants credits for messages of data: its updates need receives, which complete in order. */
static void repost(void)
{
	static unsigned next;
	struct ibv_wc wc;

	while (poll_device(peer.id->recv_cq, 1, &wc) == 1 && !wc.status) {
		uint8_t *slot = peer_memory + 2048 + 8 * (next++ % PEER_RECEIVES);
		uint32_t message = on_siw() ? *(volatile uint32_t *)slot : ntohl(wc.imm_data);

		if (message >> 29 == GRANT)
			credit_limit = (uint16_t)message;
		EXPECT(!rdma_post_recv(peer.id, NULL, slot, 8, peer.mr));
	}
}

/* Without credit the flood pauses: more would end the connection. */
static bool may_send(void)
{
	repost();
	if (word != WORD(DATA, 0))
		return true;
	if (data_sent == credit_limit)
		return false;
	data_sent++;
	return true;
}

static int poll_flooded(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	int found = poll_device(cq, count, wc);

	if (found > 0 && cq != peer.id->recv_cq && !wc->status && wc->opcode & IBV_WC_RECV)
		received = cq;
	if (found || !flooding || cq != received || !may_send())
		return found;
	EXPECT(peer_word(&peer, word));
	sent++;
	while (!(found = poll_device(cq, count, wc)))
		sched_yield();
	return found;
}

static void begin(bool receives)
{
	char byte;

	peer_connects(&peer, receives);
	poll_device = peer.id->verbs->ops.poll_cq;
	peer.id->verbs->ops.poll_cq = poll_flooded;
	credit_limit = ntohs(peer.theirs.credits);
	data_sent = 1;
	EXPECT(peer_data(&peer, 0, "x") && rrecv(peer.victim, &byte, 1, 0) == 1 && received);
}

static void end(void)
{
	EXPECT(sent > 0);
	peer.id->verbs->ops.poll_cq = poll_device;
	peer_close(&peer);
}

/* ---- calls that wait in vain for LIMIT_MS ---------------------------------------------------- */

static void limit(int option)
{
	struct timeval time = { .tv_usec = 1000 * LIMIT_MS };

	EXPECT(!rsetsockopt(peer.victim, SOL_SOCKET, option, &time, sizeof(time)));
}

static void receive(void)
{
	char byte;

	limit(SO_RCVTIMEO);
	EXPECT_ERROR(rrecv(peer.victim, &byte, 1, 0), EAGAIN);
}

static void receive_message(void)
{
	char byte;
	struct iovec piece = { &byte, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };

	limit(SO_RCVTIMEO);
	EXPECT_ERROR(rrecvmsg(peer.victim, &message, MSG_WAITALL), EAGAIN);
}

/* More than the peer has room for. */
static void send_more(void)
{
	static char bytes[2 * PEER_BUFFER];

	limit(SO_SNDTIMEO);
	while (rsend(peer.victim, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	EXPECT_ERROR(rsend(peer.victim, bytes, 1, 0), EAGAIN);
}

static void *receive_in_thread(void *unused)
{
	receive();
	return unused;
}

/* One leads, and the other is told of everything that arrives. */
static void receive_twice(void)
{
	pthread_t other;

	EXPECT(!pthread_create(&other, NULL, receive_in_thread, NULL));
	receive();
	EXPECT(!pthread_join(other, NULL));
}

static void poll_alone(void)
{
	struct pollfd entry = { .fd = peer.victim, .events = POLLIN };

	EXPECT(rpoll(&entry, 1, LIMIT_MS) == 0);
}

static void poll_two(void)
{
	struct pollfd entries[] = { { .fd = peer.victim, .events = POLLIN },
				    { .fd = peer.victim_listener, .events = POLLIN } };

	EXPECT(rpoll(entries, 2, LIMIT_MS) == 0);
}

static void poll_with_pipe(void)
{
	int ends[2];
	struct pollfd entries[2] = { { .fd = peer.victim, .events = POLLIN } };

	EXPECT(!pipe(ends));
	entries[1] = (struct pollfd){ .fd = ends[0], .events = POLLIN };
	EXPECT(rpoll(entries, 2, LIMIT_MS) == 0);
	EXPECT(!close(ends[0]) && !close(ends[1]));
}

static void select_two(void)
{
	struct timeval time = { .tv_usec = 1000 * LIMIT_MS };
	int most = peer.victim > peer.victim_listener ? peer.victim : peer.victim_listener;
	fd_set set;

	FD_ZERO(&set);
	FD_SET(peer.victim, &set);
	FD_SET(peer.victim_listener, &set);
	EXPECT(rselect(most + 1, &set, NULL, NULL, &time) == 0);
}

static void epoll_as(uint32_t how)
{
	struct epoll_event event = { .events = EPOLLIN | how }, events[1];
	struct repoll repoll;
	int epfd;

	EXPECT(find_repoll(&repoll) && (epfd = repoll.create(0)) >= 0);
	EXPECT(!repoll.control(epfd, EPOLL_CTL_ADD, peer.victim, &event));
	EXPECT(!repoll.control(epfd, EPOLL_CTL_ADD, peer.victim_listener, &event));
	EXPECT(repoll.wait(epfd, events, 1, LIMIT_MS) == 0);
	EXPECT(!rclose(epfd));
}

static void epoll_level(void) { epoll_as(0); }
static void epoll_edge(void) { epoll_as(EPOLLET); }

/* What was sent never arrives: the peer has no receives. */
static void linger(void)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 1 };

	EXPECT(!rsetsockopt(peer.victim, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	EXPECT(rsend(peer.victim, "nobody", 6, 0) == 6);
	EXPECT(!rclose(peer.victim));
	peer.victim = 0;
}

/* ---- each under each kind of flood ------------------------------------------------------------- */

static void (*call)(void);

static void flooded(void)
{
	begin(call != linger);
	flooding = true;
	EXPECT_LASTS(LIMIT_MS, (call(), true));
	flooding = false;
	end();
}

static const struct named { const char *name; void (*call)(void); } calls[] = {
#define CALLED(call) { #call, call }
	CALLED(receive), CALLED(receive_message), CALLED(send_more), CALLED(receive_twice), CALLED(poll_alone),
	CALLED(poll_two), CALLED(poll_with_pipe), CALLED(select_two), CALLED(epoll_level), CALLED(epoll_edge),
	CALLED(linger),
};

/* PEER_CREDITS is what the peer granted at first: saying so again is no news. */
static const struct { const char *name; uint32_t word; } floods[] = {
	{ "keepalives", WORD(CONTROL, KEEPALIVE) },
	{ "grants", WORD(GRANT, PEER_CREDITS) },
	{ "empty data", WORD(DATA, 0) },
};

int main(int argc, char **argv)
{
	start(argc, argv);
	for (size_t i = 0; i < sizeof(floods) / sizeof(floods[0]); i++) {
		for (size_t j = 0; j < sizeof(calls) / sizeof(calls[0]); j++) {
			char name[64];

			word = floods[i].word;
			call = calls[j].call;
			snprintf(name, sizeof(name), "%s under %s", calls[j].name, floods[i].name);
			if (argc > 2 && strcmp(argv[2], name))
				continue;
			declare_cases(1);
			/* On siw a message without a receive ends the connection. For empty data the peer needs receives. */
			if (call == linger && (on_siw() || word == WORD(DATA, 0)))
				leave_case(name, "no receive");
			else
				run_case(name, flooded);
		}
	}
	return finish();
}
