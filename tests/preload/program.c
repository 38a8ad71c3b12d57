/*
 * An ordinary program of sockets, which knows nothing of rsockets: it must behave alike without librspreload and with
 * it. Usage: program [ADDRESS|kind]
 *
 * "kind" says what a socket's number is: "socket", or "rsocket" if there is a placeholder. Else one line for each case, "ok" or "FAIL" with the line that failed; status 1 if one did.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			printf("FAIL %s: line %d: %s (errno %d)\n", __func__, __LINE__, #condition, errno);            \
			return 1;                                                                                      \
		}                                                                                                      \
	} while (0)

static struct sockaddr_in address = { .sin_family = AF_INET };

static int open_numbers(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	while (dir && readdir(dir))
		count++;
	if (dir)
		closedir(dir);
	return count;
}

static int listener(int flags)
{
	struct sockaddr_in any = address;
	socklen_t len = sizeof(any);
	int fd = socket(AF_INET, SOCK_STREAM | flags, 0);

	any.sin_port = 0;
	if (fd < 0 || bind(fd, (struct sockaddr *)&any, sizeof(any)) || listen(fd, 8) ||
	    getsockname(fd, (struct sockaddr *)&any, &len))
		return -1;
	address.sin_port = any.sin_port;
	return fd;
}

static void *connects(void *fd)
{
	connect(*(int *)fd, (struct sockaddr *)&address, sizeof(address));
	return NULL;
}

/* Two ends of a connection. */
static int pair(int fds[2])
{
	pthread_t thread;
	int to = listener(0);

	fds[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (to < 0 || fds[0] < 0 || pthread_create(&thread, NULL, connects, fds))
		return -1;
	fds[1] = accept(to, NULL, NULL);
	pthread_join(thread, NULL);
	return fds[1] < 0 ? -1 : close(to);
}

/* What goes in at one end comes out at the other. */
static int works(int from, int to)
{
	char text[8] = "";

	return write(from, "hello", 5) == 5 && recv(to, text, 5, MSG_WAITALL) == 5 && !memcmp(text, "hello", 5);
}

static int lowest_number(void)
{
	int zero = dup(0), fd;

	close(0);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd == 0);
	CHECK(dup2(zero, 0) == 0 && close(zero) == 0);
	return 0;
}

static int flags(void)
{
	int to = listener(SOCK_NONBLOCK | SOCK_CLOEXEC), fd, other, on = 1;
	pthread_t thread;
	struct pollfd wait = { .fd = to, .events = POLLIN };

	CHECK(fcntl(to, F_GETFD) == FD_CLOEXEC && fcntl(to, F_GETFL) & O_NONBLOCK);
	CHECK(accept(to, NULL, NULL) == -1 && errno == EAGAIN);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fcntl(fd, F_GETFD) == 0 && fcntl(fd, F_GETFL) == O_RDWR);
	CHECK(!pthread_create(&thread, NULL, connects, &fd) && poll(&wait, 1, -1) == 1);
	other = accept4(to, NULL, NULL, SOCK_CLOEXEC);
	CHECK(other >= 0 && !pthread_join(thread, NULL));
	CHECK(fcntl(other, F_GETFD) == FD_CLOEXEC && !(fcntl(other, F_GETFL) & O_NONBLOCK));
	CHECK(fcntl(other, F_SETFL, O_NONBLOCK) == 0 && fcntl(other, F_GETFL) & O_NONBLOCK);
	CHECK(recv(other, &on, 1, 0) == -1 && errno == EAGAIN);
	CHECK(fcntl(other, F_SETFL, 0) == 0 && fcntl(other, F_SETFD, 0) == 0 && fcntl(other, F_GETFD) == 0);
	CHECK(works(fd, other));
	CHECK(accept4(to, NULL, NULL, 1) == -1 && errno == EINVAL);
	CHECK(fcntl(to, F_SETFL, 0) == 0 && ioctl(to, FIONBIO, &on) == 0);
	CHECK(accept(to, NULL, NULL) == -1 && errno == EAGAIN);
	CHECK(close(fd) == 0 && close(other) == 0 && close(to) == 0);
	CHECK(close(to) == -1 && errno == EBADF);
	return 0;
}

