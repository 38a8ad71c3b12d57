/* See fabric.h. */
#define _GNU_SOURCE
#include "fabric.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { PATIENCE = 3000 }; /* in pauses; a minute, which no test depends on */

static void pause_a_little(void)
{
	usleep(20000);
}

static bool read_text(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	text[got > 0 ? got : 0] = 0;
	return got > 0;
}

/* Runs a command of the shell, silently. */
static bool __attribute__((format(printf, 1, 2))) command(const char *format, ...)
{
	char text[1024];
	va_list arguments;
	int used;

	va_start(arguments, format);
	used = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	snprintf(text + used, sizeof(text) - (size_t)used, " >/dev/null 2>&1");
	return system(text) == 0;
}

/* ---- the module --------------------------------------------------------------------------------- */

bool fabric_set(const char *parameter, long value)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/module/vib/parameters/%s", parameter);
	file = fopen(path, "w");
	if (!file)
		return false;
	fprintf(file, "%ld\n", value);
	return fclose(file) == 0;
}

bool fabric_lose(int class, int count)
{
	return fabric_set("drop_left", count) && fabric_set("drop_class", class);
}

bool fabric_keep(void)
{
	return fabric_set("drop_class", -1);
}

/* ---- hosts -------------------------------------------------------------------------------------- */

const char *host_device(enum host host)
{
	return getenv(host == FAR ? "IB_PEER_DEV" : "IB_DEV");
}

union address host_addr(enum host host, int family, uint16_t pkey, uint16_t port)
{
	int net = pkey ? 16 + (pkey & 0xff) : 3;
	char text[64];

	snprintf(text, sizeof(text), family == AF_INET ? "10.77.%d.%d" : "fd00:77:%d::%d", net, host == FAR ? 2 : 1);
	return make_addr(family, text, port);
}

union address host_gid(enum host host, uint16_t pkey, uint64_t sid, uint64_t mask)
{
	union address address;

	memset(&address, 0, sizeof(address));
	address.ib.sib_family = AF_IB;
	address.ib.sib_pkey = htons(pkey);
	inet_pton(AF_INET6, getenv(host == FAR ? "IB_PEER_GID" : "IB_GID"), &address.ib.sib_addr);
	address.ib.sib_sid = htobe64(sid);
	address.ib.sib_sid_mask = htobe64(mask);
	return address;
}

unsigned int host_lid(enum host host)
{
	char path[128], text[64];

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/lid", host_device(host));
	return read_text(path, text, sizeof(text)) ? (unsigned int)strtoul(text, NULL, 0) : 0;
}

struct ibv_path_data path_record(unsigned int flags, const void *dgid, unsigned int slid, unsigned int dlid)
{
	union address from = host_gid(NEAR, 0, 0, 0);
	struct ibv_path_data data;

	memset(&data, 0, sizeof(data));
	data.flags = flags;
	memcpy(&data.path.sgid, &from.ib.sib_addr, 16);
	memcpy(&data.path.dgid, dgid, 16);
	data.path.slid = htons((uint16_t)slid);
	data.path.dlid = htons((uint16_t)dlid);
	data.path.reversible_numpath = IBV_PATH_RECORD_REVERSIBLE | 1;
	data.path.pkey = htons(0xffff);
	data.path.mtu = 0x80 | IBV_MTU_2048;
	data.path.rate = 0x80 | IBV_RATE_10_GBPS;
	data.path.packetlifetime = 0x80 | 11;
	return data;
}

bool enter_host(enum host host)
{
	static int spaces[2] = { -1, -1 };

	if (spaces[NEAR] < 0) {
		spaces[NEAR] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
		spaces[FAR] = open("/run/netns/far", O_RDONLY | O_CLOEXEC);
	}
	return !setns(spaces[host], CLONE_NEWNET);
}

/* ---- ports -------------------------------------------------------------------------------------- */

static long pulled;

