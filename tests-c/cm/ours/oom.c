/*
 * Every allocation of the library fails once: a whole run of each scenario is repeated with the
 * first, second, third … allocation failing until none is left to fail. No crash, no hang,
 * calls fail with ENOMEM (or an event has that status), nothing leaks.
 * Run with LD_PRELOAD=failmalloc.so; executes itself with it if it is not loaded.
 */
#include "oom.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>

/* Waits for an event of the type. A failure of the other side also ends the wait. */
static struct rdma_cm_id *event_of(struct rdma_event_channel *channel,
				   struct rdma_event_channel *other,
				   enum rdma_cm_event_type type)
{
	struct pollfd entries[2] = { { .fd = channel->fd, .events = POLLIN },
				     { .fd = other->fd, .events = POLLIN } };
	struct rdma_cm_event *event = NULL;
	struct rdma_cm_id *id;

	/* EAGAIN: the library dropped a request for lack of memory, which rejects the client. */
	do {
		poll(entries, 2, -1);
		errno = 0;
	} while (rdma_get_cm_event(entries[0].revents ? channel : other, &event) &&
		 errno == EAGAIN);
	if (!step(event != NULL, "rdma_get_cm_event", errno))
		return NULL;
	id = event->event == type && !event->status ? event->id : NULL;
	if (!id)
		step(false, "event", ENOMEM);
	/* A request that is rejected for lack of memory has created an id. */
	if (!id && event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

/* The channels do not block: an event that the library dropped must not hang the run. */
static bool open_channel(struct rdma_event_channel **channel)
{
	if (!STEP((*channel = rdma_create_event_channel()) != NULL))
		return false;
	fcntl((*channel)->fd, F_SETFL, O_NONBLOCK);
	return true;
}

static bool connect_steps(struct pair *pair)
{
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP), server_attr = attr;
	struct rdma_conn_param param = conn_param("x", 1);
	union address address = local_addr(AF_INET, 0);

	memset(pair, 0, sizeof(*pair));
	if (!open_channel(&pair->server_channel) || !open_channel(&pair->client_channel) ||
	    !STEP(!rdma_create_id(pair->server_channel, &pair->listener, NULL, RDMA_PS_TCP)) ||
	    !STEP(!rdma_create_id(pair->client_channel, &pair->client, NULL, RDMA_PS_TCP)) ||
	    !STEP(!rdma_bind_addr(pair->listener, &address.sa)) ||
	    !STEP(!rdma_listen(pair->listener, 4)))
		return false;
	address.in.sin_port = rdma_get_src_port(pair->listener);
	if (!STEP(!rdma_resolve_addr(pair->client, NULL, &address.sa, 2000)) ||
	    !event_of(pair->client_channel, pair->server_channel, RDMA_CM_EVENT_ADDR_RESOLVED) ||
	    !STEP(!rdma_resolve_route(pair->client, 2000)) ||
	    !event_of(pair->client_channel, pair->server_channel, RDMA_CM_EVENT_ROUTE_RESOLVED) ||
	    !STEP(!rdma_create_qp(pair->client, NULL, &attr)) ||
	    !STEP(!rdma_connect(pair->client, &param)))
		return false;
	pair->server = event_of(pair->server_channel, pair->client_channel,
				RDMA_CM_EVENT_CONNECT_REQUEST);
	if (!pair->server || !STEP(!rdma_create_qp(pair->server, NULL, &server_attr)) ||
	    !STEP(!rdma_accept(pair->server, &param)))
		return false;
	return event_of(pair->client_channel, pair->server_channel, RDMA_CM_EVENT_ESTABLISHED) &&
	       event_of(pair->server_channel, pair->client_channel, RDMA_CM_EVENT_ESTABLISHED) &&
	       STEP(!rdma_disconnect(pair->client));
}

static void whole_connection(void)
{
	struct pair pair;

	connect_steps(&pair);
	pair_close(&pair);
}

static void sync_endpoint(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *res = NULL;
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_TCP);
	struct rdma_cm_id *id = NULL;
	int ret;

	errno = 0;
	ret = rdma_getaddrinfo(local_node(AF_INET), "7961", &hints, &res);
	if (!step(ret == 0, "rdma_getaddrinfo", ret == EAI_MEMORY ? ENOMEM : errno))
		return;
	if (STEP(!rdma_create_ep(&id, res, NULL, &attr)))
		rdma_destroy_ep(id);
	rdma_freeaddrinfo(res);
	hints.ai_flags = RAI_PASSIVE;
	res = NULL;
	ret = rdma_getaddrinfo(NULL, "7962", &hints, &res);
	if (!step(ret == 0, "rdma_getaddrinfo", ret == EAI_MEMORY ? ENOMEM : errno))
		return;
	if (STEP(!rdma_create_ep(&id, res, NULL, &attr))) {
		STEP(!rdma_listen(id, 1));
		rdma_destroy_ep(id);
	}
	rdma_freeaddrinfo(res);
}

