/* Frame, two-sided set-up, threads; the printing is in print.c. */
#define _GNU_SOURCE
#include "common.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

/* The case that runs and its mark, for the programs with the frame of cases.h. */
struct case_mark;
extern const char *case_name;
extern struct case_mark *case_mark;
const char *case_name;
struct case_mark *case_mark;

const char *device = "rxe";

bool on_siw(void)
{
	return strcmp(device, "siw") == 0;
}

bool on_ib(void)
{
	return strcmp(device, "ib") == 0;
}

void start(int argc, char **argv)
{
	if (argc > 1)
		device = strcmp(argv[1], "fabric") && strcmp(argv[1], "ports") ? argv[1] : "ib";
	if (strcmp(device, "rxe") && strcmp(device, "siw") && strcmp(device, "ib")) {
		fprintf(stderr, "usage: %s [rxe|siw|ib|fabric]\n", argv[0]);
		exit(2);
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
}

/* The section of DECLARE_CASE; the linker defines its bounds where there is one. */
extern const char __start_cases[] __attribute__((weak)), __stop_cases[] __attribute__((weak));
static size_t cases_of_tables;

void declare_cases(size_t count)
{
	cases_of_tables += count;
}

void leave_case(const char *name, const char *why)
{
	printf("LEFT %s: %s\n", name, why);
}

void skip_case(const char *name, const char *why)
{
	printf("SKIP %s: %s\n", name, why);
}

int finish(void)
{
	size_t count = cases_of_tables + (size_t)(__stop_cases - __start_cases);

	if (count)
		printf("CASES %zu\n", count);
	topic("end");
	obs("complete");
	return 0;
}

void skip_all(const char *why)
{
	printf("SKIP %s\n", why);
	exit(0);
}

/* ---- addresses ---------------------------------------------------------- */

struct lab_addresses {
	const char *device, *variable, *variable6;
	const char *address, *address6; /* the lab's own, if it did not say */
};

static const struct lab_addresses lab_addresses[] = {
	{ "rxe", "RXE_ADDR", "RXE_ADDR6", "10.1.0.1", "fd00:1::1" },
	{ "siw", "SIW_ADDR", "SIW_ADDR6", "10.2.0.1", "fd00:2::1" },
	{ "ib", "IB_ADDR", "IB_ADDR6", "10.77.3.1", "fd00:77:3::1" },
};

/* The lab says which addresses its devices have. */
const char *local_node(int family)
{
	const struct lab_addresses *one = lab_addresses;
	const char *value;

	while (strcmp(one->device, device))
		one++;
	value = getenv(family == AF_INET6 ? one->variable6 : one->variable);
	if (value && *value)
		return value;
	return family == AF_INET6 ? one->address6 : one->address;
}

union address make_addr(int family, const char *text, uint16_t port)
{
	union address address;

	memset(&address, 0, sizeof(address));
	address.sa.sa_family = (sa_family_t)family;
	if (family == AF_INET) {
		inet_pton(AF_INET, text, &address.in.sin_addr);
		address.in.sin_port = htons(port);
	} else {
		inet_pton(AF_INET6, text, &address.in6.sin6_addr);
		address.in6.sin6_port = htons(port);
	}
	return address;
}

union address local_addr(int family, uint16_t port)
{
	return make_addr(family, local_node(family), port);
}

union address any_addr(int family, uint16_t port)
{
	return make_addr(family, family == AF_INET ? "0.0.0.0" : "::", port);
}

union address silent_addr(uint16_t port)
{
	union address address = local_addr(AF_INET, port);
	uint32_t host = ntohl(address.in.sin_addr.s_addr);

	address.in.sin_addr.s_addr = htonl((host & 0xffffff00u) | 0xeeu);
	return address;
}

union address unrouted_addr(uint16_t port)
{
	return make_addr(AF_INET, "198.51.100.1", port);
}

/* ---- events --------------------------------------------------------------- */

bool channel_ready(const struct rdma_event_channel *channel)
{
	struct pollfd entry = { .fd = channel->fd, .events = POLLIN };

	return poll(&entry, 1, 0) == 1;
}

struct rdma_cm_event *get_event(const char *who, struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = NULL;

	errno = 0;
	if (rdma_get_cm_event(channel, &event)) {
		obs("%s: rdma_get_cm_event -> -1 %s", who, errno_name(errno));
		return NULL;
	}
	show_event(who, event);
	return event;
}

static struct rdma_cm_id *finish_event(struct rdma_cm_event *event,
				       enum rdma_cm_event_type type)
{
	struct rdma_cm_id *id = event->event == type ? event->id : NULL;

	if (!id)
		obs("expected %s", rdma_event_str(type));
	if (rdma_ack_cm_event(event))
		obs("rdma_ack_cm_event failed %s", errno_name(errno));
	return id;
}

struct rdma_cm_id *take_event(const char *who, struct rdma_event_channel *channel,
			      enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = get_event(who, channel);

	return event ? finish_event(event, type) : NULL;
}

struct rdma_cm_id *quiet_event(struct rdma_event_channel *channel,
			       enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = NULL;

	errno = 0;
	if (rdma_get_cm_event(channel, &event)) {
		obs("setup: rdma_get_cm_event -> -1 %s", errno_name(errno));
		return NULL;
	}
	if (event->event != type || event->status)
		show_event("setup", event);
	return finish_event(event, type);
}

/* ---- two sides in one process ----------------------------------------------- */

struct ibv_qp_init_attr qp_attr(enum rdma_port_space ps)
{
	bool ud = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB;

	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = 4, .max_recv_wr = 4,
			 .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = ud ? IBV_QPT_UD : IBV_QPT_RC,
		.sq_sig_all = 1,
	};
}