bool cable(enum host host, bool plugged)
{
	long bit = host == FAR ? 4 : 2; /* the switch's port 2 or 1 */

	pulled = plugged ? pulled & ~bit : pulled | bit;
	return fabric_set("unplugged", pulled);
}

bool await_port(enum host host, const char *state)
{
	char path[128], text[64];

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/state", host_device(host));
	for (int i = 0; i < PATIENCE; i++) {
		if (read_text(path, text, sizeof(text)) && strstr(text, state))
			return true;
		pause_a_little();
	}
	return false;
}

static bool link_runs(enum host host, const char *link)
{
	for (int i = 0; i < PATIENCE; i++) {
		if (command("ip %s link show %s up | grep -q LOWER_UP", host == FAR ? "-n far" : "", link))
			return true;
		pause_a_little();
	}
	return false;
}

/* The far host refuses a connection of TCP, so packets arrive there and come back. */
static bool far_answers(void)
{
	union address to = host_addr(FAR, AF_INET, 0, 9);

	for (int i = 0; i < 10; i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		bool refused = connect(fd, &to.sa, sizeof(to.in)) && errno == ECONNREFUSED;

		close(fd);
		if (refused)
			return true;
	}
	return false;
}

bool forget_neighbours(void)
{
	return command("ip neigh flush dev ib0; ip -n far neigh flush dev ib1");
}

bool fabric_works(void)
{
	return await_port(NEAR, "ACTIVE") && await_port(FAR, "ACTIVE") && link_runs(NEAR, "ib0") &&
	       link_runs(FAR, "ib1") && forget_neighbours() &&
	       far_answers();
}

/* ---- the subnet manager --------------------------------------------------------------------------- */

/* How the lab started it: its words, separated by blanks. */
static char sm_command[1024];

/* The process of the subnet manager, 0 if there is none; the first time its words are kept. */
static pid_t sm_process(void)
{
	DIR *folder = opendir("/proc");
	struct dirent *entry;
	char path[300], text[1024];
	pid_t found = 0;

	while (!found && folder && (entry = readdir(folder))) {
		snprintf(path, sizeof(path), "/proc/%s/comm", entry->d_name);
		if (!atoi(entry->d_name) || !read_text(path, text, sizeof(text)) || strcmp(text, "opensm\n"))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/cmdline", entry->d_name);
		memset(text, 0, sizeof(text));
		if (!read_text(path, text, sizeof(text)))
			continue; /* it has ended, and nobody has waited for it */
		found = atoi(entry->d_name);
		for (size_t i = 0; !sm_command[0] && i + 1 < sizeof(text) && (text[i] || text[i + 1]); i++)
			text[i] = text[i] ? text[i] : ' ';
		if (!sm_command[0])
			strcpy(sm_command, text);
	}
	if (folder)
		closedir(folder);
	return found;
}

bool sm_stop(void)
{
	pid_t process = sm_process();

	if (!process || kill(process, SIGTERM))
		return false;
	for (int i = 0; i < PATIENCE && sm_process(); i++)
		pause_a_little();
	return !sm_process();
}

bool sm_start(const char *options)
{
	return command("%s %s", sm_command, options);
}

bool sm_renumber(bool other)
{
	return sm_stop() && command("[ -e /run/guid2lid ] || cp /var/cache/opensm/guid2lid /run/guid2lid") &&
	       command("printf '%%s\\n\\n' '0x02ab770000000101 0x0040 0x0041' '0x02ab770000000201 0x0050 0x0051'"
		       " '0x02ab77000000ff00 0x0004 0x0004' >/run/lids; [ -s /run/lids ]") &&
	       command("cp %s /var/cache/opensm/guid2lid", other ? "/run/lids" : "/run/guid2lid") &&
	       command("{ cat /run/lab/guest/opensm.conf && echo honor_guid2lid_file TRUE; } | tee /run/opensm-lids.conf") &&
	       sm_start("-F /run/opensm-lids.conf");
}