static int copies(void)
{
	int fds[2], others[2], copy, file = open("/dev/zero", O_RDONLY);
	char byte;

	CHECK(!pair(fds) && !pair(others));
	copy = dup(fds[0]);
	CHECK(copy > 0 && close(fds[0]) == 0 && works(copy, fds[1]) && works(fds[1], copy));
	CHECK(read(fds[0], &byte, 1) == -1 && errno == EBADF);
	CHECK(dup2(copy, 100) == 100 && works(100, fds[1]) && dup2(copy, 100) == 100 && works(100, fds[1]));
	CHECK(fcntl(copy, F_DUPFD, 200) == 200 && fcntl(200, F_GETFD) == 0);
	CHECK(fcntl(copy, F_DUPFD_CLOEXEC, 200) == 201 && fcntl(201, F_GETFD) == FD_CLOEXEC && works(201, fds[1]));
	CHECK(dup2(200, 200) == 200 && works(fds[1], 200));
	CHECK(close(copy) == 0 && close(200) == 0 && close(201) == 0 && works(100, fds[1]));
	/* The last number for it goes: the other end reads that. */
	CHECK(dup2(others[0], 100) == 100 && read(fds[1], &byte, 1) == 0 && works(100, others[1]));
	/* A file takes a socket's number, a socket a file's. */
	CHECK(dup2(file, 100) == 100 && read(100, &byte, 1) == 1 && works(others[0], others[1]));
	CHECK(dup2(others[0], file) == file && works(file, others[1]) && works(others[1], file));
	CHECK(dup2(-1, file) == -1 && errno == EBADF && dup2(file, -1) == -1 && errno == EBADF);
	CHECK(works(file, others[1]));
	CHECK(close(100) == 0 && close(file) == 0 && close(fds[1]) == 0 && close(others[0]) == 0 && close(others[1]) == 0);
	return 0;
}

/* What a child of vfork() closes and duplicates is its own affair. */
static int guests(void)
{
	int fds[2], status;
	pid_t child;

	CHECK(!pair(fds));
	child = vfork();
	if (child == 0) {
		if (dup2(fds[0], 300) != 300 || dup2(1, fds[1]) != fds[1] || close(fds[0]) || close(fds[1]) || close(300))
			_exit(1);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(works(fds[0], fds[1]) && works(fds[1], fds[0]) && close(300) == -1 && errno == EBADF);
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
	return 0;
}

/* As daemons do. */
static int blind_close(void)
{
	int fds[2], fd;

	CHECK(!pair(fds));
	for (fd = 3; fd < 4096; fd++) {
		if (fd != fds[0] && fd != fds[1])
			close(fd);
	}
	CHECK(works(fds[0], fds[1]) && works(fds[1], fds[0]));
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
	return 0;
}

static int polls(void)
{
	int fds[2], tube[2];
	struct pollfd list[5];

	CHECK(!pair(fds) && !pipe(tube));
	list[0] = (struct pollfd){ .fd = fds[0], .events = POLLIN };
	list[1] = (struct pollfd){ .fd = -1, .events = POLLIN, .revents = 99 };
	list[2] = (struct pollfd){ .fd = tube[0], .events = POLLIN };
	list[3] = (struct pollfd){ .fd = fds[1], .events = POLLIN | POLLOUT };
	list[4] = (struct pollfd){ .fd = 999, .events = POLLIN };
	CHECK(poll(list, 4, 0) == 1 && list[1].revents == 0 && list[3].revents == POLLOUT);
	CHECK(poll(list, 5, -1) == 2 && list[4].revents == POLLNVAL);
	CHECK(poll(list, 3, 20) == 0);
	CHECK(write(tube[1], "x", 1) == 1 && poll(list, 3, -1) == 1 && list[2].revents == POLLIN);
	CHECK(write(fds[1], "x", 1) == 1);
	CHECK(poll(list, 1, -1) == 1 && list[0].revents == POLLIN && list[0].fd == fds[0]);
	CHECK(poll(list, 3, -1) == 2);
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0 && close(tube[0]) == 0 && close(tube[1]) == 0);
	return 0;
}

