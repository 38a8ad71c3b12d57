/*
 * repoll_* as epoll(7) has it: errors, edge-triggered, one-shot, nested, closing members, many
 * waiters. The reference's has none of this; run on ours only.
 */
#include "cases.h"
#include "rscommon.h"
#include "raw_peer.h"

#include <sys/resource.h>

static struct repoll repoll;

static struct rspair pair;
static int ep;

static void begin(void)
{
	EXPECT(rs_pair(&pair, AF_INET));
	EXPECT((ep = repoll.create(0)) >= 0);
}

static void end(void)
{
	EXPECT(!rclose(ep));
	rs_pair_close(&pair);
}

static int change(int op, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.fd = fd };

	return repoll.control(ep, op, fd, &event);
}

/* The one member that is ready now, 0 when none is; waits if told to. */
static uint32_t ready(int fd, int limit)
{
	struct epoll_event events[4];
	int ret = repoll.wait(ep, events, 4, limit);

	EXPECT(ret == 0 || (ret == 1 && events[0].data.fd == fd));
	return ret ? events[0].events : 0;
}

static void send_byte(void)
{
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	poll_wait(pair.server, POLLIN);
}

static void read_byte(void)
{
	char byte;

	EXPECT(rrecv(pair.server, &byte, 1, 0) == 1);
}

static void errors(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	int ends[2];

	EXPECT_ERROR(repoll.create(-1), EINVAL);
	EXPECT_ERROR(repoll.control(-1, EPOLL_CTL_ADD, 1, &event), EBADF);
	EXPECT_ERROR(repoll.wait(-1, &event, 1, 0), EBADF);
	EXPECT(!pipe(ends));
	begin();
	EXPECT_ERROR(change(EPOLL_CTL_MOD, pair.server, EPOLLIN), ENOENT);
	EXPECT_ERROR(change(EPOLL_CTL_DEL, pair.server, 0), ENOENT);
	EXPECT_ERROR(change(EPOLL_CTL_MOD, ends[0], EPOLLIN), ENOENT);
	EXPECT_ERROR(change(EPOLL_CTL_DEL, ends[0], 0), ENOENT);
	EXPECT(!change(EPOLL_CTL_ADD, pair.server, EPOLLIN));
	EXPECT(!change(EPOLL_CTL_ADD, ends[0], EPOLLIN));
	EXPECT_ERROR(change(EPOLL_CTL_ADD, pair.server, EPOLLIN), EEXIST);
	EXPECT_ERROR(change(EPOLL_CTL_ADD, ends[0], EPOLLIN), EEXIST);
	EXPECT_ERROR(change(EPOLL_CTL_ADD, 901, EPOLLIN), EBADF);
	EXPECT_ERROR(change(EPOLL_CTL_ADD, ep, EPOLLIN), EINVAL);
	EXPECT_ERROR(change(77, pair.server, EPOLLIN), EINVAL);
	EXPECT_ERROR(repoll.wait(ep, &event, 0, 0), EINVAL);
	EXPECT_ERROR(repoll.wait(ep, &event, -1, 0), EINVAL);
	EXPECT(!repoll.control(ep, EPOLL_CTL_DEL, pair.server, NULL));
	EXPECT(!change(EPOLL_CTL_ADD, pair.server, EPOLLIN));
	end();
}