static bool await_master(enum host host)
{
	char path[128], text[64];

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/sm_lid", host_device(NEAR));
	for (int i = 0; i < PATIENCE; i++) {
		if (read_text(path, text, sizeof(text)) && strtoul(text, NULL, 0) == host_lid(host))
			return true;
		pause_a_little();
	}
	return false;
}

bool second_sm_start(void)
{
	return sm_process() && sm_start("-g 0x02ab770000000201 -p 5 -f /run/opensm2.log --pidfile /run/opensm2.pid") &&
	       await_master(FAR);
}

bool second_sm_stop(void)
{
	return command("kill $(cat /run/opensm2.pid)") && await_master(NEAR);
}

/* ---- partitions ----------------------------------------------------------------------------------- */

bool partition_link(enum host host, uint16_t pkey)
{
	const char *space = host == FAR ? "-n far" : "", *parent = host == FAR ? "ib1" : "ib0";
	int net = 16 + (pkey & 0xff), number = host == FAR ? 2 : 1;

	return command("ip %s link add link %s name ib.%04x type ipoib pkey 0x%04x", space, parent, pkey, pkey) &&
	       command("ip %s addr add 10.77.%d.%d/24 dev ib.%04x", space, net, number, pkey) &&
	       command("ip %s addr add fd00:77:%d::%d/64 dev ib.%04x nodad", space, net, number, pkey) &&
	       command("ip %s link set ib.%04x up", space, pkey);
}

bool partition_runs(enum host host, uint16_t pkey)
{
	char link[16];

	snprintf(link, sizeof(link), "ib.%04x", pkey);
	return link_runs(host, link);
}

bool partition_unlink(enum host host, uint16_t pkey)
{
	return command("ip %s link del ib.%04x", host == FAR ? "-n far" : "", pkey);
}

/* ---- connections ------------------------------------------------------------------------------------ */

static bool listen_at(struct pair *pair, const union address *address)
{
	if (!SETUP((pair->server_channel = rdma_create_event_channel()) != NULL) ||
	    !SETUP(!rdma_create_id(pair->server_channel, &pair->listener, NULL, pair->ps)))
		return false;
	id_name(pair->listener, "listener");
	return SETUP(!rdma_bind_addr(pair->listener, (struct sockaddr *)&address->sa)) && SETUP(!rdma_listen(pair->listener, 8));
}

bool pair_open_at(struct pair *pair, enum rdma_port_space ps, enum host host, const union address *listener)
{
	bool listens;

	memset(pair, 0, sizeof(*pair));
	pair->ps = ps;
	listens = SETUP(enter_host(host)) && listen_at(pair, listener);
	if (!SETUP(enter_host(NEAR)) || !listens)
		return false;
	pair->to = *listener;
	if (listener->sa.sa_family != AF_IB)
		pair->to.in.sin_port = rdma_get_src_port(pair->listener);
	if (!SETUP((pair->client_channel = rdma_create_event_channel()) != NULL) ||
	    !SETUP(!rdma_create_id(pair->client_channel, &pair->client, NULL, ps)))
		return false;
	id_name(pair->client, "client");
	return true;
}

void show_route(const char *who, const struct rdma_cm_id *id)
{
	unsigned int near = host_lid(NEAR), far = host_lid(FAR);

	obs("%s: paths %d pkey %04x", who, id->route.num_paths, ntohs(id->route.addr.addr.ibaddr.pkey));
	for (int i = 0; i < id->route.num_paths; i++) {
		const struct ibv_sa_path_rec *path = &id->route.path_rec[i];

		obs("%s: path %d pkey %04x slid near+%d far+%d dlid near+%d far+%d mtu %u rate %u sl %u life %u hops %u", who, i,
		    ntohs(path->pkey), (int)(ntohs(path->slid) - near), (int)(ntohs(path->slid) - far),
		    (int)(ntohs(path->dlid) - near), (int)(ntohs(path->dlid) - far), path->mtu, path->rate, path->sl,
		    path->packet_life_time, path->hop_limit);
	}
}