static int selects(void)
{
	int fds[2], tube[2], copy, gone;
	fd_set in, out, none;
	struct timeval time = { 0, 20000 };

	CHECK(!pair(fds) && !pipe(tube));
	copy = dup(fds[0]);
	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_ZERO(&none);
	FD_SET(fds[0], &in);
	FD_SET(tube[0], &in);
	FD_SET(fds[0], &none);
	CHECK(select(FD_SETSIZE, &in, NULL, &none, &time) == 0 && time.tv_sec == 0 && time.tv_usec == 0);
	CHECK(!FD_ISSET(fds[0], &in) && !FD_ISSET(tube[0], &in) && !FD_ISSET(fds[0], &none));
	CHECK(write(fds[1], "x", 1) == 1 && write(tube[1], "x", 1) == 1);
	/* Not beyond the count; both numbers of a socket; reading and writing. */
	FD_SET(fds[0], &in);
	FD_SET(copy, &in);
	FD_SET(fds[1], &in);
	FD_SET(copy, &out);
	FD_SET(copy + 1000, &out);
	CHECK(select(copy + 1, &in, &out, NULL, NULL) == 3);
	CHECK(FD_ISSET(fds[0], &in) && FD_ISSET(copy, &in) && !FD_ISSET(fds[1], &in) && FD_ISSET(copy, &out));
	FD_ZERO(&in);
	FD_SET(tube[0], &in);
	FD_SET(fds[1], &in);
	time = (struct timeval){ 100, 0 };
	CHECK(select(copy + 1, &in, NULL, NULL, &time) == 1 && FD_ISSET(tube[0], &in));
	CHECK(!FD_ISSET(fds[1], &in) && time.tv_sec >= 10);
	/* A number that was closed. The kernel ignores much higher ones. */
	CHECK((gone = dup(fds[0])) > 0 && close(gone) == 0);
	FD_SET(fds[1], &in);
	FD_SET(gone, &in);
	CHECK(select(gone + 1, &in, NULL, NULL, &time) == -1 && errno == EBADF && FD_ISSET(gone, &in));
	CHECK(select(-1, &in, NULL, NULL, &time) == -1 && errno == EINVAL);
	CHECK(close(fds[0]) == 0 && close(copy) == 0 && close(fds[1]) == 0 && close(tube[0]) == 0 && close(tube[1]) == 0);
	return 0;
}

static int sends_files(void)
{
	enum { SIZE = 200001 };
	static char data[SIZE], got[SIZE];
	char name[] = "/tmp/preload.XXXXXX";
	int fds[2], tube[2], file = mkstemp(name), i;
	off_t offset = 4097;

	for (i = 0; i < SIZE; i++)
		data[i] = i % 251;
	CHECK(!pair(fds) && !pipe(tube) && file >= 0 && !unlink(name) && write(file, data, SIZE) == SIZE);
	/* With an offset the position stays. */
	CHECK(lseek(file, 5, SEEK_SET) == 5 && sendfile(fds[0], file, &offset, 3) == 3 && offset == 4100);
	CHECK(lseek(file, 0, SEEK_CUR) == 5 && recv(fds[1], got, 3, MSG_WAITALL) == 3 && !memcmp(got, data + 4097, 3));
	/* Without it moves. */
	CHECK(sendfile(fds[0], file, NULL, 7) == 7 && lseek(file, 0, SEEK_CUR) == 12);
	CHECK(recv(fds[1], got, 7, MSG_WAITALL) == 7 && !memcmp(got, data + 5, 7));
	/* As far as the file goes, in pieces; more than fits into the buffers, so it ends early. */
	offset = 1;
	CHECK(fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
	for (i = 1; i < SIZE;) {
		ssize_t sent = sendfile(fds[0], file, &offset, SIZE), have, part;

		CHECK((sent > 0 || (sent == -1 && errno == EAGAIN)));
		for (have = 0; have < sent; have += part, i += part) {
			part = recv(fds[1], got + i, SIZE - i, 0);
			CHECK(part > 0);
		}
		CHECK(offset == i);
	}
	CHECK(!memcmp(got + 1, data + 1, SIZE - 1) && sendfile(fds[0], file, &offset, 10) == 0);
	offset = -1;
	CHECK(sendfile(fds[0], file, &offset, 10) == -1 && errno == EINVAL);
	CHECK(sendfile(fds[0], fds[1], NULL, 10) == -1 && errno == EINVAL);
	CHECK(sendfile(fds[0], 999, NULL, 10) == -1 && errno == EBADF);
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0 && close(file) == 0 && close(tube[0]) == 0 && close(tube[1]) == 0);
	return 0;
}