struct rdma_conn_param conn_param(const void *data, uint8_t len)
{
	return (struct rdma_conn_param){
		.private_data = data, .private_data_len = len,
		.responder_resources = 1, .initiator_depth = 1,
		.retry_count = 5, .rnr_retry_count = 3,
	};
}

uint32_t invented_qpn(void)
{
	static uint32_t turn;

	return 0x400000u + ((uint32_t)getpid() & 0xffffu) * 32u + turn++ % 32u;
}

bool pair_open(struct pair *pair, enum rdma_port_space ps, int family)
{
	union address address = local_addr(family, 0);

	memset(pair, 0, sizeof(*pair));
	pair->ps = ps;
	if (!SETUP((pair->server_channel = rdma_create_event_channel()) != NULL) ||
	    !SETUP((pair->client_channel = rdma_create_event_channel()) != NULL) ||
	    !SETUP(!rdma_create_id(pair->server_channel, &pair->listener, NULL, ps)) ||
	    !SETUP(!rdma_create_id(pair->client_channel, &pair->client, NULL, ps)))
		return false;
	id_name(pair->listener, "listener");
	id_name(pair->client, "client");
	if (!SETUP(!rdma_bind_addr(pair->listener, &address.sa)) ||
	    !SETUP(!rdma_listen(pair->listener, 8)))
		return false;
	pair->to = local_addr(family, ntohs(rdma_get_src_port(pair->listener)));
	return true;
}

bool pair_resolve(struct pair *pair, bool with_qp)
{
	struct ibv_qp_init_attr attr = qp_attr(pair->ps);

	return SETUP(!rdma_resolve_addr(pair->client, NULL, &pair->to.sa, 2000)) &&
	       quiet_event(pair->client_channel, RDMA_CM_EVENT_ADDR_RESOLVED) &&
	       SETUP(!rdma_resolve_route(pair->client, 2000)) &&
	       quiet_event(pair->client_channel, RDMA_CM_EVENT_ROUTE_RESOLVED) &&
	       (!with_qp || SETUP(!rdma_create_qp(pair->client, NULL, &attr)));
}

