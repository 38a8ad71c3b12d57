/*
 * The calls that librspreload-full.so intercepts beside those of librspreload.so: full ADDRESS PORT.
 * Both ends are in this process. The results are those of TCP sockets: it passes without the library, too.
 * One line for each case, "ok NAME" or "FAIL NAME: what"; status 1 when one failed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/tcp.h>

#define CHECK(what) do { if (!(what)) return #what; } while (0)

static int client, server, listener, instance;
static struct sockaddr_in address;
static volatile sig_atomic_t caught;

static void on_signal(int signal)
{
	caught = signal;
}

static const char *connect_both(void)
{
	client = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(client >= 0 && !connect(client, (struct sockaddr *)&address, sizeof(address)));
	server = accept(listener, NULL, NULL);
	CHECK(server >= 0);
	return NULL;
}

static void close_both(void)
{
	close(client);
	close(server);
}

static bool readable(int fd)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };

	return poll(&ready, 1, -1) == 1 && ready.revents & POLLIN;
}

static const char *status(void)
{
	struct stat status;
	struct statx more;

	CHECK(!fstat(client, &status) && S_ISSOCK(status.st_mode));
	CHECK(!statx(client, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &more) && S_ISSOCK(more.stx_mode));
	return NULL;
}

static const char *requests(void)
{
	struct ifreq interfaces[16];
	struct ifconf list = { .ifc_len = sizeof(interfaces), .ifc_req = interfaces };
	int number = -1, on = 1, off = 0;
	char buffer[16];

	CHECK(!ioctl(server, FIONREAD, &number) && number == 0);
	CHECK(send(client, "0123456789", 10, 0) == 10 && readable(server));
	CHECK(!ioctl(server, FIONREAD, &number) && number == 10);
	CHECK(recv(server, buffer, 4, 0) == 4 && !ioctl(server, FIONREAD, &number) && number == 6);
	CHECK(recv(server, buffer, sizeof(buffer), 0) == 6);
	do
		CHECK(!ioctl(client, TIOCOUTQ, &number) && number >= 0);
	while (number);
	CHECK(!ioctl(server, FIONBIO, &on) && fcntl(server, F_GETFL) & O_NONBLOCK);
	CHECK(recv(server, buffer, 1, 0) == -1 && errno == EAGAIN);
	CHECK(!ioctl(server, FIONBIO, &off) && !(fcntl(server, F_GETFL) & O_NONBLOCK));
	CHECK(!ioctl(server, SIOCATMARK, &number) && !number && !sockatmark(server));
	CHECK(!ioctl(server, SIOCGIFCONF, &list) && list.ifc_len > 0);
	for (size_t i = 0; i < 4; i++) {
		static const unsigned long with_pointer[] = { FIONREAD, TIOCOUTQ, FIONBIO, SIOCATMARK };

		CHECK(ioctl(server, with_pointer[i], (void *)8) == -1 && errno == EFAULT);
	}
	return NULL;
}

static int by_epoll_pwait(int fd, const struct timespec *timeout, const sigset_t *mask);

/* A call that waits with an empty mask: for nothing, for a signal with a handler, past an ignored one, for data. */
static const char *waits(int (*wait)(int fd, const struct timespec *timeout, const sigset_t *mask))
{
	const struct timespec now = { 0, 0 }, soon = { 0, 20000000 }, second = { 0, 1000000000 }, never = { 0, -1 };
	struct sigaction action = { .sa_handler = on_signal };
	sigset_t blocked, none, other;
	char byte;

	sigemptyset(&none);
	sigemptyset(&other);
	sigaddset(&other, SIGUSR2);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigaddset(&blocked, SIGURG);
	CHECK(!sigaction(SIGUSR1, &action, NULL) && !sigprocmask(SIG_BLOCK, &blocked, NULL));
	CHECK(!wait(server, &now, NULL) && !wait(server, &now, &none) && !wait(server, &soon, &none));
	caught = 0;
	raise(SIGUSR1);
	CHECK(!wait(server, &now, NULL) && !caught);
	CHECK(wait(server, NULL, &none) == -1 && errno == EINTR && caught == SIGUSR1);
	raise(SIGURG);
	/* epoll(7) does not go on after an ignored signal. */
	CHECK(!wait(server, &soon, &none) || (instance && errno == EINTR));
	CHECK(send(client, "x", 1, 0) == 1);
	CHECK(wait(server, NULL, &none) == 1 && wait(server, NULL, NULL) == 1);
	CHECK(recv(server, &byte, 1, 0) == 1 && byte == 'x');
	CHECK(!wait(server, &now, &other));
	CHECK(!sigprocmask(SIG_BLOCK, NULL, &none) && sigismember(&none, SIGUSR1) && !sigismember(&none, SIGUSR2));
	/* epoll_pwait(2) counts in milliseconds. */
	if (wait != by_epoll_pwait) {
		CHECK(wait(server, &second, NULL) == -1 && errno == EINVAL);
		CHECK(wait(server, &never, NULL) == -1 && errno == EINVAL);
	}
	CHECK(!sigprocmask(SIG_UNBLOCK, &blocked, NULL));
	return NULL;
}