static int vectors(void)
{
	int fds[2], value = 0;
	char a[3], b[4];
	struct iovec list[2] = { { "abc", 3 }, { "defg", 4 } }, into[2] = { { a, 3 }, { b, 4 } };
	struct msghdr out = { .msg_iov = list, .msg_iovlen = 2 }, in = { .msg_iov = into, .msg_iovlen = 2 };
	socklen_t len = sizeof(value);
	struct sockaddr_in peer;
	socklen_t size = sizeof(peer);

	CHECK(!pair(fds));
	CHECK(writev(fds[0], list, 2) == 7 && recv(fds[1], a, 3, MSG_PEEK) == 3 && readv(fds[1], into, 2) == 7);
	CHECK(!memcmp(a, "abc", 3) && !memcmp(b, "defg", 4));
	CHECK(sendmsg(fds[1], &out, 0) == 7 && recvmsg(fds[0], &in, 0) == 7 && !memcmp(b, "defg", 4));
	CHECK(sendto(fds[0], "xyz", 3, 0, NULL, 0) == 3 && recvfrom(fds[1], a, 3, 0, NULL, NULL) == 3 && a[0] == 'x');
	CHECK(getsockopt(fds[0], SOL_SOCKET, SO_ERROR, &value, &len) == 0 && value == 0);
	value = 1;
	CHECK(setsockopt(fds[0], IPPROTO_TCP, 1 /* TCP_NODELAY */, &value, sizeof(value)) == 0);
	CHECK(getpeername(fds[0], (struct sockaddr *)&peer, &size) == 0 && peer.sin_port == address.sin_port);
	CHECK(shutdown(fds[0], SHUT_WR) == 0 && read(fds[1], a, 3) == 0);
	CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
	return 0;
}

static int limits(void)
{
	struct rlimit before, few;
	int fd = dup(0), count;

	close(fd);
	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	few = before;
	few.rlim_cur = fd;
	count = open_numbers();
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	CHECK(socket(AF_INET, SOCK_STREAM, 0) == -1 && errno == EMFILE);
	few.rlim_cur = fd + 1;
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	/* The number there is. What else is needed there isn't: then it is an ordinary socket. */
	CHECK(socket(AF_INET, SOCK_STREAM, 0) == fd && close(fd) == 0);
	CHECK(!setrlimit(RLIMIT_NOFILE, &before) && open_numbers() == count);
	return 0;
}

static int closed;

static void *closes(void *fd)
{
	if (close(*(int *)fd) == 0)
		__atomic_add_fetch(&closed, 1, __ATOMIC_RELAXED);
	return NULL;
}

static int one_closer(void)
{
	int i, round;

	for (round = 0; round < 100; round++) {
		pthread_t threads[4];
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		closed = 0;
		for (i = 0; i < 4; i++)
			CHECK(!pthread_create(&threads[i], NULL, closes, &fd));
		for (i = 0; i < 4; i++)
			CHECK(!pthread_join(threads[i], NULL));
		CHECK(closed == 1);
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(void);
	} cases[] = {
		{ "lowest_number", lowest_number }, { "flags", flags },	    { "copies", copies },
		{ "guests", guests },
		{ "blind_close", blind_close },	    { "polls", polls },	    { "selects", selects },
		{ "sends_files", sends_files },	    { "vectors", vectors }, { "limits", limits },
		{ "one_closer", one_closer },
	};
	struct pollfd quiet = { .events = POLLIN };
	int failed = 0, before, first[2];
	size_t i;

	/* What was inherited is none of ours. */
	for (before = 3; before < 4096; before++)
		close(before);
	if (argc > 1 && !strcmp(argv[1], "kind")) {
		struct stat status;

		if (fstat(socket(AF_INET, SOCK_STREAM, 0), &status))
			return 1;
		return puts(S_ISSOCK(status.st_mode) ? "socket" : "rsocket") < 0;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (inet_pton(AF_INET, argc > 1 ? argv[1] : "127.0.0.1", &address.sin_addr) != 1)
		return 2;
	/* What the library opens with its first connection stays open, and what a thread first waits with. */
	quiet.fd = listener(0);
	if (quiet.fd < 0 || poll(&quiet, 1, 1) || close(quiet.fd) || pair(first) || close(first[0]) || close(first[1]))
		return 3;
	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		before = open_numbers();
		if (cases[i].run())
			failed = 1;
		else if (open_numbers() != before)
			failed = printf("FAIL %s: %d descriptors, %d before\n", cases[i].name, open_numbers(), before);
		else
			printf("ok   %s\n", cases[i].name);
	}
	return !!failed;
}
