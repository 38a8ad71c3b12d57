/*
 * A search for a service (rdma_getaddrinfo with RAI_SA) that a signal, a lack of descriptors or pthread_cancel ends: the
 * errno, and what is left. The subnet administrator is played by `command`, so that kernels without the command
 * will do. Only for InfiniBand, whose ports are asked.
 */
#include "commands.h"

#include <malloc.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { FLAG_SA = 0x10, RESOLVE_IB_SERVICE = 23 };

/* A search has begun, and waits for its event until a signal or a cancellation. */
static sem_t begun;
static bool answers_late;

static ssize_t command(int fd, const void *data, size_t len)
{
	struct ucma_abi_cmd_hdr header = { .cmd = UINT32_MAX };

	if (answers_late && len >= sizeof(header))
		memcpy(&header, data, sizeof(header));
	if (header.cmd == RESOLVE_IB_SERVICE)
		return (ssize_t)len;
	if (header.cmd == UCMA_CMD_GET_EVENT) {
		sem_post(&begun);
		return pause();
	}
	return to_kernel(fd, data, len);
}

static int search(void)
{
	struct rdma_addrinfo hints = { .ai_flags = FLAG_SA, .ai_port_space = RDMA_PS_TCP }, *list = NULL;
	int ret = rdma_getaddrinfo(NULL, "0x1000000000000099", &hints, &list), error = errno;

	EXPECT(ret == -1 && !list);
	return error;
}

static void *search_in_thread(void *unused)
{
	(void)unused;
	return (void *)(long)search();
}

/* Returns the thread that waits for the event. */
static pthread_t waiting(void)
{
	pthread_t thread;

	EXPECT(!pthread_create(&thread, NULL, search_in_thread, NULL));
	while (sem_wait(&begun))
		EXPECT(errno == EINTR);
	return thread;
}

static void do_nothing(int signal) { (void)signal; }

/* Any search ends without a trace; the first one opens what stays open. */
static void prepare(void)
{
	EXPECT(search() == ENOENT);
	EXPECT(!sem_init(&begun, 0, 0));
	answers_late = true;
}

static void signal_ends_the_search(void)
{
	struct sigaction action = { .sa_handler = do_nothing };
	pthread_t thread;
	void *error;
	int before;

	prepare();
	before = open_fds();
	EXPECT(!sigaction(SIGUSR1, &action, NULL));
	thread = waiting();
	/* In pause or before it. */
	while (pthread_tryjoin_np(thread, &error))
		EXPECT(!pthread_kill(thread, SIGUSR1) && !sched_yield());
	EXPECT((int)(long)error == EINTR && open_fds() == before);
}

enum { LIMIT = 64 };

/*
 * Searches with so many descriptors, and one more after each search: EMFILE, until they suffice for a search that finds
 * nothing.
 */
static void search_with_few_descriptors(int left)
{
	int fds[LIMIT], count = 0, error = EMFILE;
	struct rlimit limit;

	EXPECT(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = LIMIT;
	EXPECT(!setrlimit(RLIMIT_NOFILE, &limit));
	while (count < LIMIT && (fds[count] = dup(0)) >= 0)
		count++;
	EXPECT(count > left && count < LIMIT);
	while (left-- > 0)
		EXPECT(!close(fds[--count]));
	while (error == EMFILE && count > 0) {
		error = search();
		EXPECT(!close(fds[--count]));
	}
	EXPECT(error == ENOENT);
	while (count > 0)
		EXPECT(!close(fds[--count]));
}

static void no_descriptors(void)
{
	struct rdma_addrinfo *list;

	/* There are devices, and none is open. */
	EXPECT(!rdma_getaddrinfo("127.0.0.1", "1", NULL, &list));
	rdma_freeaddrinfo(list);
	search_with_few_descriptors(0);
}

/* The process has made no call yet: libibverbs, too, is initialized by the search. */
static void no_descriptors_for_the_first_call(void)
{
	enum { ENOUGH = 12 };
	pid_t child;

	for (int left = 0; left < ENOUGH; left++) {
		child = fork();
		EXPECT(child >= 0);
		if (child == 0) {
			alarm(hang_seconds());
			search_with_few_descriptors(left);
			_exit(CHILD_DONE);
		}
		EXPECT(child_done(child));
	}
}

/* Neither descriptors nor memory are left behind; the first rounds allocate what stays. */
static void cancellation_leaves_nothing(void)
{
	enum { FIRST = 3, ROUNDS = 10 };
	size_t memory = 0;
	pthread_t thread;
	void *result;
	int before;

	prepare();
	before = open_fds();
	for (int round = 0; round < ROUNDS; round++) {
		thread = waiting();
		EXPECT(!pthread_cancel(thread) && !pthread_join(thread, &result));
		EXPECT(result == PTHREAD_CANCELED && open_fds() == before);
		if (round == FIRST)
			memory = mallinfo2().uordblks;
	}
	EXPECT(mallinfo2().uordblks == memory);
	answers_late = false;
	EXPECT(search() == ENOENT);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(signal_ends_the_search);
	CASE(no_descriptors);
	CASE(no_descriptors_for_the_first_call);
	CASE(cancellation_leaves_nothing);
	return finish();
}
