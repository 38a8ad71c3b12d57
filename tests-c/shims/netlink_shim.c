// Preloaded into a port mapper daemon: its RDMA netlink socket becomes a connection to a script that
// simulates the kernel (kernel_side.py). So the daemon can be sent any message, and several daemons can
// run on one machine, each with its own simulated kernel.
//
// IWPMD_KERNEL: the script's listening socket (AF_UNIX, SOCK_SEQPACKET). From the script, four bytes come
// before a message: the sender's port number, 0 for the kernel; NO_BUFFERS makes the call fail with ENOBUFS.
// IWPMD_NO_FAMILY: an address family that socket() does not support.
// IWPMD_OPTIONS: a file that gets a line "option value" for each numeric option of the netlink socket.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NO_BUFFERS UINT32_MAX

static int netlink_fd = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int connect_to_script(int type, const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = REAL(socket)(AF_UNIX, SOCK_SEQPACKET | (type & (SOCK_CLOEXEC | SOCK_NONBLOCK)), 0);

	strncpy(to.sun_path, path, sizeof(to.sun_path) - 1);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

int socket(int family, int type, int protocol)
{
	const char *script = getenv("IWPMD_KERNEL");
	const char *missing = getenv("IWPMD_NO_FAMILY");

	if (missing && atoi(missing) == family) {
		errno = EAFNOSUPPORT;
		return -1;
	}
	if (family != AF_NETLINK || protocol != NETLINK_RDMA || !script)
		return REAL(socket)(family, type, protocol);
	netlink_fd = connect_to_script(type, script);
	return netlink_fd;
}

static bool is_netlink(int fd)
{
	return fd >= 0 && fd == netlink_fd;
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
	return is_netlink(fd) ? 0 : REAL(bind)(fd, address, length);
}

static void note_option(int option, int value)
{
	const char *path = getenv("IWPMD_OPTIONS");
	int log = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;

	if (log < 0)
		return;
	dprintf(log, "%d %d\n", option, value);
	close(log);
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
	if (!is_netlink(fd))
		return REAL(setsockopt)(fd, level, option, value, length);
	if (level == SOL_SOCKET && length == sizeof(int))
		note_option(option, *(const int *)value);
	return 0;
}

static void tell_address(struct sockaddr *address, socklen_t *length, uint32_t port)
{
	struct sockaddr_nl from = { .nl_family = AF_NETLINK, .nl_pid = port };

	if (!address || !length)
		return;
	memcpy(address, &from, *length < sizeof(from) ? *length : sizeof(from));
	*length = sizeof(from);
}

int getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
	if (!is_netlink(fd))
		return REAL(getsockname)(fd, address, length);
	tell_address(address, length, (uint32_t)getpid());
	return 0;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	uint32_t port = 0;
	struct iovec parts[9];
	struct msghdr framed = { .msg_iov = parts };
	ssize_t got;

	if (!is_netlink(fd) || message->msg_iovlen > 8)
		return REAL(recvmsg)(fd, message, flags);
	parts[0] = (struct iovec){ &port, sizeof(port) };
	memcpy(parts + 1, message->msg_iov, message->msg_iovlen * sizeof(*parts));
	framed.msg_iovlen = message->msg_iovlen + 1;
	got = REAL(recvmsg)(fd, &framed, flags);
	message->msg_flags = framed.msg_flags;
	message->msg_controllen = 0;
	if (got < (ssize_t)sizeof(port))
		return got;
	if (port == NO_BUFFERS) {
		errno = ENOBUFS;
		return -1;
	}
	tell_address(message->msg_name, &message->msg_namelen, port);
	return got - (ssize_t)sizeof(port);
}

ssize_t recvfrom(int fd, void *buffer, size_t size, int flags, struct sockaddr *restrict from,
		 socklen_t *restrict length)
{
	struct iovec part = { buffer, size };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	ssize_t got;

	if (!is_netlink(fd))
		return REAL(recvfrom)(fd, buffer, size, flags, from, length);
	if (from && length) {
		message.msg_name = from;
		message.msg_namelen = *length;
	}
	got = recvmsg(fd, &message, flags);
	if (got >= 0 && length)
		*length = message.msg_namelen;
	return got;
}

ssize_t recv(int fd, void *buffer, size_t size, int flags)
{
	return is_netlink(fd) ? recvfrom(fd, buffer, size, flags, NULL, NULL) : REAL(recv)(fd, buffer, size, flags);
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length)
{
	if (is_netlink(fd))
		return send(fd, data, size, flags | MSG_NOSIGNAL);
	return REAL(sendto)(fd, data, size, flags, to, length);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	struct msghdr plain;

	if (!is_netlink(fd))
		return REAL(sendmsg)(fd, message, flags);
	plain = *message;
	plain.msg_name = NULL;
	plain.msg_namelen = 0;
	return REAL(sendmsg)(fd, &plain, flags | MSG_NOSIGNAL);
}
