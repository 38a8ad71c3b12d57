/*
 * Processes with access to only a part of the RDMA device nodes, as in containers and for
 * unprivileged users. Each call runs in a process of its own, and then all of them in one process.
 */
#define _GNU_SOURCE
#include "common.h"

#include <dlfcn.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define FOLDER "/dev/infiniband"
enum { NODES = 16, NOBODY = 65534 };

enum access { MISSING, CLOSED, OPEN };

/* What a process finds in /dev/infiniband. */
static const struct environment {
	const char *name;
	enum access rdma_cm, uverbs;
} environments[] = {
	{ "all nodes", OPEN, OPEN },
	{ "no nodes", MISSING, MISSING },
	{ "uverbs only", MISSING, OPEN },
	{ "rdma_cm closed", CLOSED, OPEN },
	{ "uverbs closed", OPEN, CLOSED },
	{ "rdma_cm only", OPEN, MISSING },
	{ "all closed", CLOSED, CLOSED },
};

static struct node {
	char path[64];
	dev_t number;
} nodes[NODES];
static int node_count;

/* Nodes that will not be created: counts how often a library waits for one. */
static int waits;
int poll(struct pollfd *fds, nfds_t count, int timeout)
{
	int (*next)(struct pollfd *, nfds_t, int) = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
	int ready = next(fds, count, timeout);

	waits += ready == 0 && timeout > 0;
	return ready;
}

static void remember_node(const char *name)
{
	struct stat status;
	struct node *node = &nodes[node_count];

	snprintf(node->path, sizeof(node->path), FOLDER "/%s", name);
	if (node_count < NODES && stat(node->path, &status) == 0) {
		node->number = status.st_rdev;
		node_count++;
	}
}

static void remember_nodes(void)
{
	char name[32];

	remember_node("rdma_cm");
	for (int i = 0; i < NODES - 1; i++) {
		snprintf(name, sizeof(name), "uverbs%d", i);
		remember_node(name);
	}
}

/* Gives this process its own /dev/infiniband, and drops root's privileges. */
static bool enter(const struct environment *environment)
{
	umask(0);
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", FOLDER, "tmpfs", 0, "mode=0755"))
		return false;
	for (int i = 0; i < node_count; i++) {
		enum access access = strstr(nodes[i].path, "rdma_cm") ? environment->rdma_cm : environment->uverbs;

		if (access != MISSING &&
		    mknod(nodes[i].path, S_IFCHR | (access == OPEN ? 0666 : 0600), nodes[i].number))
			return false;
	}
	return setresuid(NOBODY, NOBODY, NOBODY) == 0;
}

static void devices(void)
{
	int count = -1;
	struct ibv_context **list = CALL_PTR(rdma_get_devices(&count));

	obs("count %d", count);
	if (list)
		rdma_free_devices(list);
}

static void channel(void)
{
	struct rdma_event_channel *channel = CALL_PTR(rdma_create_event_channel());
	struct rdma_cm_id *id = NULL;

	if (!channel)
		return;
	CALL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	if (id)
		CALL(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void resolve_with_events(void)
{
	struct rdma_event_channel *channel = CALL_PTR(rdma_create_event_channel());
	union address address = local_addr(AF_INET, 7);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id = NULL;

	if (!channel)
		return;
	CALL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	id_name(id, "id");
	CALL(rdma_resolve_addr(id, NULL, &address.sa, 2000));
	event = get_event("id", channel);
	if (event)
		rdma_ack_cm_event(event);
	CALL(id_destroy(id));
	rdma_destroy_event_channel(channel);
}

/* The kernel has no id: the channel's descriptor is not one. */
static void id_on_bad_channel(void)
{
	struct rdma_event_channel channel = { .fd = -1 };
	struct rdma_cm_id *id = NULL;

	CALL(rdma_create_id(&channel, &id, NULL, RDMA_PS_TCP));
}

static void sync_id(void)
{
	union address address = local_addr(AF_INET, 0);
	struct rdma_cm_id *id = NULL;

	CALL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	if (!id)
		return;
	CALL(rdma_bind_addr(id, &address.sa));
	obs("verbs %s", id->verbs ? "set" : "NULL");
	CALL(rdma_destroy_id(id));
}

static void wildcard(void)
{
	union address address = any_addr(AF_INET, 0);
	struct rdma_cm_id *id = NULL;

	CALL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	if (!id)
		return;
	CALL(rdma_bind_addr(id, &address.sa));
	CALL(rdma_listen(id, 1));
	CALL(rdma_destroy_id(id));
}

static void resolve(void)
{
	union address address = local_addr(AF_INET, 7);
	struct rdma_cm_id *id = NULL;

	CALL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	if (!id)
		return;
	CALL(rdma_resolve_addr(id, NULL, &address.sa, 2000));
	CALL(rdma_destroy_id(id));
}

static void addrinfo(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_PASSIVE };
	struct rdma_addrinfo *res = NULL;

	CALL(rdma_getaddrinfo(local_node(AF_INET), "7", NULL, &res));
	if (res)
		rdma_freeaddrinfo(res);
	res = NULL;
	CALL(rdma_getaddrinfo(NULL, "7", &hints, &res));
	if (res)
		rdma_freeaddrinfo(res);
	CALL(rdma_getaddrinfo(NULL, NULL, NULL, &res));
}

static void sockets(void)
{
	static const int types[] = { SOCK_STREAM, SOCK_DGRAM };
	union address address = local_addr(AF_INET, 0);

	for (int i = 0; i < 2; i++) {
		int fd, error;

		errno = 0;
		fd = rsocket(AF_INET, types[i], 0);
		error = errno;
		obs("rsocket %s %s", i ? "dgram" : "stream", fd < 0 ? errno_name(error) : "made");
		if (fd < 0)
			continue;
		CALL(rbind(fd, &address.sa, sizeof(address.in)));
		CALL(rclose(fd));
	}
}

static void (*const calls[])(void) = {
	devices, channel, id_on_bad_channel, sync_id, wildcard, resolve, resolve_with_events, addrinfo, sockets,
};
static const char *const names[] = {
	"devices", "channel", "bad channel", "sync id", "wildcard", "resolve", "resolve with events", "addrinfo", "sockets",
};
enum { CALLS = sizeof(calls) / sizeof(calls[0]) };

struct job {
	const struct environment *environment;
	int call; /* or all of them */
};

static void run(void *argument)
{
	const struct job *job = argument;

	if (!SETUP(enter(job->environment)))
		return;
	for (int i = 0; i < CALLS; i++)
		if (job->call == i || job->call == CALLS)
			calls[i]();
	obs("waits in vain: %d", waits);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	if (geteuid() != 0)
		skip_all("needs root for a mount namespace");
	remember_nodes();
	obs("nodes %d", node_count);
	for (size_t i = 0; i < sizeof(environments) / sizeof(environments[0]); i++) {
		for (int call = 0; call <= CALLS; call++) {
			struct job job = { &environments[i], call };
			const char *name = call < CALLS ? names[call] : "one process";

			topic("%s: %s", environments[i].name, name);
			in_child(name, run, &job);
		}
	}
	return finish();
}
