/* No descriptors and no locked memory: the calls fail, and succeed when there are some again. */
#include "faults.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static int listener;
static union address target;

static void limit(int resource, rlim_t value)
{
	struct rlimit now;

	EXPECT(!getrlimit(resource, &now));
	now.rlim_cur = value;
	EXPECT(!setrlimit(resource, &now));
}

/* A complete connection: afterwards, the descriptors that the library keeps are open. */
static void whole_connection(void)
{
	char bytes[5];
	int client = connect_to(&target), server;

	EXPECT((server = raccept(listener, NULL, NULL)) >= 0);
	EXPECT(rsend(client, "hello", 5, 0) == 5);
	EXPECT(rrecv(server, bytes, 5, MSG_WAITALL) == 5 && !memcmp(bytes, "hello", 5));
	EXPECT(!rclose(client) && !rclose(server));
}

/* Opens files until the numbers have no gaps: the second thread's are above closed ones. */
static void fill_gaps(void)
{
	int fd;

	do
		EXPECT((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0);
	while (fd < open_fds() - 1);
	EXPECT(!close(fd));
}

/* Waits, without a descriptor, until the attempt to connect has ended. Returns whether it has, and its error. */
static bool attempt_ended(int fd, bool for_ever, int *error)
{
	const struct timespec pause = { .tv_nsec = 10000000 };
	struct pollfd writable = { .fd = fd, .events = POLLOUT };
	socklen_t len = sizeof(*error);
	int ready;

	for (int pauses = 0; (ready = rpoll(&writable, 1, 0)) == 0; pauses++) {
		if (!for_ever && pauses == 30)
			return false;
		nanosleep(&pause, NULL);
	}
	EXPECT(ready == 1 && !rgetsockopt(fd, SOL_SOCKET, SO_ERROR, error, &len));
	return true;
}

/*
 * From none to enough descriptors: with each number the connection is complete, or a call fails, or the connection is complete
 * when there are descriptors.
 */
static void descriptors(void)
{
	bool whole = false;
	int before, failed = 0, late = 0;

	listener = listen_far(&target);
	whole_connection();
	fill_gaps();
	before = open_fds();
	for (int more = 0; !whole; more++) {
		int fd, error = 0;

		limit(RLIMIT_NOFILE, (rlim_t)(before + more));
		fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (fd < 0 || (rconnect(fd, &target.sa, sizeof(target.in)) && errno != EINPROGRESS)) {
			error = errno;
			limit(RLIMIT_NOFILE, 1024);
		} else {
			whole = attempt_ended(fd, false, &error) && !error;
			limit(RLIMIT_NOFILE, 1024);
			if (!whole && !error) {
				EXPECT(attempt_ended(fd, true, &error) && !error);
				late++;
			}
		}
		EXPECT(!error || error == EMFILE);
		EXPECT(more > 0 || error == EMFILE);
		failed += error != 0;
		if (!error) {
			int server = raccept(listener, NULL, NULL);

			EXPECT(server >= 0 && !rclose(server));
		}
		if (fd >= 0)
			EXPECT(!rclose(fd));
		await_fds(before);
		whole_connection();
	}
	EXPECT(failed > 0 && late > 0 && !rclose(listener));
}

/* Root may lock any amount: the limit applies without that privilege. */
static void locked_memory(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];
	int fd, before;

	/* Capabilities belong to threads, so drop them before the library starts one. */
	EXPECT(!syscall(SYS_capget, &header, data));
	data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
	EXPECT(!syscall(SYS_capset, &header, data));
	listener = listen_far(&target);
	whole_connection();
	before = open_fds();
	/* An idle end needs three pages, without which the client has no memory; with more, it may be the listener. */
	for (rlim_t pages = 0; pages < 3; pages++) {
		limit(RLIMIT_MEMLOCK, pages * 4096);
		EXPECT((fd = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
		/* The errors of setrlimit(2) for a limit of 0 and for an exceeded limit. siw has its own accounting. */
		if (pages == 0 && !on_siw())
			EXPECT_ERROR(rconnect(fd, &target.sa, sizeof(target.in)), EPERM);
		else
			EXPECT_ERROR(rconnect(fd, &target.sa, sizeof(target.in)), ENOMEM);
		EXPECT(!rclose(fd));
		await_fds(before);
	}
	limit(RLIMIT_MEMLOCK, RLIM_INFINITY);
	whole_connection();
	await_fds(before);
	EXPECT(!rclose(listener));
}

void limit_cases(void)
{
	FAULT(descriptors);
	FAULT(locked_memory);
}