static int by_ppoll(int fd, const struct timespec *timeout, const sigset_t *mask)
{
	struct pollfd list[2] = { { .fd = fd, .events = POLLIN }, { .fd = -1 } };
	int result = ppoll(list, 2, timeout, mask);

	return result > 0 && !(list[0].revents & POLLIN) ? -2 : result;
}

static int select_below(int count, int fd, const struct timespec *timeout, const sigset_t *mask)
{
	fd_set set;
	int result;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	result = pselect(count, &set, NULL, NULL, timeout, mask);
	return (result > 0) != FD_ISSET(fd, &set) && result >= 0 ? -2 : result;
}

static int by_pselect(int fd, const struct timespec *timeout, const sigset_t *mask)
{
	return select_below(fd + 1, fd, timeout, mask);
}

static int by_pselect_of_all(int fd, const struct timespec *timeout, const sigset_t *mask)
{
	return select_below(FD_SETSIZE, fd, timeout, mask);
}

static int by_epoll_pwait(int fd, const struct timespec *timeout, const sigset_t *mask)
{
	struct epoll_event events[4];
	int result = epoll_pwait(instance, events, 4, timeout ? (int)(timeout->tv_nsec / 1000000) : -1, mask);

	return result > 0 && events[0].data.fd != fd ? -2 : result;
}

static int by_epoll_pwait2(int fd, const struct timespec *timeout, const sigset_t *mask)
{
	struct epoll_event events[4];
	int result = epoll_pwait2(instance, events, 4, timeout, mask);

	return result > 0 && events[0].data.fd != fd ? -2 : result;
}

static const char *polls(void)
{
	return waits(by_ppoll);
}

static const char *selects(void)
{
	const char *failed = waits(by_pselect);

	return failed ? failed : waits(by_pselect_of_all);
}

static const char *epolls(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = server };
	const char *failed;

	instance = epoll_create1(0);
	CHECK(instance >= 0 && !epoll_ctl(instance, EPOLL_CTL_ADD, server, &event));
	failed = waits(by_epoll_pwait);
	if (!failed)
		failed = waits(by_epoll_pwait2);
	close(instance);
	instance = 0;
	return failed;
}