bool pair_request(struct pair *pair, struct rdma_conn_param *param, bool with_qp)
{
	struct ibv_qp_init_attr attr = qp_attr(pair->ps);

	if (!SETUP(!rdma_connect(pair->client, param)))
		return false;
	pair->server = quiet_event(pair->server_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	if (!pair->server)
		return false;
	id_name(pair->server, "server");
	return !with_qp || SETUP(!rdma_create_qp(pair->server, NULL, &attr));
}

bool pair_connect(struct pair *pair, enum rdma_port_space ps, int family)
{
	struct rdma_conn_param param = conn_param(NULL, 0);

	if (!pair_open(pair, ps, family) || !pair_resolve(pair, true) ||
	    !pair_request(pair, &param, true))
		return false;
	if (ps == RDMA_PS_UDP)
		param.qp_num = pair->server->qp->qp_num;
	if (!SETUP(!rdma_accept(pair->server, &param)) ||
	    !quiet_event(pair->client_channel, RDMA_CM_EVENT_ESTABLISHED))
		return false;
	return ps == RDMA_PS_UDP ||
	       quiet_event(pair->server_channel, RDMA_CM_EVENT_ESTABLISHED);
}

int id_destroy(struct rdma_cm_id *id)
{
	if (!id)
		return 0;
	if (id->qp)
		rdma_destroy_qp(id);
	id_forget(id);
	return rdma_destroy_id(id);
}

void pair_close(struct pair *pair)
{
	/* A siw client waits many seconds while its request is not answered. */
	id_destroy(pair->server);
	id_destroy(pair->client);
	id_destroy(pair->listener);
	if (pair->client_channel)
		rdma_destroy_event_channel(pair->client_channel);
	if (pair->server_channel)
		rdma_destroy_event_channel(pair->server_channel);
	memset(pair, 0, sizeof(*pair));
}

/* ---- children, descriptors, symbols -------------------------------------------- */

int in_child(const char *name, void (*body)(void *), void *argument)
{
	int status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		body(argument);
		fflush(stdout);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		obs("%s: no child", name);
	else if (WIFSIGNALED(status))
		obs("%s: ended by SIG%s", name, sigabbrev_np(WTERMSIG(status)));
	else
		obs("%s: exit %d", name, WEXITSTATUS(status));
	return status;
}

int open_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	if (!folder)
		return -1;
	while (readdir(folder))
		count++;
	closedir(folder);
	return count - 3; /* ".", ".." and the folder's own descriptor */
}

void pause_briefly(void)
{
	int error = errno;

	syscall(SYS_nanosleep, &(struct timespec){ .tv_nsec = 1000000 }, NULL);
	errno = error;
}

int open_stat(pid_t tid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	return open(path, O_RDONLY | O_CLOEXEC);
}

bool stat_sleeps(int stat)
{
	char text[256];
	ssize_t len = pread(stat, text, sizeof(text) - 1, 0);
	const char *state;

	text[len < 0 ? 0 : len] = 0;
	state = strrchr(text, ')');
	return state && state[2] == 'S';
}

bool sleeps(pid_t tid)
{
	int stat = open_stat(tid);
	bool asleep = stat >= 0 && stat_sleeps(stat);

	if (stat >= 0)
		close(stat);
	return asleep;
}

bool await_sleep(const volatile pid_t *tid)
{
	for (int asleep = 0; asleep < 5; pause_briefly()) {
		int stat = *tid ? open_stat(*tid) : -1;

		if (*tid && stat < 0 && (errno == ENOENT || errno == ESRCH))
			return false;
		asleep = stat >= 0 && stat_sleeps(stat) ? asleep + 1 : 0;
		if (stat >= 0)
			close(stat);
	}
	return true;
}

void *optional_symbol(const char *name)
{
	return dlsym(RTLD_DEFAULT, name);
}
