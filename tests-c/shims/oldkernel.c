/*
 * LD_PRELOAD library that makes the running kernel look like an older one to users of the rdma_cm device.
 *
 * OLDKERNEL is a comma-separated list:
 *   noafib  commands that were added with AF_IB (Linux 3.12) fail with EINVAL
 *   nonl    RDMA netlink cannot be opened (before Linux 5.1 it could not name character devices)
 *   abi3    sysfs has version 3 of the command set (Linux 2.6.1x); implies nonl
 *   abi9    sysfs has version 9, which does not exist
 *   nouid   events carry no uid: ESTABLISHED must still be delivered (some distributions' kernels)
 *   noguid  all devices have the node GUID 0, as virtual functions in containers may have: the index tells them apart
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_user_cm.h>

/* rdma/rdma_cma.h defines some of the same names as the kernel's header. */
#define RDMA_CM_EVENT_CONNECT_REQUEST 4
#define RDMA_CM_EVENT_ESTABLISHED 9

#ifndef NETLINK_RDMA
#define NETLINK_RDMA 20
#endif

static int mode(const char *name)
{
	const char *modes = getenv("OLDKERNEL");
	size_t len = strlen(name);

	for (const char *at = modes; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
		if (!strncmp(at, name, len) && (at[len] == ',' || !at[len]))
			return 1;
	return 0;
}

/* Returns whether the file is the device: its name in /proc ends in rdma_cm. */
static int is_rdma_cm(int fd)
{
	char link[32], path[256];
	ssize_t len;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, sizeof(path) - 1);
	if (len < 7)
		return 0;
	path[len] = '\0';
	return !strcmp(path + len - 7, "rdma_cm");
}

static int newer(uint32_t cmd)
{
	return cmd == RDMA_USER_CM_CMD_QUERY || cmd == RDMA_USER_CM_CMD_BIND ||
	       cmd == RDMA_USER_CM_CMD_RESOLVE_ADDR || cmd == RDMA_USER_CM_CMD_JOIN_MCAST;
}

/* Ids that came with a connection request, by number. */
static unsigned char requested[1 << 16];

/* Numbers are used again. */
static void note_created(const void *message)
{
	struct rdma_ucm_create_id create;

	memcpy(&create, (const char *)message + sizeof(struct rdma_ucm_cmd_hdr), sizeof(create));
	requested[((struct rdma_ucm_create_id_resp *)(uintptr_t)create.response)->id % sizeof(requested)] = 0;
}

/* Clears the uid of ESTABLISHED events only, on the listener's side, as in old kernels. */
static void forget_uid(const void *message)
{
	struct rdma_ucm_event_resp *event;
	uint64_t response;

	memcpy(&response, (const char *)message + sizeof(struct rdma_ucm_cmd_hdr), sizeof(response));
	event = (void *)(uintptr_t)response;
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		requested[event->id % sizeof(requested)] = 1;
	if (event->event == RDMA_CM_EVENT_ESTABLISHED && requested[event->id % sizeof(requested)])
		event->uid = 0;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	static __be64 (*next)(struct ibv_device *);

	if (!next)
		next = (__be64 (*)(struct ibv_device *))dlsym(RTLD_NEXT, "ibv_get_device_guid");
	return mode("noguid") ? 0 : next(device);
}

/* The answers to both queries for the device begin with its node GUID. */
static void forget_guid(const void *message, uint32_t cmd)
{
	struct rdma_ucm_query query;

	memcpy(&query, (const char *)message + sizeof(struct rdma_ucm_cmd_hdr), sizeof(query));
	if (cmd == RDMA_USER_CM_CMD_QUERY_ROUTE || (cmd == RDMA_USER_CM_CMD_QUERY && query.option == RDMA_USER_CM_QUERY_ADDR))
		memset((void *)(uintptr_t)query.response, 0, sizeof(uint64_t));
}

