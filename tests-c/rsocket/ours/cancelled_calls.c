/*
 * Calls that pthread_cancel(3) ends while they are busy, and calls of the connection manager that it ends while they are
 * asleep. Locks are free afterwards: other calls and fork() work. Run on ours only; the reference hangs in most of these.
 * cancellation.c cancels calls for rsockets that are asleep, chaos.c all of them at random.
 */
#include "rsinterrupted.h"

/* Calls `step` until it is cancelled, which it may be outside of the library, too. */
static void *(*step)(void *);
static volatile bool running;

static void *repeat(void *argument)
{
	for (;;) {
		step(argument);
		running = true;
		pthread_testcancel();
	}
	return NULL;
}

static void cancelled_often(void *(*call)(void *), void *argument, int rounds)
{
	step = call;
	for (int round = 0; round < rounds; round++) {
		pthread_t thread;
		void *result;

		running = false;
		EXPECT(!pthread_create(&thread, NULL, repeat, argument));
		while (!running)
			pause_briefly();
		usleep((useconds_t)rand_r(&seed) % 500);
		EXPECT(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
	}
}

static void cancel_in_datagrams(void)
{
	int fd = datagram_socket();
	char byte;

	cancelled_often(send_datagram, &fd, 100);
	EXPECT(rsendto(fd, "y", 1, 0, &own_name.sa, addr_len(&own_name)) == 1 && rrecv(fd, &byte, 1, 0) == 1);
	EXPECT(!rclose(fd));
	all_is_well();
}

static void *exchange(void *argument)
{
	char byte;

	(void)argument;
	rsend(pair.client, "x", 1, MSG_DONTWAIT);
	rrecv(pair.server, &byte, 1, MSG_DONTWAIT);
	return NULL;
}

static void cancel_in_streams(void)
{
	EXPECT(rs_pair(&pair, AF_INET));
	cancelled_often(exchange, NULL, 100);
	EXPECT(pair_works());
	rs_pair_close(&pair);
	all_is_well();
}

static struct repoll repoll;

static void *exchange_by_repoll(void *ep)
{
	struct epoll_event event;

	exchange(NULL);
	repoll.wait(*(int *)ep, &event, 1, 0);
	return NULL;
}

static void cancel_in_repoll(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 7 };
	int ep;

	EXPECT(find_repoll(&repoll) && rs_pair(&pair, AF_INET) && (ep = repoll.create(0)) >= 0);
	EXPECT(!repoll.control(ep, EPOLL_CTL_ADD, pair.server, &event));
	cancelled_often(exchange_by_repoll, &ep, 100);
	EXPECT(pair_works() && rsend(pair.client, "x", 1, 0) == 1);
	EXPECT(repoll.wait(ep, &event, 1, -1) == 1 && event.data.u32 == 7);
	EXPECT(!rclose(ep));
	rs_pair_close(&pair);
	all_is_well();
}

static void cancel_in_devices(void)
{
	cancelled_often(list_devices, NULL, 30);
	all_is_well();
}

static void *make_rsocket(void *argument)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	union address address = local_addr(AF_INET, 0);

	(void)argument;
	if (fd >= 0) {
		rbind(fd, &address.sa, addr_len(&address));
		rlisten(fd, 1);
		rclose(fd);
	}
	return NULL;
}

/* Each leaks at most the rsocket that it was creating. */
static void cancel_in_set_up(void)
{
	cancelled_often(make_rsocket, NULL, 50);
	all_is_well();
}

static bool complete;

static void *live_as_id(void *unused)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *bound;

	pthread_cancel(pthread_self());
	EXPECT(!rdma_create_id(NULL, &bound, NULL, RDMA_PS_TCP) && !rdma_bind_addr(bound, &address.sa));
	EXPECT(!rdma_create_qp(bound, NULL, &attr) && !rdma_listen(bound, 1));
	rdma_destroy_qp(bound);
	EXPECT(!rdma_destroy_id(bound));
	complete = true;
	pthread_testcancel();
	return unused;
}

/* Calls that do not wait are not cut short, the first of the process included. */
static void cancel_in_ids(void)
{
	pthread_t thread;
	void *result;

	EXPECT(!pthread_create(&thread, NULL, live_as_id, NULL) && !pthread_join(thread, &result));
	EXPECT(complete && result == PTHREAD_CANCELED);
	all_is_well();
}

/* ---- waits of rdma_* ------------------------------------------------------------------------------------ */

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;

