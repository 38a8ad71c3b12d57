/*
 * One case for each visible defect of the reference that ours does not have.
 * docs/compatibility.md lists the names.
 */
#include "cases.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* The first open of a device fails for lack of descriptors, a later one succeeds. */
static void device_open_retried(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *id = NULL;
	struct rlimit old, limit;

	EXPECT(channel != NULL);
	EXPECT(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	getrlimit(RLIMIT_NOFILE, &old);
	limit = old;
	limit.rlim_cur = 3;
	setrlimit(RLIMIT_NOFILE, &limit);
	EXPECT(rdma_bind_addr(id, &address.sa) == -1);
	setrlimit(RLIMIT_NOFILE, &old);
	rdma_destroy_id(id);
	EXPECT(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	EXPECT(!rdma_bind_addr(id, &address.sa));
	EXPECT(id->verbs && id->pd);
	EXPECT(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static struct rdma_addrinfo *info(int flags, int port)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *res = NULL;
	char service[8];

	snprintf(service, sizeof(service), "%d", port);
	EXPECT(!rdma_getaddrinfo(local_node(AF_INET), service, &hints, &res));
	return res;
}

/* Data of the endpoint and of the program together exceed what a connect can carry. */
static void endpoint_data_too_long(void)
{
	static unsigned char data[255];
	struct rdma_conn_param param = conn_param(data, 255);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_addrinfo *res = info(0, 7951);
	struct rdma_cm_id *id = NULL;

	res->ai_connect = calloc(1, 200);
	res->ai_connect_len = 200;
	EXPECT(!rdma_create_ep(&id, res, NULL, &attr));
	EXPECT_ERROR(rdma_connect(id, &param), EINVAL);
	param.private_data_len = 56;
	EXPECT_ERROR(rdma_connect(id, &param), EINVAL);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(res);
}

static void endpoint_data_alone_too_long(void)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_conn_param param = conn_param("x", 1);
	struct rdma_addrinfo *res = info(0, 7952);
	struct rdma_cm_id *id = NULL;

	res->ai_connect = calloc(1, 4000);
	res->ai_connect_len = 4000;
	errno = 0;
	if (rdma_create_ep(&id, res, NULL, &attr)) {
		EXPECT_ERROR(rdma_create_ep(&id, res, NULL, &attr), EINVAL);
	} else {
		EXPECT_ERROR(rdma_connect(id, &param), EINVAL);
		rdma_destroy_ep(id);
	}
	rdma_freeaddrinfo(res);
}

static void *client_of_failed_request(void *argument)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_addrinfo *res = info(0, 7953);
	struct rdma_cm_id *id = NULL;

	(void)argument;
	EXPECT(!rdma_create_ep(&id, res, NULL, &attr));
	EXPECT_ERROR(rdma_connect(id, NULL), ECONNREFUSED);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(res);
	return NULL;
}

/* get_request cannot create the QP: the new id is destroyed, and its client rejected. */
static void failed_get_request_drops_new_id(void)
{
	struct ibv_qp_init_attr bad = qp_attr(RDMA_PS_TCP);
	struct rdma_addrinfo *res = info(RAI_PASSIVE, 7953);
	struct rdma_cm_id *listener = NULL, *id = NULL;
	pthread_t client;

	bad.cap.max_send_wr = 1u << 30;
	EXPECT(!rdma_create_ep(&listener, res, NULL, &bad));
	EXPECT(!rdma_listen(listener, 1));
	pthread_create(&client, NULL, client_of_failed_request, NULL);
	EXPECT(rdma_get_request(listener, &id) == -1);
	EXPECT(id == NULL);
	pthread_join(client, NULL);
	rdma_destroy_ep(listener);
	rdma_freeaddrinfo(res);
}

/* A failed synchronous join leaves no membership. */
static void failed_sync_join_leaves_nothing(void)
{
	union address address = local_addr(AF_INET, 0);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_UDP);
	struct rdma_cm_id *id = NULL;

	EXPECT(!rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP));
	EXPECT(!rdma_bind_addr(id, &address.sa));
	/* The QP cannot be attached to an address that is not a multicast address. */
	EXPECT(!rdma_create_qp(id, NULL, &attr));
	EXPECT(rdma_join_multicast(id, &address.sa, NULL) == -1);
	EXPECT_ERROR(rdma_leave_multicast(id, &address.sa), EADDRNOTAVAIL);
	EXPECT_ERROR(rdma_leave_multicast(id, &address.sa), EADDRNOTAVAIL);
	rdma_destroy_qp(id);
	EXPECT(!rdma_destroy_id(id));
}