static ssize_t next_write(int fd, const void *buf, size_t count)
{
	static ssize_t (*next)(int, const void *, size_t);

	if (!next)
		next = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
	return next(fd, buf, count);
}

static ssize_t write_by(ssize_t (*next)(int, const void *, size_t), int fd, const void *buf, size_t count)
{
	struct rdma_ucm_cmd_hdr header;
	ssize_t written;
	int ours = count >= sizeof(header) && is_rdma_cm(fd);

	if (ours)
		memcpy(&header, buf, sizeof(header));
	if (ours && mode("noafib") && newer(header.cmd)) {
		errno = EINVAL;
		return -1;
	}
	written = next(fd, buf, count);
	if (ours && written > 0 && header.cmd == RDMA_USER_CM_CMD_CREATE_ID)
		note_created(buf);
	if (ours && written > 0 && mode("nouid") && header.cmd == RDMA_USER_CM_CMD_GET_EVENT)
		forget_uid(buf);
	if (ours && written > 0 && mode("noguid"))
		forget_guid(buf, header.cmd);
	return written;
}

/* The reference's commands, and those of ours that wait. */
ssize_t write(int fd, const void *buf, size_t count)
{
	return write_by(next_write, fd, buf, count);
}

static long (*next_syscall(void))(long, ...)
{
	return (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
}

static ssize_t write_directly(int fd, const void *buf, size_t count)
{
	return next_syscall()(SYS_write, fd, buf, count);
}

/* All other commands of ours, which are no cancellation points. */
long syscall(long number, ...)
{
	long arguments[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		arguments[i] = va_arg(list, long);
	va_end(list);
	/* The library makes its own sockets past librspreload. */
	if (number == SYS_socket)
		return socket((int)arguments[0], (int)arguments[1], (int)arguments[2]);
	if (number == SYS_write)
		return write_by(write_directly, (int)arguments[0], (const void *)arguments[1], (size_t)arguments[2]);
	return next_syscall()(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

int socket(int domain, int type, int protocol)
{
	static int (*next)(int, int, int);

	if (!next)
		next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
	if (domain == AF_NETLINK && protocol == NETLINK_RDMA && (mode("nonl") || mode("abi3") || mode("abi9"))) {
		errno = EPROTONOSUPPORT;
		return -1;
	}
	return next(domain, type, protocol);
}

static int version_file(const char *text)
{
	int fd = memfd_create("abi_version", MFD_CLOEXEC);

	if (fd >= 0 && (pwrite(fd, text, strlen(text), 0) < 0))
		return -1;
	return fd;
}

static int redirect(const char *path)
{
	const char *name = strrchr(path, '/');

	if (!name || strcmp(name, "/abi_version") || !strstr(path, "rdma_cm"))
		return -1;
	return mode("abi3") ? version_file("3\n") : mode("abi9") ? version_file("9\n") : -1;
}

#define OPEN(name, params, args)                                                  \
	int name params                                                           \
	{                                                                         \
		static int (*next) params;                                        \
		mode_t bits = 0;                                                  \
		int fd = redirect(path);                                          \
		if (fd >= 0)                                                      \
			return fd;                                                \
		if (!next)                                                        \
			next = (int (*) params)dlsym(RTLD_NEXT, #name);           \
		if (flags & (O_CREAT | __O_TMPFILE)) {                            \
			va_list list;                                             \
			va_start(list, flags);                                    \
			bits = va_arg(list, mode_t);                              \
			va_end(list);                                             \
		}                                                                 \
		return next args;                                                 \
	}

OPEN(open, (const char *path, int flags, ...), (path, flags, bits))
OPEN(open64, (const char *path, int flags, ...), (path, flags, bits))
OPEN(openat, (int dir, const char *path, int flags, ...), (dir, path, flags, bits))
OPEN(openat64, (int dir, const char *path, int flags, ...), (dir, path, flags, bits))