static void datagrams_and_groups(void)
{
	union address address = local_addr(AF_INET, 0);
	union address group = make_addr(AF_INET, "239.5.5.5", 0);
	struct ibv_qp_init_attr attr = qp_attr(RDMA_PS_UDP);
	struct rdma_event_channel *channel = NULL;
	struct rdma_cm_id *id = NULL;

	if (on_siw() || !open_channel(&channel))
		return;
	if (STEP(!rdma_create_id(channel, &id, NULL, RDMA_PS_UDP)) &&
	    STEP(!rdma_bind_addr(id, &address.sa)) && STEP(!rdma_create_qp(id, NULL, &attr)) &&
	    STEP(!rdma_join_multicast(id, &group.sa, NULL)) &&
	    event_of(channel, channel, RDMA_CM_EVENT_MULTICAST_JOIN))
		STEP(!rdma_leave_multicast(id, &group.sa));
	id_destroy(id);
	rdma_destroy_event_channel(channel);
}

static void lists_and_migration(void)
{
	struct rdma_event_channel *channel = NULL;
	struct rdma_cm_id *id = NULL;
	struct ibv_context **list;
	int count = 0;

	if (STEP((list = rdma_get_devices(&count)) != NULL))
		rdma_free_devices(list);
	if (!STEP(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP)))
		return;
	if (open_channel(&channel)) {
		STEP(!rdma_migrate_id(id, channel));
		STEP(!rdma_migrate_id(id, NULL));
	}
	rdma_destroy_id(id);
	if (channel)
		rdma_destroy_event_channel(channel);
}

/* Runs the scenario in a child of its own with the n-th allocation failing: first use included. */
static void until_none_fails(const char *name, void (*scenario)(void))
{
	long n = 1;
	bool more = true;

	while (more) {
		int status = 0;
		pid_t child = fork();

		if (child == 0) {
			int fds = open_fds();

			alarm(hang_seconds());
			arm(n);
			scenario();
			more = disarm() > 0;
			if (failed_call && failed_errno != ENOMEM) {
				printf("     allocation %ld: %s gave %s\n", n, failed_call,
				       errno_name(failed_errno));
				_exit(3);
			}
			/* The first use allocates permanent objects once: the second run adds none. */
			scenario();
			long after = held();
			int fds_after = open_fds();
			scenario();
			if (held() > after || open_fds() > fds_after || fds_after > fds + 8) {
				printf("     allocation %ld: %ld more held, %d more open\n", n,
				       held() - after, open_fds() - fds_after);
				_exit(4);
			}
			fflush(stdout);
			_exit(more ? MORE_FOLLOW : NONE_FAILED);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || WIFSIGNALED(status) ||
		    (WEXITSTATUS(status) != MORE_FOLLOW && WEXITSTATUS(status) != NONE_FAILED)) {
			printf("FAIL %s: allocation %ld: %s %d\n", name, n,
			       WIFSIGNALED(status) ? "signal" : "exit",
			       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
			return;
		}
		more = WEXITSTATUS(status) == MORE_FOLLOW;
		n++;
	}
	printf("PASS %s: %ld allocations failed in turn\n", name, n - 2);
}

/* The same within one process after the first use, with an exact count of leaks. */
static void leaks_body(const char *name, void (*scenario)(void))
{
	long base, n = 1;
	int fds;

	scenario();
	base = held();
	fds = open_fds();
	for (bool more = true; more; n++) {
		failed_call = NULL;
		alarm(hang_seconds());
		arm(n);
		scenario();
		more = disarm() > 0;
		if (held() != base || open_fds() != fds) {
			printf("FAIL %s after first use: allocation %ld: %+ld held, %+d open\n", name,
			       n, held() - base, open_fds() - fds);
			return;
		}
		if (failed_call && failed_errno != ENOMEM) {
			printf("FAIL %s after first use: allocation %ld: %s gave %s\n", name, n,
			       failed_call, errno_name(failed_errno));
			return;
		}
	}
	printf("PASS %s after first use: %ld allocations failed in turn\n", name, n - 2);
}

static void leaks(const char *name, void (*scenario)(void))
{
	int status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		leaks_body(name, scenario);
		fflush(stdout);
		_exit(NONE_FAILED);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		printf("FAIL %s after first use: no child\n", name);
	else if (WIFSIGNALED(status))
		printf("FAIL %s after first use: %s\n", name,
		       WTERMSIG(status) == SIGALRM ? "hangs" : sigabbrev_np(WTERMSIG(status)));
	else if (WEXITSTATUS(status) != NONE_FAILED)
		printf("FAIL %s after first use: exit status %d\n", name, WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } scenarios[] = {
		{ "whole_connection", whole_connection }, { "sync_endpoint", sync_endpoint },
		{ "datagrams_and_groups", datagrams_and_groups },
		{ "lists_and_migration", lists_and_migration },
	};

	start(argc, argv);
	load_failmalloc(argv);
	for (int i = 0; i < 4; i++) {
		declare_cases(2);
		until_none_fails(scenarios[i].name, scenarios[i].run);
		leaks(scenarios[i].name, scenarios[i].run);
	}
	return finish();
}
