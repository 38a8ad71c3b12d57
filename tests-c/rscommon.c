/* See rscommon.h. */
#define _GNU_SOURCE
#include "rscommon.h"

#include <stdlib.h>
#include <sys/stat.h>

socklen_t addr_len(const union address *address)
{
	return address->sa.sa_family == AF_INET6 ? sizeof(address->in6) : sizeof(address->in);
}

int rs_listener(int family, union address *to, rs_prepare prepare)
{
	socklen_t len = sizeof(*to);

	for (;;) {
		int fd = rsocket(family, SOCK_STREAM, 0), failed;

		*to = local_addr(family, 0);
		if (!SETUP(fd >= 0))
			return -1;
		if (prepare)
			prepare(fd);
		failed = rbind(fd, &to->sa, addr_len(to)) || rlisten(fd, 16);
		/* TCP may have the port that the connection manager chose for soft-iWARP (docs/compatibility.md). */
		if (failed && errno == EADDRINUSE && on_siw()) {
			rclose(fd);
			continue;
		}
		if (SETUP(!failed) && SETUP(!rgetsockname(fd, &to->sa, &len)))
			return fd;
		rclose(fd);
		return -1;
	}
}

bool rs_pair_with(struct rspair *pair, int family, rs_prepare prepare)
{
	*pair = (struct rspair){ .client = -1, .server = -1 };
	pair->listener = rs_listener(family, &pair->to, prepare);
	if (pair->listener < 0)
		return false;
	pair->client = rsocket(family, SOCK_STREAM, 0);
	if (!SETUP(pair->client >= 0))
		return false;
	if (prepare)
		prepare(pair->client);
	return SETUP(!rconnect(pair->client, &pair->to.sa, addr_len(&pair->to))) &&
	       SETUP((pair->server = raccept(pair->listener, NULL, NULL)) >= 0);
}

bool rs_pair(struct rspair *pair, int family)
{
	return rs_pair_with(pair, family, NULL);
}

void rs_pair_close(struct rspair *pair)
{
	if (pair->client >= 0)
		rclose(pair->client);
	if (pair->server >= 0)
		rclose(pair->server);
	if (pair->listener >= 0)
		rclose(pair->listener);
	*pair = (struct rspair){ -1, -1, -1, { .sa = { .sa_family = 0 } } };
}

void rs_nonblock(int fd, bool on)
{
	SETUP(!rfcntl(fd, F_SETFL, on ? O_NONBLOCK : 0));
}

bool find_repoll(struct repoll *repoll)
{
	repoll->create = optional_symbol("repoll_create");
	repoll->control = optional_symbol("repoll_ctl");
	repoll->wait = optional_symbol("repoll_wait");
	return repoll->create && repoll->control && repoll->wait;
}

/* ---- poll bits ------------------------------------------------------------------ */

const char *poll_str(short events)
{
	static const struct { short bit; const char *name; } names[] = {
		{ POLLIN, "IN" }, { POLLPRI, "PRI" }, { POLLOUT, "OUT" }, { POLLRDHUP, "RDHUP" },
		{ POLLERR, "ERR" }, { POLLHUP, "HUP" }, { POLLNVAL, "NVAL" },
	};
	static __thread char texts[8][64];
	static __thread unsigned turn;
	char *text = texts[turn++ % 8];

	text[0] = 0;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (events & names[i].bit) {
			strcat(text, *text ? "|" : "");
			strcat(text, names[i].name);
		}
	return *text ? text : "0";
}

short poll_now(const char *who, int fd, short events)
{
	struct pollfd entry = { .fd = fd, .events = events };
	int ret = rpoll(&entry, 1, 0);

	obs("%s: poll for %s -> %d %s", who, poll_str(events), ret, poll_str(entry.revents));
	return entry.revents;
}

short poll_wait(int fd, short events)
{
	struct pollfd entry = { .fd = fd, .events = events };

	SETUP(rpoll(&entry, 1, -1) == 1);
	return entry.revents;
}

short poll_gone(int fd)
{
	return poll_wait(fd, 0);
}

long elapsed_ms(const struct timespec *since)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - since->tv_sec) * 1000 + (now.tv_nsec - since->tv_nsec) / 1000000;
}

const char *so_error(int fd)
{
	int value = -1;
	socklen_t len = sizeof(value);

	if (rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len))
		return "no SO_ERROR";
	return errno_name(value);
}

/* ---- data ------------------------------------------------------------------------- */

/* Neighbouring bytes differ, and so do the same bytes of any two 64 KB pieces. */
static unsigned char pattern(unsigned seed, size_t position)
{
	return (unsigned char)(seed * 31u + position + (position >> 8) * 7u + (position >> 16) * 13u);
}

void fill(void *data, size_t len, unsigned seed, size_t offset)
{
	for (size_t i = 0; i < len; i++)
		((unsigned char *)data)[i] = pattern(seed, offset + i);
}

bool filled(const void *data, size_t len, unsigned seed, size_t offset)
{
	for (size_t i = 0; i < len; i++)
		if (((const unsigned char *)data)[i] != pattern(seed, offset + i))
			return false;
	return true;
}

size_t send_all(int fd, const void *data, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t ret = rsend(fd, (const char *)data + done, len - done, 0);

		if (ret <= 0)
			break;
		done += (size_t)ret;
	}
	return done;
}

size_t send_until(int fd, const volatile bool *enough, unsigned seed)
{
	static char bytes[100000];
	size_t sent = 0;

	while (!*enough) {
		fill(bytes, sizeof(bytes), seed, sent);
		if (send_all(fd, bytes, sizeof(bytes)) != sizeof(bytes))
			break;
		sent += sizeof(bytes);
	}
	return sent;
}

size_t recv_all(int fd, void *data, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t ret = rrecv(fd, (char *)data + done, len - done, 0);

		if (ret <= 0)
			break;
		done += (size_t)ret;
	}
	return done;
}

long pinned_kb(void)
{
	FILE *file = fopen("/proc/self/status", "re");
	char line[128];
	long kb = -1;

	while (file && kb < 0 && fgets(line, sizeof(line), file))
		sscanf(line, "VmPin: %ld", &kb);
	if (file)
		fclose(file);
	return kb;
}

void rs_configure(const char *name, long number)
{
	char path[100];
	FILE *file;

	snprintf(path, sizeof(path), "/etc/rdma/rsocket/%s", name);
	if (number < 0) {
		unlink(path);
		return;
	}
	mkdir("/etc/rdma/rsocket", 0755);
	file = fopen(path, "we");
	if (!file || fprintf(file, "%ld\n", number) < 0 || fclose(file)) {
		perror(path);
		exit(1);
	}
}