/* The waits need no descriptor, and close_range finds the numbers without one. */
static const char *no_free_number(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = server };
	struct rlimit limit, low;
	const char *failed;
	int fd, spare, first = -1, last = -1;

	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	instance = epoll_create1(0);
	CHECK(instance >= 0 && !epoll_ctl(instance, EPOLL_CTL_ADD, server, &event));
	low = limit;
	low.rlim_cur = 64;
	CHECK(!setrlimit(RLIMIT_NOFILE, &low));
	while ((fd = dup(STDERR_FILENO)) >= 0) {
		first = first < 0 ? fd : first;
		last = fd;
	}
	CHECK(errno == EMFILE && first >= 0);
	failed = waits(by_epoll_pwait);
	failed = failed ? failed : waits(by_epoll_pwait2);
	close(instance);
	instance = 0;
	CHECK((spare = dup(STDERR_FILENO)) >= 0);
	/* Nor do they above the soft limit. Root may raise the hard one again. */
	for (int times = 0; times < 2 && !failed; times++) {
		failed = waits(by_ppoll);
		failed = failed ? failed : waits(by_pselect);
		low.rlim_max = low.rlim_cur;
		CHECK(!setrlimit(RLIMIT_NOFILE, &low));
	}
	for (fd = first; !failed && fd <= last; fd++)
		if (fcntl(fd, F_GETFD) == -1)
			failed = "a number was closed";
	CHECK(!close_range((unsigned)first, (unsigned)last, 0));
	for (fd = first; !failed && fd <= last; fd++)
		if (fcntl(fd, F_GETFD) != -1)
			failed = "close_range has left a number";
	setrlimit(RLIMIT_NOFILE, &limit);
	close(spare);
	return failed;
}

static const char *messages(void)
{
	char parts[3][8] = { "one", "two", "three" }, buffers[4][4];
	struct iovec out[3], in[4];
	struct mmsghdr sent[3] = { 0 }, received[4] = { 0 };
	size_t total = 0;
	int count;

	for (int i = 0; i < 3; i++) {
		out[i] = (struct iovec){ parts[i], strlen(parts[i]) };
		sent[i].msg_hdr = (struct msghdr){ .msg_iov = &out[i], .msg_iovlen = 1 };
	}
	for (int i = 0; i < 4; i++) {
		in[i] = (struct iovec){ buffers[i], 4 };
		received[i].msg_hdr = (struct msghdr){ .msg_iov = &in[i], .msg_iovlen = 1 };
	}
	CHECK(sendmmsg(client, sent, 3, 0) == 3 && sent[2].msg_len == 5);
	while (total < 11) {
		count = recvmmsg(server, received, 4, MSG_WAITFORONE, NULL);
		CHECK(count > 0);
		for (int i = 0; i < count; i++)
			total += received[i].msg_len;
	}
	CHECK(total == 11 && recvmmsg(server, received, 4, MSG_DONTWAIT, NULL) == -1 && errno == EAGAIN);
	return NULL;
}

static const char *copies(void)
{
	int copy = 700;
	char byte;

	CHECK(dup3(client, copy, O_CLOEXEC) == copy && fcntl(copy, F_GETFD) & FD_CLOEXEC);
	CHECK(dup3(client, client, 0) == -1 && errno == EINVAL);
	close(client);
	CHECK(send(copy, "x", 1, 0) == 1 && recv(server, &byte, 1, 0) == 1);
	CHECK(!close_range(copy, copy, 0) && recv(server, &byte, 1, 0) == 0);
	CHECK(fcntl(copy, F_GETFD) == -1 && errno == EBADF);
	return NULL;
}

/* More descriptors than one call reads from /proc, whose folder gets the first number. */
static int closes_many(void)
{
	int fds[220];

	for (int i = 0; i < 220; i++)
		fds[i] = dup(STDERR_FILENO);
	close(fds[0]);
	closefrom(3);
	for (int i = 0; i < 220; i++)
		if (fds[i] < 0 || fcntl(fds[i], F_GETFD) != -1)
			return 1;
	return 0;
}

static const char *closes_from(void)
{
	int status;
	pid_t child;
	char byte;

	CHECK(dup2(client, 800) == 800 && dup2(client, 801) == 801);
	close(client);
	closefrom(800);
	CHECK(recv(server, &byte, 1, 0) == 0 && fcntl(801, F_GETFD) == -1);
	CHECK(send(server, "x", 1, MSG_NOSIGNAL) == 1 || errno == EPIPE || errno == ECONNRESET);
	/* A child, because the parent needs its listener. */
	child = fork();
	if (child == 0)
		_exit(closes_many());
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	return NULL;
}

static const char *closes_file(void)
{
	FILE *file = fdopen(client, "r");
	char byte;

	CHECK(file && !fclose(file));
	CHECK(recv(server, &byte, 1, 0) == 0 && fcntl(client, F_GETFD) == -1);
	return NULL;
}

