/* Sockets for rsbench; see net.h. */
#include "net.h"
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <unistd.h>

struct net net;

static const struct net kernel = {
	.socket = socket, .bind = bind, .listen = listen, .accept = accept, .connect = connect,
	.close = close, .setsockopt = setsockopt, .fcntl = fcntl, .send = send, .recv = recv,
	.recvfrom = recvfrom, .sendto = sendto, .writev = writev, .poll = poll,
	.epoll_create = epoll_create1, .epoll_ctl = epoll_ctl, .epoll_wait = epoll_wait,
};

static const struct net rsockets = {
	.socket = rsocket, .bind = rbind, .listen = rlisten, .accept = raccept, .connect = rconnect,
	.close = rclose, .setsockopt = rsetsockopt, .fcntl = rfcntl, .send = rsend, .recv = rrecv,
	.recvfrom = rrecvfrom, .sendto = rsendto, .writev = rwritev, .poll = rpoll, .rdma = true,
};

/* Looks up a function. On POSIX systems function pointers fit into void pointers. */
static void find(const char *name, void *function)
{
	*(void **)function = dlsym(RTLD_DEFAULT, name);
}

void net_init(bool rdma)
{
	net = rdma ? rsockets : kernel;
	if (rdma) {
		find("repoll_create", &net.epoll_create);
		find("repoll_ctl", &net.epoll_ctl);
		find("repoll_wait", &net.epoll_wait);
	}
}

struct sockaddr_in net_address(const char *text, int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };

	NEED(inet_pton(AF_INET, text, &address.sin_addr) == 1);
	return address;
}

int net_stream(void)
{
	int fd = net.socket(AF_INET, SOCK_STREAM, 0), regions = 1, on = 1;

	NEED(fd >= 0);
	NEED(!net.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	if (net.rdma)
		NEED(!net.setsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &regions, sizeof(regions)));
	return fd;
}

int net_connect(const struct sockaddr_in *to)
{
	int fd, on = 1, tries = 0;

	/* Soft-iWARP sometimes fails a connect with EINVAL, with any library (docs/compatibility.md). */
	for (;; tries++) {
		fd = net_stream();
		if (!net.connect(fd, (const struct sockaddr *)to, sizeof(*to)))
			break;
		NEED(errno == EINVAL && tries < 3);
		net.close(fd);
	}
	NEED(!net.setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	return fd;
}

struct conn net_conn(int fd, enum wait wait)
{
	struct conn c = { .fd = fd, .epfd = -1, .wait = wait };
	struct epoll_event in = { .events = EPOLLIN };

	if (wait != BLOCK)
		NEED(!net.fcntl(fd, F_SETFL, O_NONBLOCK));
	if (wait == EPOLL) {
		c.epfd = net.epoll_create(0);
		NEED(c.epfd >= 0);
		NEED(!net.epoll_ctl(c.epfd, EPOLL_CTL_ADD, fd, &in));
	}
	return c;
}

/* Called after EAGAIN. In runs with epoll all sent data fits, so epoll waits for data only. */
static void await(const struct conn *c, short events)
{
	struct pollfd wanted = { .fd = c->fd, .events = events };
	struct epoll_event event;

	NEED(errno == EAGAIN || errno == EWOULDBLOCK);
	if (c->wait == EPOLL && events == POLLIN)
		NEED(net.epoll_wait(c->epfd, &event, 1, -1) == 1);
	else
		NEED(net.poll(&wanted, 1, -1) == 1);
}

void put(const struct conn *c, const void *data, size_t length)
{
	const char *next = data;

	while (length) {
		ssize_t n = net.send(c->fd, next, length, 0);

		if (n < 0) {
			await(c, POLLOUT);
			continue;
		}
		next += n;
		length -= n;
	}
}

void put_pieces(const struct conn *c, const char *data, size_t length, size_t count)
{
	struct iovec pieces[8];
	size_t i, start = 0;
	ssize_t n;

	NEED(count <= sizeof(pieces) / sizeof(*pieces));
	for (i = 0; i < count; i++) {
		size_t end = length * (i + 1) / count;

		pieces[i] = (struct iovec){ (char *)data + start, end - start };
		start = end;
	}
	while ((n = net.writev(c->fd, pieces, count)) < 0)
		await(c, POLLOUT);
	put(c, data + n, length - n);
}

void get(const struct conn *c, void *data, size_t length)
{
	char *next = data;

	while (length) {
		ssize_t n = net.recv(c->fd, next, length, 0);

		if (n < 0) {
			await(c, POLLIN);
			continue;
		}
		if (!n) {
			fprintf(stderr, "the peer has disconnected\n");
			exit(1);
		}
		next += n;
		length -= n;
	}
}
