/*
 * An ordinary program with sockets, which knows nothing of rsockets: it must behave the same without and with
 * librspreload. Usage: program [ADDRESS|kind]
 *
 * "kind" prints what a socket's number refers to: "socket", or "rsocket" if it is a placeholder. Otherwise prints one
 * line for each case, "ok" or "FAIL" with the failed line, and exits with status 1 if one failed.
 */
#include "program.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

struct sockaddr_in address = { .sin_family = AF_INET };

/*
 * Threads that wait for rsockets at the same time each use an eventfd, which is kept for the next wait. In automatic
 * mode one of them is the library's own, at times that this program can't know.
 */
static bool is_kept(const char *number)
{
	const char *mode = getenv("RS_MODE");
	char path[300], target[64] = "";

	snprintf(path, sizeof(path), "/proc/self/fd/%s", number);
	return mode && !strcmp(mode, "auto") && readlink(path, target, sizeof(target) - 1) > 0 &&
	       !strcmp(target, "anon_inode:[eventfd]");
}

int open_numbers(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;

	while (dir && (entry = readdir(dir)))
		count += !is_kept(entry->d_name);
	if (dir)
		closedir(dir);
	return count;
}

int listener(int flags)
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

void *connects(void *fd)
{
	connect(*(int *)fd, (struct sockaddr *)&address, sizeof(address));
	return NULL;
}

/* Two ends of a connection. */
int pair(int fds[2])
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

/* Data sent at one end arrives at the other. */
int works(int from, int to)
{
	char text[8] = "";

	return write(from, "hello", 5) == 5 && recv(to, text, 5, MSG_WAITALL) == 5 && !memcmp(text, "hello", 5);
}

static void rings(int signal)
{
	(void)signal;
}

/*
 * Some descriptors of the library stay open after the first connection, and after a thread's first sleep. A signal has
 * no effect before the call sleeps, so signals are repeated.
 */
static int warm_up(void)
{
	struct sigaction action = { .sa_handler = rings };
	struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, never = { { 0, 0 }, { 0, 0 } };
	struct pollfd quiet = { .fd = listener(0), .events = POLLIN };
	int fds[2];

	CHECK(quiet.fd >= 0 && !sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &often, NULL));
	CHECK(poll(&quiet, 1, -1) == -1 && errno == EINTR);
	CHECK(!setitimer(ITIMER_REAL, &never, NULL) && close(quiet.fd) == 0);
	CHECK(!pair(fds) && close(fds[0]) == 0 && close(fds[1]) == 0);
	return 0;
}

static void show_numbers(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	char link[256];
	ssize_t len;

	while (dir && (entry = readdir(dir))) {
		len = readlinkat(dirfd(dir), entry->d_name, link, sizeof(link));
		if (len > 0)
			printf("    %s %.*s\n", entry->d_name, (int)len, link);
	}
	if (dir)
		closedir(dir);
}

/* No descriptor is left open. The library's thread may close some with a delay. */
static int settles(const char *name, int before)
{
	int naps = 0;

	while (open_numbers() != before && naps++ < 2000)
		poll(NULL, 0, 1);
	if (open_numbers() == before)
		return 0;
	printf("FAIL %s: %d descriptors, %d before\n", name, open_numbers(), before);
	show_numbers();
	return 1;
}

static int kind(void)
{
	/* An rsocket has no owner. */
	return puts(fcntl(socket(AF_INET, SOCK_STREAM, 0), F_GETOWN) == -1 ? "rsocket" : "socket") < 0;
}

static int run_cases(void)
{
	static const struct {
		const char *name;
		int (*run)(void);
	} cases[] = {
		{ "lowest_number", lowest_number }, { "flags", flags },
		{ "port_in_use", port_in_use },
		{ "copies", copies },		    { "guests", guests },
		{ "blind_close", blind_close },	    { "limits", limits },
		{ "one_closer", one_closer },	    { "polls", polls },
		{ "selects", selects },		    { "epolls", epolls },
		{ "epoll_copies", epoll_copies },   { "sends_files", sends_files },
		{ "broken_pipe", broken_pipe },	    { "vectors", vectors },
		{ "nonblocking_by_ioctl", nonblocking_by_ioctl },
		{ "closed_unseen", closed_unseen }, { "closed_by_a_child", closed_by_a_child },
		{ "selects_by_table_size", selects_by_table_size },
		{ "epoll_of_the_parent", epoll_of_the_parent },
		{ "cancelled_accept", cancelled_accept },
	};
	int failed = 0, before;
	size_t i;

	if (warm_up())
		return 3;
	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		before = open_numbers();
		if (cases[i].run() || settles(cases[i].name, before))
			failed = 1;
		else
			printf("ok   %s\n", cases[i].name);
	}
	return failed;
}

/* The cases run in a child: a library that ends the process in the middle, by status 0 even, is noticed. */
int main(int argc, char **argv)
{
	bool *complete = mmap(NULL, sizeof(*complete), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd, status = 0;
	pid_t child;

	/* Inherited descriptors are not counted. */
	for (fd = 3; fd < 4096; fd++)
		close(fd);
	if (argc > 1 && !strcmp(argv[1], "kind"))
		return kind();
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (inet_pton(AF_INET, argc > 1 ? argv[1] : "127.0.0.1", &address.sin_addr) != 1 || complete == MAP_FAILED)
		return 2;
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		status = run_cases();
		*complete = true;
		return status;
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return 2;
	if (*complete && WIFEXITED(status))
		return WEXITSTATUS(status);
	printf("FAIL the cases ended early: status %#x\n", (unsigned)status);
	return 1;
}