static void flags(void)
{
	int fd = repoll.create(EPOLL_CLOEXEC);

	EXPECT(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	EXPECT(!rclose(fd));
	EXPECT_ERROR(rclose(fd), EBADF);
}

static void level(void)
{
	begin();
	EXPECT(!change(EPOLL_CTL_ADD, pair.server, EPOLLIN));
	EXPECT(ready(pair.server, 0) == 0);
	send_byte();
	EXPECT(ready(pair.server, -1) == EPOLLIN);
	EXPECT(ready(pair.server, -1) == EPOLLIN);
	read_byte();
	EXPECT(ready(pair.server, 0) == 0);
	EXPECT(ready(pair.server, 30) == 0);
	end();
}

static void edge(void)
{
	begin();
	send_byte();
	EXPECT(!change(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLET));
	EXPECT(ready(pair.server, -1) == EPOLLIN);
	EXPECT(ready(pair.server, 0) == 0);
	send_byte();
	EXPECT(ready(pair.server, -1) == EPOLLIN);
	read_byte();
	read_byte();
	EXPECT(ready(pair.server, 0) == 0);
	/* Setting it anew reports what is there again. */
	send_byte();
	EXPECT(ready(pair.server, -1) == EPOLLIN);
	EXPECT(!change(EPOLL_CTL_MOD, pair.server, EPOLLIN | EPOLLET));
	EXPECT(ready(pair.server, -1) == EPOLLIN);
	end();
}

/* Writable again after having been full: one edge. */
static void edge_of_writing(void)
{
	static char data[100000];
	size_t sent = 0;
	ssize_t ret;

	begin();
	EXPECT(!change(EPOLL_CTL_ADD, pair.client, EPOLLOUT | EPOLLET));
	EXPECT(ready(pair.client, -1) == EPOLLOUT);
	EXPECT(ready(pair.client, 0) == 0);
	while ((ret = rsend(pair.client, data, sizeof(data), MSG_DONTWAIT)) > 0)
		sent += (size_t)ret;
	EXPECT(ready(pair.client, 0) == 0);
	while (sent) {
		EXPECT((ret = rrecv(pair.server, data, sizeof(data), 0)) > 0);
		sent -= (size_t)ret;
	}
	EXPECT(ready(pair.client, -1) == EPOLLOUT);
	end();
}

enum { SEND_BUFFER = 8192, FULL = 2 * SEND_BUFFER };

/* A peer whose buffer is never full, so that it has nothing to say; without receives, so that nothing that is sent completes. */
static void connect_stalled(struct peer *peer)
{
	static char memory[4 * FULL];
	struct ibv_qp_attr attr = { .min_rnr_timer = 1 };
	struct rdma_conn_param param;
	union address to;
	int size = SEND_BUFFER;
	struct ibv_mr *mr;

	peer->victim_listener = listen_on(&to, 4, 16);
	EXPECT(!rsetsockopt(peer->victim_listener, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)));
	peer->id = peer_resolved(&to, NULL);
	peer_prepare(peer, false);
	mr = ibv_reg_mr(peer->id->pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	EXPECT(mr != NULL);
	peer->mine.buffer = (struct region){ htobe64((uintptr_t)memory), htonl(mr->rkey), htonl(sizeof(memory)) };
	param = peer_param(&peer->mine, sizeof(peer->mine));
	EXPECT(!rdma_connect(peer->id, &param));
	/* The sender tries again soon, not after the 0.66 s that are usual. */
	EXPECT(!ibv_modify_qp(peer->id->qp, &attr, IBV_QP_MIN_RNR_TIMER));
	EXPECT((peer->victim = raccept(peer->victim_listener, NULL, NULL)) >= 0);
}

/* The sends become complete, and no message comes from the peer: that is what makes room. */
static void edge_of_writing_after_a_full_buffer(void)
{
	static char data[2 * FULL];
	struct peer peer = { 0 };
	struct ibv_wc wc;

	connect_stalled(&peer);
	rs_nonblock(peer.victim, true);
	EXPECT((ep = repoll.create(0)) >= 0);
	EXPECT(!change(EPOLL_CTL_ADD, peer.victim, EPOLLOUT | EPOLLET));
	EXPECT(ready(peer.victim, -1) == EPOLLOUT);
	for (int round = 0; round < 3; round++) {
		EXPECT(rsend(peer.victim, data, sizeof(data), 0) == FULL);
		EXPECT_ERROR((int)rsend(peer.victim, data, sizeof(data), 0), EAGAIN);
		EXPECT(ready(peer.victim, 0) == 0);
		/* The victim may have a grant of its own to send before it. */
		do {
			EXPECT(!rdma_post_recv(peer.id, NULL, peer_memory + 2048, 8, peer.mr));
			EXPECT(rdma_get_recv_comp(peer.id, &wc) == 1 && !wc.status);
		} while (ntohl(wc.imm_data) != WORD(DATA, FULL));
		EXPECT(ready(peer.victim, -1) == EPOLLOUT);
	}
	EXPECT(!rclose(ep));
}

static void one_shot(void)
{
	begin();
	EXPECT(!change(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLONESHOT));
	send_byte();
	EXPECT(ready(pair.server, -1) == EPOLLIN);
	send_byte();
	EXPECT(ready(pair.server, 0) == 0);
	EXPECT(!change(EPOLL_CTL_MOD, pair.server, EPOLLIN | EPOLLONESHOT));
	EXPECT(ready(pair.server, -1) == EPOLLIN);
	EXPECT(ready(pair.server, 0) == 0);
	end();
}

static void peer_half_closes(void)
{
	begin();
	EXPECT(!change(EPOLL_CTL_ADD, pair.server, EPOLLRDHUP));
	EXPECT(ready(pair.server, 0) == 0);
	EXPECT(!rshutdown(pair.client, SHUT_WR));
	EXPECT(ready(pair.server, -1) == EPOLLRDHUP);
	EXPECT(!change(EPOLL_CTL_MOD, pair.server, EPOLLIN | EPOLLRDHUP));
	EXPECT(ready(pair.server, -1) == (EPOLLIN | EPOLLRDHUP));
	end();
}

static void peer_goes(void)
{
	begin();
	EXPECT(!change(EPOLL_CTL_ADD, pair.server, 0));
	EXPECT(!rclose(pair.client));
	pair.client = -1;
	EXPECT(ready(pair.server, -1) & EPOLLHUP);
	end();
}

static void listener_member(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	begin();
	EXPECT(!change(EPOLL_CTL_ADD, pair.listener, EPOLLIN));
	EXPECT(ready(pair.listener, 0) == 0);
	EXPECT(!rconnect(fd, &pair.to.sa, addr_len(&pair.to)));
	EXPECT(ready(pair.listener, -1) == EPOLLIN);
	EXPECT(!rclose(raccept(pair.listener, NULL, NULL)));
	EXPECT(ready(pair.listener, 0) == 0);
	EXPECT(!rclose(fd));
	end();
}

/* Each connection is an edge, though earlier ones were not accepted. */
static void edges_of_a_listener(void)
{
	int fds[3];

	begin();
	EXPECT(!change(EPOLL_CTL_ADD, pair.listener, EPOLLIN | EPOLLET));
	for (int i = 0; i < 3; i++) {
		EXPECT(ready(pair.listener, 0) == 0);
		EXPECT((fds[i] = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
		EXPECT(!rconnect(fds[i], &pair.to.sa, addr_len(&pair.to)));
		EXPECT(ready(pair.listener, -1) == EPOLLIN);
	}
	for (int i = 0; i < 3; i++)
		EXPECT(!rclose(raccept(pair.listener, NULL, NULL)) && !rclose(fds[i]));
	end();
}

/* The descriptor itself is pollable, by the kernel's poll too, and can be a member. */
static void nested(void)
{
	struct pollfd entry = { .events = POLLIN };
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 7 };
	int outer = repoll.create(0), plain = epoll_create1(0);

	begin();
	entry.fd = ep;
	EXPECT(!change(EPOLL_CTL_ADD, pair.server, EPOLLIN));
	EXPECT(!repoll.control(outer, EPOLL_CTL_ADD, ep, &event));
	EXPECT(!epoll_ctl(plain, EPOLL_CTL_ADD, ep, &event));
	EXPECT(poll(&entry, 1, 0) == 0);
	EXPECT(rpoll(&entry, 1, 0) == 0);
	send_byte();
	EXPECT(poll(&entry, 1, -1) == 1 && entry.revents == POLLIN);
	EXPECT(rpoll(&entry, 1, -1) == 1 && entry.revents == POLLIN);
	EXPECT(repoll.wait(outer, &event, 1, -1) == 1 && event.data.u32 == 7);
	EXPECT(epoll_wait(plain, &event, 1, -1) == 1 && event.data.u32 == 7);
	EXPECT(ready(pair.server, -1) == EPOLLIN);
	read_byte();
	EXPECT(ready(pair.server, 0) == 0);
	EXPECT(poll(&entry, 1, 0) == 0);
	EXPECT(repoll.wait(outer, &event, 1, 0) == 0);
	EXPECT(!rclose(outer));
	end();
}

static void closing_a_member(void)
{
	begin();
	EXPECT(!change(EPOLL_CTL_ADD, pair.server, EPOLLIN));
	EXPECT(!change(EPOLL_CTL_ADD, pair.client, EPOLLIN));
	send_byte();
	EXPECT(!rclose(pair.server));
	EXPECT_ERROR(change(EPOLL_CTL_DEL, pair.server, 0), EBADF);
	pair.server = -1;
	/* What is left is told about. */
	EXPECT(ready(pair.client, -1) & EPOLLHUP);
	end();
}

static void closing_with_members(void)
{
	begin();
	EXPECT(!change(EPOLL_CTL_ADD, pair.server, EPOLLIN));
	EXPECT(!rclose(ep));
	send_byte();
	read_byte();
	rs_pair_close(&pair);
}

/* ---- many --------------------------------------------------------------------------------- */

static void *wait_once(void *argument)
{
	struct epoll_event event;

	(void)argument;
	return (void *)(long)repoll.wait(ep, &event, 1, 2000);
}

/* A one-shot event wakes one of many waiters. */
static void many_waiters(void)
{
	pthread_t threads[4];
	long woken = 0;

	begin();
	EXPECT(!change(EPOLL_CTL_ADD, pair.server, EPOLLIN | EPOLLET | EPOLLONESHOT));
	for (int i = 0; i < 4; i++)
		EXPECT(!pthread_create(&threads[i], NULL, wait_once, NULL));
	EXPECT(rsend(pair.client, "x", 1, 0) == 1);
	for (int i = 0; i < 4; i++) {
		void *ret;

		pthread_join(threads[i], &ret);
		woken += (long)ret;
	}
	EXPECT(woken == 1);
	end();
}

static void many_members(void)
{
	enum { COUNT = 30 };
	int clients[COUNT], servers[COUNT], seen = 0;
	struct epoll_event events[7];

	begin();
	for (int i = 0; i < COUNT; i++) {
		clients[i] = rsocket(AF_INET, SOCK_STREAM, 0);
		EXPECT(!rconnect(clients[i], &pair.to.sa, addr_len(&pair.to)));
		EXPECT((servers[i] = raccept(pair.listener, NULL, NULL)) >= 0);
		EXPECT(!change(EPOLL_CTL_ADD, servers[i], EPOLLIN));
		EXPECT(!change(EPOLL_CTL_ADD, clients[i], EPOLLIN));
	}
	for (int i = 0; i < COUNT; i += 2)
		EXPECT(rsend(clients[i], "x", 1, 0) == 1);
	while (seen < COUNT / 2) {
		int ret = repoll.wait(ep, events, 7, -1);

		EXPECT(ret > 0 && ret <= 7);
		for (int i = 0; i < ret; i++) {
			char byte;

			EXPECT(rrecv(events[i].data.fd, &byte, 1, MSG_DONTWAIT) == 1);
			seen++;
		}
	}
	EXPECT(repoll.wait(ep, events, 7, 0) == 0);
	for (int i = 0; i < COUNT; i++)
		EXPECT(!rclose(clients[i]) && !rclose(servers[i]));
	EXPECT(repoll.wait(ep, events, 7, 0) == 0);
	end();
}

enum { TALKERS = 8, ROUNDS = 40, QUESTION = 150, ANSWER = 10000 };

/* A server's answer to a client, and how much of the question it has received. */
struct talk {
	int fd;
	size_t heard, left;
};

static void serve(struct talk *talk)
{
	static const char answer[ANSWER];
	char question[QUESTION];
	ssize_t count;

	while (talk->left) {
		count = rsend(talk->fd, answer, talk->left, 0);
		if (count < 0)
			break;
		talk->left -= count;
	}
	while (!talk->left && (count = rrecv(talk->fd, question, QUESTION - talk->heard, 0)) > 0) {
		talk->heard = (talk->heard + count) % QUESTION;
		if (talk->heard)
			continue;
		talk->left = ANSWER;
		while (talk->left && (count = rsend(talk->fd, answer, talk->left, 0)) > 0)
			talk->left -= count;
	}
}

/* A typical server: registers for all events once, edge-triggered, and works until EAGAIN. */
static void *serve_all(void *sockets)
{
	struct talk talks[TALKERS] = { 0 };
	struct epoll_event events[TALKERS];

	EXPECT((ep = repoll.create(0)) >= 0);
	for (int i = 0; i < TALKERS; i++) {
		talks[i].fd = ((int *)sockets)[i];
		rs_nonblock(talks[i].fd, true);
		events[0] = (struct epoll_event){ .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u32 = i };
		EXPECT(!repoll.control(ep, EPOLL_CTL_ADD, talks[i].fd, events));
	}
	for (int open = TALKERS; open > 0;) {
		int count = repoll.wait(ep, events, TALKERS, -1);

		EXPECT(count > 0);
		while (count--) {
			struct talk *talk = &talks[events[count].data.u32];

			serve(talk);
			if (events[count].events & EPOLLRDHUP) {
				EXPECT(!repoll.control(ep, EPOLL_CTL_DEL, talk->fd, NULL));
				open--;
			}
		}
	}
	EXPECT(!rclose(ep));
	return sockets;
}

/* Questions and answers of several clients by turns, until several halves of each buffer are used up. */
static void many_talks(void)
{
	static char answer[ANSWER];
	int clients[TALKERS], servers[TALKERS];
	pthread_t thread;

	EXPECT(rs_pair(&pair, AF_INET));
	for (int i = 0; i < TALKERS; i++) {
		EXPECT((clients[i] = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
		EXPECT(!rconnect(clients[i], &pair.to.sa, addr_len(&pair.to)));
		EXPECT((servers[i] = raccept(pair.listener, NULL, NULL)) >= 0);
	}
	EXPECT(!pthread_create(&thread, NULL, serve_all, servers));
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < TALKERS; i++)
			EXPECT(send_all(clients[i], answer, QUESTION) == QUESTION);
		for (int i = 0; i < TALKERS; i++)
			EXPECT(recv_all(clients[i], answer, ANSWER) == ANSWER);
	}
	for (int i = 0; i < TALKERS; i++)
		EXPECT(!rshutdown(clients[i], SHUT_WR));
	EXPECT(!pthread_join(thread, NULL));
	for (int i = 0; i < TALKERS; i++)
		EXPECT(!rclose(clients[i]) && !rclose(servers[i]));
	rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	if (!find_repoll(&repoll))
		skip_all("this library has no repoll_*");
	CASE(errors);
	CASE(flags);
	CASE(level);
	CASE(edge);
	CASE(edge_of_writing);
	/* Soft-iWARP has no receiver that is not ready: it ends the connection. */
	CASE_IF(!on_siw(), edge_of_writing_after_a_full_buffer);
	CASE(one_shot);
	CASE(peer_half_closes);
	CASE(peer_goes);
	CASE(listener_member);
	CASE(edges_of_a_listener);
	CASE(nested);
	CASE(closing_a_member);
	CASE(closing_with_members);
	CASE(many_waiters);
	CASE(many_members);
	CASE(many_talks);
	return finish();
}
