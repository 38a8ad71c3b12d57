/* The server: one thread in repoll_wait() that echoes, closes who says nothing, and measures how long its turns take. */
#include "strangers.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { EVENTS = 64, ACCEPTS = 16, SWEEP_MS = 100, BACKLOG = 256, MAX_FDS = 65536 };

struct connection {
	bool open, writing;
	long heard;
	size_t from, to;
	uint8_t bytes[MESSAGE];
};

static struct connection *table[MAX_FDS];
static struct repoll repoll;
static int epoll, listener, datagrams = -1, silent;

static bool add(int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.fd = fd };

	return !repoll.control(epoll, EPOLL_CTL_ADD, fd, &event);
}

static void watch_for(int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.fd = fd };

	repoll.control(epoll, EPOLL_CTL_MOD, fd, &event);
}

static void end(int fd)
{
	repoll.control(epoll, EPOLL_CTL_DEL, fd, NULL);
	rclose(fd);
	table[fd]->open = false;
	figures->connections--;
	figures->closed++;
}

static void take_connections(void)
{
	for (int i = 0; i < ACCEPTS; i++) {
		int fd = raccept(listener, NULL, NULL);

		if (fd < 0)
			return;
		if (fd >= MAX_FDS || (!table[fd] && !(table[fd] = calloc(1, sizeof(*table[fd]))))) {
			rclose(fd);
			continue;
		}
		rfcntl(fd, F_SETFL, O_NONBLOCK);
		*table[fd] = (struct connection){ .open = true, .heard = now_us() };
		figures->accepted++;
		if (++figures->connections > figures->most_connections)
			figures->most_connections = figures->connections;
		if (!add(fd, EPOLLIN))
			end(fd);
	}
}

/* Sends what is left of the last message, then takes the next one: the connection is ended when it is over. */
static void echo(int fd)
{
	struct connection *connection = table[fd];
	ssize_t done;

	if (connection->from == connection->to) {
		done = rrecv(fd, connection->bytes, MESSAGE, 0);
		if (done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR))
			return end(fd);
		if (done < 0)
			return;
		connection->heard = now_us();
		connection->from = 0;
		connection->to = (size_t)done;
	}
	done = rsend(fd, connection->bytes + connection->from, connection->to - connection->from, 0);
	if (done < 0 && errno != EAGAIN && errno != EINTR)
		return end(fd);
	if (done > 0)
		connection->from += (size_t)done;
	if (connection->writing != (connection->from < connection->to)) {
		connection->writing = !connection->writing;
		watch_for(fd, connection->writing ? EPOLLOUT : EPOLLIN);
	}
}

static void echo_datagrams(void)
{
	uint8_t bytes[MESSAGE];
	union address from;

	for (int i = 0; i < ACCEPTS; i++) {
		socklen_t len = sizeof(from);
		ssize_t done = rrecvfrom(datagrams, bytes, sizeof(bytes), 0, &from.sa, &len);

		if (done < 0)
			return;
		rsendto(datagrams, bytes, (size_t)done, 0, &from.sa, len);
	}
}

/* Closes connections that say nothing, and looks at what the process holds. */
static void sweep(void)
{
	long now = now_us();
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		figures->no_descriptor++;
	} else {
		close(fd);
		figures->fds_now = (unsigned)open_fds();
		figures->pinned_kb = pinned_kb();
		raise_to(&figures->most_pinned_kb, figures->pinned_kb);
		if (figures->fds_now > figures->fds_most)
			figures->fds_most = figures->fds_now;
	}
	for (int i = 0; i < MAX_FDS; i++) {
		if (!table[i] || !table[i]->open || now - table[i]->heard <= IDLE_US)
			continue;
		/* It may have said something while the server was busy. */
		echo(i);
		if (table[i]->open && now - table[i]->heard > IDLE_US)
			end(i);
	}
}

static void set_limits(const struct limits *limits)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];
	struct rlimit limit;

	if (limits->descriptors) {
		limit.rlim_cur = limit.rlim_max = limits->descriptors;
		SETUP(!setrlimit(RLIMIT_NOFILE, &limit));
	}
	if (!limits->locked_kb)
		return;
	/* The limit is nothing to a process that may lock what it likes. */
	limit.rlim_cur = limit.rlim_max = limits->locked_kb * 1024;
	SETUP(!setrlimit(RLIMIT_MEMLOCK, &limit));
	SETUP(!syscall(SYS_capget, &header, data));
	data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
	SETUP(!syscall(SYS_capset, &header, data));
}

/* A listener on a port of the kernel's choice, which goes to `port`. */
static int listen_at(volatile uint16_t *port)
{
	union address to = local_addr(AF_INET, 0);
	socklen_t len = sizeof(to);
	int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	SETUP(fd >= 0 && !rbind(fd, &to.sa, sizeof(to.in)) && !rlisten(fd, BACKLOG));
	SETUP(!rgetsockname(fd, &to.sa, &len));
	*port = ntohs(to.in.sin_port);
	return fd;
}

static void open_datagrams(void)
{
	union address to = local_addr(AF_INET, 0);
	socklen_t len = sizeof(to);

	datagrams = rsocket(AF_INET, SOCK_DGRAM, 0);
	SETUP(datagrams >= 0 && !rbind(datagrams, &to.sa, sizeof(to.in)));
	SETUP(!rgetsockname(datagrams, &to.sa, &len));
	rfcntl(datagrams, F_SETFL, O_NONBLOCK);
	add(datagrams, EPOLLIN);
	figures->datagram_port = ntohs(to.in.sin_port);
}

static void dispatch(const struct epoll_event *events, int count)
{
	for (int i = 0; i < count; i++) {
		int fd = events[i].data.fd;

		if (fd == listener)
			take_connections();
		else if (fd == datagrams)
			echo_datagrams();
		else if (table[fd]->open)
			echo(fd);
	}
}

void serve(const struct limits *limits)
{
	struct epoll_event events[EVENTS];
	long swept = 0;

	set_limits(limits);
	if (!SETUP(find_repoll(&repoll)) || !SETUP((epoll = repoll.create(O_CLOEXEC)) >= 0))
		return;
	if (!on_siw())
		open_datagrams();
	/* Nobody takes what comes to this one. */
	silent = listen_at(&figures->silent_port);
	listener = listen_at(&figures->port);
	add(listener, EPOLLIN);
	while (!figures->stop_server) {
		long before = now_us(), awake;
		int count = repoll.wait(epoll, events, EVENTS, SWEEP_MS);

		awake = now_us();
		raise_to(&figures->longest_oversleep_us, awake - before - SWEEP_MS * 1000L);
		dispatch(events, count);
		if (now_us() - swept > SWEEP_MS * 1000L) {
			sweep();
			swept = now_us();
		}
		raise_to(&figures->longest_turn_us, now_us() - awake);
	}
	for (int i = 0; i < MAX_FDS; i++)
		if (table[i] && table[i]->open)
			end(i);
	rclose(silent);
	rclose(listener);
}