static void closes_server(int signal)
{
	(void)signal;
	if (!caught)
		caught = close(server) == -1 && errno == EAGAIN ? 1 : -1;
}

/* A handler's close is refused if the handler has interrupted a call of the library: children have the connection. */
static const char *refused_close(void)
{
	const struct itimerval soon = { .it_value = { 0, 500 } };
	const char *mode = getenv("RS_MODE");
	socklen_t len = sizeof(int);
	char byte = 'x';
	int status;
	pid_t child;

	if (!mode)
		return NULL;
	signal(SIGALRM, closes_server);
	caught = 0;
	for (int tries = 0; tries < 100 && caught != 1; tries++) {
		if (caught) {
			close(client);
			CHECK(!connect_both());
		}
		caught = 0;
		setitimer(ITIMER_REAL, &soon, NULL);
		while (!caught)
			getsockopt(client, SOL_SOCKET, SO_ERROR, &status, &len);
	}
	CHECK(caught == 1 && (child = fork()) >= 0);
	if (!child)
		_exit(strcmp(mode, "rdma") && recv(server, &byte, 1, 0) != 1);
	CHECK(send(client, "x", 1, 0) == 1 && waitpid(child, &status, 0) == child && status == 0);
	return NULL;
}

/* A process that executes a program ends its connections by RDMA, although the program has the number. */
static const char *ends_by_exec(void)
{
	char byte;
	pid_t child;
	int end;

	if (!getenv("RS_MODE"))
		return NULL;
	CHECK((child = fork()) >= 0);
	if (!child) {
		client = socket(AF_INET, SOCK_STREAM, 0);
		if (!connect(client, (struct sockaddr *)&address, sizeof(address)) && send(client, "x", 1, 0) == 1 &&
		    recv(client, &byte, 1, 0) == 1)
			execl("/bin/sleep", "sleep", "1000", NULL);
		_exit(1);
	}
	close(server);
	CHECK((server = accept(listener, NULL, NULL)) >= 0);
	CHECK(recv(server, &byte, 1, 0) == 1 && send(server, "x", 1, 0) == 1);
	end = (int)recv(server, &byte, 1, 0);
	CHECK(end == 0 || errno == ECONNRESET);
	CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	return NULL;
}

/* Limits of the mode rdma: the number is no connection for the kernel, but a socket. */
static const char *only_in_mode_rdma(void)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = "";
	char number[16];
	struct iovec byte = { "x", 1 };
	struct msghdr message = { .msg_iov = &byte, .msg_iovlen = 1, .msg_control = control };
	struct cmsghdr *header = (struct cmsghdr *)control;
	const char *mode = getenv("RS_MODE");
	int ends[2], status;
	FILE *stream;
	pid_t child;

	if (!mode || strcmp(mode, "rdma"))
		return NULL;
	message.msg_controllen = sizeof(control);
	*header = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
	memcpy(CMSG_DATA(header), &server, sizeof(int));
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends) && sendmsg(ends[0], &message, 0) == -1 && errno == EOPNOTSUPP);
	close(ends[0]);
	close(ends[1]);
	snprintf(number, sizeof(number), "/dev/fd/%d", server);
	CHECK((child = fork()) >= 0);
	if (!child)
		execl("/usr/bin/test", "test", "-S", number, NULL);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK((stream = fdopen(server, "r")) && fileno(stream) == -1 && !fclose(stream));
	return NULL;
}

