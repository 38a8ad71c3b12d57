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

/* From none to enough descriptors: with each number the connection is complete, or a call fails. */
static void descriptors(void)
{
	bool whole = false;
	int before, refused = 0;

	listener = listen_far(&target);
	whole_connection();
	fill_gaps();
	before = open_fds();
	for (int more = 0; !whole; more++) {
		int fd, error = 0;

		limit(RLIMIT_NOFILE, (rlim_t)(before + more));
		fd = rsocket(AF_INET, SOCK_STREAM, 0);
		if (fd < 0) {
			error = errno;
		} else if (rconnect(fd, &target.sa, sizeof(target.in))) {
			error = errno;
		}
		limit(RLIMIT_NOFILE, 1024);
		if (error && error != EMFILE && error != ECONNREFUSED)
			printf("     with %d more: %s\n", more, errno_name(error));
		EXPECT(!error || error == EMFILE || error == ECONNREFUSED);
		EXPECT(more > 0 || error == EMFILE);
		refused += error != 0;
		if (!error) {
			int server = raccept(listener, NULL, NULL);

			EXPECT(server >= 0 && !rclose(server));
			whole = true;
		}
		if (fd >= 0)
			EXPECT(!rclose(fd));
		await_fds(before);
		whole_connection();
	}
	EXPECT(refused > 1 && !rclose(listener));
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