static ssize_t call_get_event(int fd)
{
	struct rdma_cm_event *event;

	(void)fd;
	return rdma_get_cm_event(channel, &event);
}

static ssize_t call_get_request(int fd)
{
	struct rdma_cm_id *new;

	(void)fd;
	return rdma_get_request(id, &new);
}

static ssize_t call_resolve(int fd)
{
	union address to = silent_addr(7995);

	(void)fd;
	return rdma_resolve_addr(id, NULL, &to.sa, 30000);
}

static ssize_t call_create_ep(int fd)
{
	union address to = silent_addr(7996);
	struct rdma_addrinfo info = { .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC,
				      .ai_dst_addr = &to.sa, .ai_dst_len = addr_len(&to) };
	struct rdma_cm_id *new;

	(void)fd;
	return rdma_create_ep(&new, &info, NULL, NULL);
}

static void cancelled_asleep(ssize_t (*call)(int), int rounds)
{
	struct blocked blocked;
	void *result;
	int before = 0;

	for (int round = 0; round < rounds; round++) {
		if (round == 1)
			before = open_fds();
		start_blocked(&blocked, call, -1);
		EXPECT(!pthread_cancel(blocked.thread) && !pthread_join(blocked.thread, &result));
		EXPECT(result == PTHREAD_CANCELED);
	}
	EXPECT(rounds == 1 || open_fds() == before);
}

static void cancel_in_get_cm_event(void)
{
	union address address = local_addr(AF_INET, 0);

	channel = rdma_create_event_channel();
	EXPECT(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	cancelled_asleep(call_get_event, 3);
	/* The channel still works. */
	EXPECT(!rdma_resolve_addr(id, NULL, &address.sa, 2000));
	EXPECT(quiet_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == id);
	EXPECT(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static ssize_t call_get_and_ack(int fd)
{
	struct rdma_cm_event *event;

	(void)fd;
	return rdma_get_cm_event(channel, &event) || rdma_ack_cm_event(event);
}

/*
 * Destroying an id waits until its events are acknowledged: also those that are lost with the thread. The event comes
 * with the id from another channel, and the thread does not run before it is cancelled.
 */
static void cancel_as_a_cm_event_arrives(void)
{
	union address address = local_addr(AF_INET, 0);
	const struct sched_param none = { 0 };

	for (int round = 0; round < 20; round++) {
		struct rdma_event_channel *first = rdma_create_event_channel();
		struct pollfd entry = { .events = POLLIN };
		struct blocked blocked;

		channel = rdma_create_event_channel();
		EXPECT(channel && first && !rdma_create_id(first, &id, NULL, RDMA_PS_TCP));
		entry.fd = first->fd;
		EXPECT(!rdma_resolve_addr(id, NULL, &address.sa, 2000) && poll(&entry, 1, -1) == 1);
		start_blocked(&blocked, call_get_and_ack, -1);
		EXPECT(!pthread_setschedparam(blocked.thread, SCHED_IDLE, &none));
		EXPECT(!rdma_migrate_id(id, channel));
		EXPECT(!pthread_cancel(blocked.thread) && !pthread_join(blocked.thread, NULL));
		EXPECT(!rdma_destroy_id(id));
		rdma_destroy_event_channel(channel);
		rdma_destroy_event_channel(first);
	}
}

static void cancel_in_synchronous_calls(void)
{
	union address address = local_addr(AF_INET, 0);

	EXPECT(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	EXPECT(!rdma_bind_addr(id, &address.sa) && !rdma_listen(id, 1));
	cancelled_asleep(call_get_request, 3);
	EXPECT(!rdma_destroy_id(id));
	EXPECT(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	cancelled_asleep(call_resolve, 1);
	EXPECT(!rdma_destroy_id(id));
	cancelled_asleep(call_create_ep, 3);
	all_is_well();
}

int main(int argc, char **argv)
{
	start(argc, argv);
	/* Soft-iWARP has no datagrams. */
	CASE_IF(!on_siw(), cancel_in_datagrams);
	CASE(cancel_in_streams);
	CASE(cancel_in_repoll);
	CASE(cancel_in_devices);
	CASE(cancel_in_set_up);
	CASE(cancel_in_ids);
	CASE(cancel_in_get_cm_event);
	CASE(cancel_as_a_cm_event_arrives);
	CASE(cancel_in_synchronous_calls);
	return finish();
}
