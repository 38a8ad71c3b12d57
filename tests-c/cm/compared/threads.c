/* Threads: first use at once, one reader while others create and destroy, many connections. */
#include "common.h"

enum { THREADS = 8, ROUNDS = 20 };

static pthread_barrier_t barrier;

/* First call of the process, from all threads at the same moment. */
static void *first_use(void *argument)
{
	long number = (long)argument;
	struct rdma_cm_id *id = NULL;
	union address address = local_addr(AF_INET, 0);
	struct ibv_context **list;
	int good = 0, count = 0;

	pthread_barrier_wait(&barrier);
	if (number % 4 == 3) {
		list = rdma_get_devices(&count);
		good = list && count == 2;
		if (list)
			rdma_free_devices(list);
	} else if (number % 4 == 2) {
		struct rdma_addrinfo *res = NULL;

		good = !rdma_getaddrinfo(local_node(AF_INET), "7471", NULL, &res);
		rdma_freeaddrinfo(res);
	} else {
		good = !rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) &&
		       !rdma_bind_addr(id, &address.sa) && id->pd != NULL;
		if (id)
			rdma_destroy_id(id);
	}
	return (void *)(long)good;
}

static void all_first(void)
{
	struct worker *workers[THREADS];
	long good = 0;

	topic("first use at once");
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (long i = 0; i < THREADS; i++)
		workers[i] = worker_start(first_use, (void *)i);
	for (int i = 0; i < THREADS; i++)
		good += (long)worker_join(workers[i]);
	pthread_barrier_destroy(&barrier);
	obs("good %ld of %d", good, THREADS);
}

/* One reader of a channel; the others create, resolve and destroy ids on it. */
static struct rdma_event_channel *shared;
static volatile int reader_ends;

static void *reader(void *argument)
{
	struct rdma_cm_event *event;
	long seen = 0;

	(void)argument;
	while (!rdma_get_cm_event(shared, &event)) {
		bool last = event->id->context == (void *)&reader_ends;

		seen += event->event == RDMA_CM_EVENT_ADDR_RESOLVED && !last;
		if (!last)
			__atomic_add_fetch((int *)event->id->context, 1, __ATOMIC_SEQ_CST);
		rdma_ack_cm_event(event);
		if (last)
			break;
	}
	return (void *)seen;
}

static void *creator(void *argument)
{
	union address to = local_addr(AF_INET, 7990);
	long made = 0;

	(void)argument;
	for (int i = 0; i < ROUNDS; i++) {
		struct rdma_cm_id *id = NULL;
		int arrived = 0;

		if (rdma_create_id(shared, &id, &arrived, RDMA_PS_TCP))
			continue;
		if (!rdma_resolve_addr(id, NULL, &to.sa, 2000))
			while (!__atomic_load_n(&arrived, __ATOMIC_SEQ_CST))
				pause_briefly();
		made += !rdma_destroy_id(id);
	}
	return (void *)made;
}

static void one_reader(void)
{
	struct worker *workers[4], *reads;
	union address to = local_addr(AF_INET, 7990);
	struct rdma_cm_id *last = NULL;
	long made = 0;

	topic("one reader, many creators");
	shared = rdma_create_event_channel();
	reads = worker_start(reader, NULL);
	for (int i = 0; i < 4; i++)
		workers[i] = worker_start(creator, NULL);
	for (int i = 0; i < 4; i++)
		made += (long)worker_join(workers[i]);
	obs("made %ld", made);
	rdma_create_id(shared, &last, (void *)&reader_ends, RDMA_PS_TCP);
	rdma_resolve_addr(last, NULL, &to.sa, 2000);
	obs("read %ld", (long)worker_join(reads));
	rdma_destroy_id(last);
	rdma_destroy_event_channel(shared);
}

/* Whole connections at once, each with channels of its own. */
static void *connect_all(void *argument)
{
	long good = 0;

	(void)argument;
	for (int i = 0; i < 5; i++) {
		struct pair pair;

		good += pair_connect(&pair, RDMA_PS_TCP, AF_INET);
		pair_close(&pair);
	}
	return (void *)good;
}

static void parallel(void)
{
	struct worker *workers[4];
	long good = 0;

	topic("parallel connections");
	for (int i = 0; i < 4; i++)
		workers[i] = worker_start(connect_all, NULL);
	for (int i = 0; i < 4; i++)
		good += (long)worker_join(workers[i]);
	obs("connected %ld", good);
}

/* Sync ids in many threads against one sync listener. */
static void *sync_client(void *argument)
{
	struct rdma_cm_id *id = NULL;
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param(NULL, 0);
	long good;

	good = !rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) &&
	       !rdma_resolve_addr(id, NULL, argument, 2000) && !rdma_resolve_route(id, 2000) &&
	       !rdma_create_qp(id, NULL, &attr) && !rdma_connect(id, &param) &&
	       !rdma_disconnect(id);
	rdma_destroy_qp(id);
	good = good && !rdma_destroy_id(id);
	return (void *)good;
}

static void *sync_server(void *argument)
{
	struct rdma_cm_id *id = argument;
	struct rdma_conn_param param = conn_param(NULL, 0);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	long good = !rdma_create_qp(id, NULL, &attr) && !rdma_accept(id, &param) &&
		    !rdma_disconnect(id);

	rdma_destroy_qp(id);
	good = good && !rdma_destroy_id(id);
	return (void *)good;
}

static void many_sync(void)
{
	struct worker *clients[6], *servers[6];
	union address to = local_addr(AF_INET, 0);
	struct rdma_cm_id *listener = NULL;
	long good = 0;

	topic("many sync ids");
	rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP);
	if (!SETUP(!rdma_bind_addr(listener, &to.sa)) || !SETUP(!rdma_listen(listener, 16)))
		return;
	to.in.sin_port = rdma_get_src_port(listener);
	for (int i = 0; i < 6; i++)
		clients[i] = worker_start(sync_client, &to);
	for (int i = 0; i < 6; i++) {
		struct rdma_cm_id *id = NULL;

		SETUP(!rdma_get_request(listener, &id));
		servers[i] = worker_start(sync_server, id);
	}
	for (int i = 0; i < 6; i++)
		good += (long)worker_join(clients[i]) + (long)worker_join(servers[i]);
	obs("good %ld", good);
	CALL(rdma_destroy_id(listener));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	all_first();
	one_reader();
	parallel();
	many_sync();
	return finish();
}