/* As libuv closes descriptors. */
static const char *closes_directly(void)
{
	char byte;
	int on = 1, value = 0, copy;
	socklen_t len = sizeof value, other = sizeof(struct sockaddr_storage);
	struct sockaddr_storage name, same;

	CHECK(!syscall(SYS_setsockopt, client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
	CHECK(!getsockopt(client, IPPROTO_TCP, TCP_NODELAY, &value, &len) && value != 0);
	value = 0;
	CHECK(!syscall(SYS_getsockopt, client, IPPROTO_TCP, TCP_NODELAY, &value, &len) && value != 0);
	len = sizeof name;
	CHECK(!syscall(SYS_getpeername, client, &name, &len) && !getpeername(client, (struct sockaddr *)&same, &other));
	CHECK(len == other && !memcmp(&name, &same, len));
	CHECK((copy = (int)syscall(SYS_dup, client)) >= 0 && syscall(SYS_sendto, copy, "y", 1, 0, NULL, 0) == 1);
	CHECK(syscall(SYS_recvfrom, server, &byte, 1, 0, NULL, NULL) == 1 && byte == 'y' && !close(copy));
	CHECK(syscall(SYS_write, client, "x", 1) == 1 && syscall(SYS_read, server, &byte, 1) == 1);
	CHECK(!syscall(SYS_close, client) && fcntl(client, F_GETFD) == -1);
	CHECK(recv(server, &byte, 1, 0) == 0);
	return NULL;
}

static const char *streams(void)
{
	FILE *from = fdopen(server, "r"), *to = fdopen(client, "w");
	char line[32] = "";

	CHECK(from && to && fprintf(to, "by %s\n", "stdio") == 9 && !fflush(to));
	CHECK(fgets(line, sizeof(line), from) && !strcmp(line, "by stdio\n"));
	CHECK(!fclose(to) && fgetc(from) == EOF && feof(from) && !ferror(from) && !fclose(from));
	return NULL;
}

static const char *splices(void)
{
	char buffer[16] = "";
	int ends[2];

	CHECK(!pipe(ends) && write(ends[1], "spliced", 7) == 7);
	CHECK(splice(ends[0], NULL, client, NULL, 100, 0) == 7 && readable(server));
	CHECK(splice(server, NULL, ends[1], NULL, 100, 0) == 7);
	CHECK(read(ends[0], buffer, sizeof(buffer)) == 7 && !memcmp(buffer, "spliced", 7));
	CHECK(splice(server, NULL, client, NULL, 100, 0) == -1 && errno == EINVAL);
	CHECK(!fcntl(server, F_SETFL, O_NONBLOCK) && splice(server, NULL, ends[1], NULL, 100, 0) == -1 && errno == EAGAIN);
	CHECK(splice(ends[0], NULL, client, NULL, 100, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN);
	close(ends[0]);
	close(ends[1]);
	return NULL;
}

/* A child does nothing else with its parent's connection. Not in mode rdma, where it cannot use that. */
static const char *splices_in_child(void)
{
	const char *mode = getenv("RS_MODE");
	struct pollfd ready = { .events = POLLIN };
	char buffer[16] = "";
	int ends[2], status;
	pid_t child;

	if (mode && !strcmp(mode, "rdma"))
		return NULL;
	CHECK(!pipe(ends) && (child = fork()) >= 0);
	if (!child)
		_exit(splice(server, NULL, ends[1], NULL, 100, 0) != 7);
	ready.fd = ends[0];
	CHECK(send(client, "spliced", 7, 0) == 7);
	if (poll(&ready, 1, 10000) != 1)
		kill(child, SIGKILL);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(read(ends[0], buffer, sizeof(buffer)) == 7 && !memcmp(buffer, "spliced", 7));
	close(ends[0]);
	close(ends[1]);
	return NULL;
}

/* With _FORTIFY_SOURCE the compiler calls other names where it does not know the length. */
static const char *checked(void)
{
	struct pollfd list[2] = { { .fd = server, .events = POLLIN }, { .fd = -1 } };
	const struct timespec now = { 0, 0 };
	volatile size_t len = 4;
	char buffer[8];

	CHECK(send(client, "abcdefghijkl", 12, 0) == 12 && readable(server));
	CHECK(poll(list, len / 2, -1) == 1 && ppoll(list, len / 2, &now, NULL) == 1);
	CHECK(read(server, buffer, len) == 4 && !memcmp(buffer, "abcd", 4));
	CHECK(recv(server, buffer, len, 0) == 4 && !memcmp(buffer, "efgh", 4));
	CHECK(recvfrom(server, buffer, len, 0, NULL, NULL) == 4 && !memcmp(buffer, "ijkl", 4));
	return NULL;
}

/* Sockets have no offset. */
static const char *offsets(void)
{
	char buffer[8] = "offsets";
	const struct iovec list = { buffer, 7 };
	volatile size_t len = 4;
	volatile int negative = -1;

	CHECK(pread(server, buffer, 7, 0) == -1 && errno == ESPIPE);
	CHECK(pread(server, buffer, len, 0) == -1 && errno == ESPIPE);
	CHECK(pread64(server, buffer, 0, 7) == -1 && errno == ESPIPE);
	CHECK(pread64(server, buffer, len, -1) == -1 && errno == EINVAL);
	CHECK(pwrite(client, buffer, 7, 0) == -1 && errno == ESPIPE);
	CHECK(pwrite64(client, buffer, 7, -5) == -1 && errno == EINVAL);
	CHECK(preadv(server, &list, 1, 0) == -1 && errno == ESPIPE);
	CHECK(preadv64(server, &list, negative, 0) == -1 && errno == ESPIPE);
	CHECK(preadv(server, &list, 1, -1) == -1 && errno == EINVAL);
	CHECK(pwritev(client, &list, 1, 0) == -1 && errno == ESPIPE);
	CHECK(pwritev64(client, &list, 1, -1) == -1 && errno == EINVAL);
	CHECK(preadv2(server, &list, 1, 0, 0) == -1 && errno == ESPIPE);
	CHECK(preadv64v2(server, &list, 1, -2, 0) == -1 && errno == EINVAL);
	CHECK(pwritev2(client, &list, 1, 7, 0x40000) == -1 && errno == ESPIPE);
	CHECK(recv(server, buffer, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	return NULL;
}

/* preadv2 and pwritev2 at the current position. The sockets of kernels before 6.4 refuse RWF_NOWAIT. */
static const char *vectors(void)
{
	char in[8] = "", out[] = "vectors";
	struct iovec to[2] = { { in, 3 }, { in + 3, 4 } }, from[2] = { { out, 1 }, { out + 1, 6 } }, nothing = { in, 0 };
	volatile int negative = -1, many = 2000;
	ssize_t received;

	CHECK(preadv2(server, to, 2, -1, RWF_NOWAIT) == -1 && (errno == EAGAIN || errno == EOPNOTSUPP));
	CHECK(preadv2(server, to, 2, -1, 0x40000) == -1 && errno == EOPNOTSUPP);
	CHECK(preadv2(server, &nothing, 1, -1, 0x40000) == 0 && preadv2(server, to, 0, -1, RWF_NOWAIT) == 0);
	CHECK(preadv2(server, to, negative, -1, RWF_HIPRI) == -1 && errno == EINVAL);
	CHECK(preadv2(server, to, many, -1, RWF_HIPRI) == -1 && errno == EINVAL);
	CHECK(pwritev2(client, from, 2, -1, 0) == 7 && readable(server));
	CHECK(preadv2(server, to, 2, -1, 0) == 7 && !memcmp(in, "vectors", 7));
	CHECK(pwritev64v2(client, from, 2, -1, RWF_SYNC | RWF_HIPRI) == 7 && readable(server));
	memset(in, 0, sizeof(in));
	CHECK(preadv64v2(server, to, 2, -1, RWF_DSYNC) == 7 && !memcmp(in, "vectors", 7));
	CHECK(pwritev2(client, from, 2, -1, RWF_NOWAIT) == 7 || errno == EOPNOTSUPP);
	received = preadv2(server, to, 2, -1, RWF_NOWAIT);
	CHECK(received == 7 || (received == -1 && (errno == EAGAIN || errno == EOPNOTSUPP)));
	CHECK(!shutdown(client, SHUT_WR));
	while ((received = preadv2(server, to, 2, -1, 0)) > 0)
		;
	CHECK(received == 0);
	signal(SIGPIPE, SIG_IGN);
	CHECK(pwritev2(client, from, 2, -1, 0) == -1 && errno == EPIPE);
	signal(SIGPIPE, SIG_DFL);
	return NULL;
}

/* The names of programs that are compiled without _FORTIFY_SOURCE. */
static int (*volatile plain_dprintf)(int fd, const char *format, ...) = dprintf;
static int (*volatile plain_vdprintf)(int fd, const char *format, va_list list) = vdprintf;

/* NAME formats by FUNCTION, which takes a list. */
#define FORMATS_BY(name, function)                        \
	static int name(int fd, const char *format, ...)   \
	{                                                  \
		va_list list;                              \
		int result;                                \
                                                           \
		va_start(list, format);                    \
		result = function(fd, format, list);       \
		va_end(list);                              \
		return result;                             \
	}

FORMATS_BY(by_plain_vdprintf, plain_vdprintf)
FORMATS_BY(by_vdprintf, vdprintf)

/* Numbers of all kinds, more of them than there are registers; a text that fills the socket's buffers. */
static const char *formatted(void)
{
	static const char expected[] = "1 2 3 4 5 6 7 8 9 0.5 1.5 2.5 3.5 4.5 5.5 6.5 7.5 8.5 9.5 end";
	static int (*const functions[])(int fd, const char *format, ...) = { by_vdprintf, by_plain_vdprintf };
	const int len = (int)sizeof(expected) - 1, large = 16 << 20;
	char buffer[256] = "";
	char *text;

#define NUMBERS "%d %d %ld %d %d %d %d %d %d %g %g %g %g %g %g %g %g %g %g %s", \
	1, 2, 3L, 4, 5, 6, 7, 8, 9, .5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, "end"
	CHECK(dprintf(client, NUMBERS) == len && plain_dprintf(client, NUMBERS) == len);
	for (int i = 0; i < 2; i++)
		CHECK(functions[i](client, NUMBERS) == len);
	for (int i = 0; i < 4; i++) {
		CHECK(recv(server, buffer, len, MSG_WAITALL) == len && !strcmp(buffer, expected));
		memset(buffer, 0, sizeof(buffer));
	}
	CHECK(dprintf(client, "%s", "") == 0);
	text = malloc(large);
	CHECK(text);
	memset(text, 'x', large - 1);
	text[large - 1] = '\0';
	CHECK(!fcntl(client, F_SETFL, O_NONBLOCK) && dprintf(client, "%s", text) == -1 && errno == EAGAIN);
	free(text);
	CHECK(!shutdown(client, SHUT_WR));
	signal(SIGPIPE, SIG_IGN);
	CHECK(dprintf(client, "x") == -1 && errno == EPIPE);
	signal(SIGPIPE, SIG_DFL);
	return NULL;
}

static const struct {
	const char *name;
	const char *(*run)(void);
} cases[] = {
	{ "status", status }, { "requests", requests }, { "ppoll", polls }, { "pselect", selects },
	{ "epoll_pwait", epolls }, { "no_free_number", no_free_number },
	{ "messages", messages }, { "splice", splices }, { "splice_in_child", splices_in_child },
	{ "checked", checked },
	{ "dup3_close_range", copies }, { "closefrom", closes_from }, { "fclose", closes_file },
	{ "fdopen", streams }, { "pread", offsets }, { "preadv2", vectors }, { "dprintf", formatted },
	{ "syscall", closes_directly }, { "refused_close", refused_close },
	{ "exec", ends_by_exec }, { "mode_rdma", only_in_mode_rdma },
};

int main(int argc, char **argv)
{
	int failed = 0, on = 1;

	if (argc != 3)
		return 2;
	address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((in_port_t)atoi(argv[2])) };
	inet_pton(AF_INET, argv[1], &address.sin_addr);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 8)) {
		perror("listen");
		return 2;
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *what = connect_both();

		if (!what)
			what = cases[i].run();
		if (what)
			printf("FAIL %s: %s (%s)\n", cases[i].name, what, strerror(errno));
		else
			printf("ok %s\n", cases[i].name);
		failed |= what != NULL;
		fflush(stdout);
		close_both();
	}
	puts("complete");
	return failed;
}
