/*
 * The two kinds of sockets that rsbench measures, with a common table of functions: rsockets of the
 * loaded librdmacm.so.1, and the kernel's TCP and UDP.
 */
#ifndef BENCH_NET_H
#define BENCH_NET_H

#define _GNU_SOURCE
#include "need.h"
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

struct net {
	int (*socket)(int, int, int);
	int (*bind)(int, const struct sockaddr *, socklen_t);
	int (*listen)(int, int);
	int (*accept)(int, struct sockaddr *, socklen_t *);
	int (*connect)(int, const struct sockaddr *, socklen_t);
	int (*close)(int);
	int (*setsockopt)(int, int, int, const void *, socklen_t);
	int (*fcntl)(int, int, ...);
	ssize_t (*send)(int, const void *, size_t, int);
	ssize_t (*recv)(int, void *, size_t, int);
	ssize_t (*recvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *);
	ssize_t (*sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
	ssize_t (*writev)(int, const struct iovec *, int);
	int (*poll)(struct pollfd *, nfds_t, int);
	/* NULL if the library lacks them: 44.0 has no repoll_*. */
	int (*epoll_create)(int);
	int (*epoll_ctl)(int, int, int, struct epoll_event *);
	int (*epoll_wait)(int, struct epoll_event *, int, int);
	bool rdma;
};

/* How an end waits for data. */
enum wait { BLOCK, POLL, EPOLL };

/* One connection. */
struct conn {
	int fd, epfd;
	enum wait wait;
};

/* The table in use, chosen by net_init. */
extern struct net net;

void net_init(bool rdma);
struct sockaddr_in net_address(const char *text, int port);
/* A stream socket, with room for one mapped region if it is an rsocket. */
int net_stream(void);
struct conn net_conn(int fd, enum wait wait);
int net_connect(const struct sockaddr_in *to);
void put(const struct conn *c, const void *data, size_t length);
/* Like put(), from `count` buffers, at most 8. */
void put_pieces(const struct conn *c, const char *data, size_t length, size_t count);
void get(const struct conn *c, void *data, size_t length);

#endif