static size_t heap_in_use(void)
{
	return mallinfo2().uordblks;
}

/* The command cannot be written; memory and descriptor are freed nevertheless. */
static void failed_destroy_of_sync_id(void)
{
	enum { ROUNDS = 200 };
	size_t before = 0;
	int fds = 0;

	for (int i = 0; i < ROUNDS + 10; i++) {
		struct rdma_cm_id *id = NULL;
		int wrong = open("/dev/null", O_RDONLY | O_CLOEXEC);

		if (i == 10) {
			before = heap_in_use();
			fds = open_fds() - 1;
		}
		EXPECT(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
		EXPECT(dup2(wrong, id->channel->fd) >= 0);
		close(wrong);
		EXPECT(rdma_destroy_id(id) == -1);
	}
	EXPECT(heap_in_use() < before + ROUNDS * 64);
	EXPECT(open_fds() <= fds);
}

/*
 * While an id leaves its own channel, no other thread may find it on a closed descriptor. The library
 * calls this close(): the loader searches the program first.
 */
static struct rdma_cm_id *migrating;
static int closed_under_it;

int close(int fd)
{
	if (migrating && migrating->channel->fd == fd)
		closed_under_it++;
	return syscall(SYS_close, fd);
}

static void migration_closes_after_leaving(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL;
	int own;

	EXPECT(channel != NULL);
	EXPECT(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	own = id->channel->fd;
	migrating = id;
	EXPECT(!rdma_migrate_id(id, channel));
	EXPECT(id->channel == channel);
	EXPECT(fcntl(own, F_GETFD) == -1);
	EXPECT(closed_under_it == 0);
	migrating = NULL;
	EXPECT(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* A second QP uses the CQs of the first, which were written to the attributes: destroying the first keeps CQs and channels. */
static void cqs_of_two_qps(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *one = NULL, *other = NULL;
	struct ibv_comp_channel *told;
	void *context;
	struct ibv_cq *cq;
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr wr = { .wr_id = 7 }, *bad;

	EXPECT(!rdma_create_id(channel, &one, NULL, RDMA_PS_TCP) && !rdma_bind_addr(one, &address.sa));
	address = local_addr(AF_INET, 0);
	EXPECT(!rdma_create_id(channel, &other, NULL, RDMA_PS_TCP) && !rdma_bind_addr(other, &address.sa));
	EXPECT(!rdma_create_qp(one, NULL, &attr) && attr.recv_cq == one->recv_cq);
	EXPECT(!rdma_create_qp(other, NULL, &attr) && other->qp->recv_cq == one->recv_cq);
	told = one->recv_cq_channel;
	rdma_destroy_qp(one);
	EXPECT(!one->qp && fcntl(told->fd, F_GETFD) != -1);
	/* A receive that completes with an error is reported as before. */
	EXPECT(!ibv_req_notify_cq(other->qp->recv_cq, 0) && !ibv_post_recv(other->qp, &wr, &bad));
	EXPECT(!ibv_modify_qp(other->qp, &error, IBV_QP_STATE));
	EXPECT(!ibv_get_cq_event(told, &cq, &context) && cq == other->qp->recv_cq);
	ibv_ack_cq_events(cq, 1);
	rdma_destroy_qp(other);
	EXPECT(!rdma_destroy_id(one) && !rdma_destroy_id(other));
	rdma_destroy_event_channel(channel);
}

/* One CQ, or one channel, in both public fields is destroyed once. The reference is not compared. */
static void one_cq_for_both_queues(void)
{
	for (int shared_channel = 0; shared_channel < 2; shared_channel++) {
		struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
		union address address = local_addr(AF_INET, 0);
		struct ibv_comp_channel *channel;
		struct rdma_cm_id *id = NULL;
		int fd;

		EXPECT(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(id, &address.sa));
		EXPECT((channel = ibv_create_comp_channel(id->verbs)));
		fd = channel->fd;
		EXPECT((id->send_cq = id->recv_cq = ibv_create_cq(id->verbs, 16, id, channel, 0)));
		if (shared_channel)
			id->send_cq_channel = id->recv_cq_channel = channel;
		EXPECT(!rdma_create_qp(id, NULL, &attr) && id->qp->send_cq == id->qp->recv_cq);
		rdma_destroy_qp(id);
		EXPECT(!id->send_cq && !id->recv_cq && !id->send_cq_channel && !id->recv_cq_channel);
		/* A channel that is in no field is the program's, and no CQ uses it any more. */
		EXPECT(shared_channel || !ibv_destroy_comp_channel(channel));
		EXPECT(fcntl(fd, F_GETFD) == -1);
		EXPECT(!rdma_destroy_id(id));
	}
}

/* Closes all descriptors from `first`, as daemons do, and opens files of the program with their numbers. */
static void reuse_fds(int first, int count)
{
	for (int fd = first; fd < first + count; fd++)
		syscall(SYS_close, fd);
	for (int fd = first; fd < first + count; fd++)
		EXPECT(open("/dev/null", O_RDONLY) == fd);
}

static bool all_open(int first, int count)
{
	for (int fd = first; fd < first + count; fd++)
		if (fcntl(fd, F_GETFD) == -1)
			return false;
	return true;
}

/* The commands fail, and files of the program that have the numbers of the library's descriptors stay open. */
static void queue_pair_after_closefrom(void)
{
	pid_t child = fork();

	if (child == 0) {
		struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
		union address address = local_addr(AF_INET, 0);
		struct rdma_cm_id *id = NULL;

		if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) || rdma_bind_addr(id, &address.sa) || rdma_create_qp(id, NULL, &attr))
			_exit(2);
		reuse_fds(3, 60);
		rdma_destroy_qp(id);
		_exit(all_open(3, 60) ? CHILD_DONE : 1);
	}
	EXPECT(child_done(child));
}

static pthread_barrier_t barrier;

static void *first_use(void *argument)
{
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *id = NULL;

	(void)argument;
	pthread_barrier_wait(&barrier);
	EXPECT(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	EXPECT(!rdma_bind_addr(id, &address.sa));
	EXPECT(id->verbs && id->pd);
	EXPECT(!rdma_destroy_id(id));
	return NULL;
}

/* The first use of a process by many threads at once, repeated. */
static void first_use_races(void)
{
	for (int round = 0; round < 25; round++) {
		pthread_t threads[8];
		pid_t child = fork();

		if (child == 0) {
			pthread_barrier_init(&barrier, NULL, 8);
			for (int i = 0; i < 8; i++)
				pthread_create(&threads[i], NULL, first_use, NULL);
			for (int i = 0; i < 8; i++)
				pthread_join(threads[i], NULL);
			_exit(CHILD_DONE);
		}
		EXPECT(child_done(child));
	}
}

/* RAI_SA with RAI_DNS, and RAI_SA with a node, are not supported: -1 and ENOTSUP. */
static void resolve_addrinfo_errno(void)
{
	int (*resolve)(struct rdma_cm_id *, const char *, const char *,
		       const struct rdma_addrinfo *) = optional_symbol("rdma_resolve_addrinfo");
	struct rdma_addrinfo hints = { .ai_flags = 0x30 };
	struct rdma_cm_id *id = NULL;

	EXPECT(resolve != NULL);
	EXPECT(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	EXPECT_ERROR(resolve(id, NULL, "1", &hints), ENOTSUP);
	hints.ai_flags = 0x10;
	EXPECT_ERROR(resolve(id, "localhost", "1", &hints), ENOTSUP);
	EXPECT_ERROR(resolve(id, NULL, NULL, &hints), EINVAL);
	EXPECT(!rdma_destroy_id(id));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(device_open_retried);
	CASE(endpoint_data_too_long);
	CASE(endpoint_data_alone_too_long);
	CASE(failed_get_request_drops_new_id);
	/* On InfiniBand every address can be a group's. */
	CASE_IF(!on_siw() && !on_ib(), failed_sync_join_leaves_nothing);
	CASE(failed_destroy_of_sync_id);
	CASE(migration_closes_after_leaving);
	/* Soft-iWARP's provider takes a CQ's memory away even if the kernel refuses to destroy it. */
	CASE_IF(!on_siw(), cqs_of_two_qps);
	CASE(one_cq_for_both_queues);
	CASE(queue_pair_after_closefrom);
	CASE(first_use_races);
	CASE(resolve_addrinfo_errno);
	return finish();
}
