/*
 * A listener that is shut down while a request waits. Destroying the request's id, by which the kernel rejects it, blocks in
 * `command`. The listener's other calls wait for it.
 */
#include "commands.h"
#include "rscommon.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>

static union address to;
static int listener, first, waiting;

/* ---- the commands ------------------------------------------------------------------------------------ */

/* Connection requests that the library has read, and rejects that have begun and may go on. */
static sem_t requests, rejects, may_go_on;
static _Atomic bool blocks, moving_fails;
static _Atomic uint32_t last_request;

static void await_semaphore(sem_t *semaphore)
{
	while (sem_wait(semaphore))
		EXPECT(errno == EINTR);
}

static ssize_t command(int fd, const void *data, size_t len)
{
	union {
		struct ucma_abi_get_event event;
		struct ucma_abi_destroy_id destroy;
	} message = { .event = { .cmd = 0 } };
	ssize_t ret;

	if (moving_fails && len >= sizeof(message.event) && ((const struct ucma_abi_get_event *)data)->cmd == UCMA_CMD_MIGRATE_ID) {
		errno = EIO;
		return -1;
	}
	if (blocks && len >= sizeof(message.event)) {
		memcpy(&message, data, len < sizeof(message) ? len : sizeof(message));
		if (message.destroy.cmd == UCMA_CMD_DESTROY_ID && message.destroy.id == last_request) {
			sem_post(&rejects);
			await_semaphore(&may_go_on);
		}
	}
	ret = to_kernel(fd, data, len);
	if (ret == (ssize_t)len && message.event.cmd == UCMA_CMD_GET_EVENT) {
		const struct ucma_abi_event_resp *answer = (const void *)(uintptr_t)message.event.response;

		if (answer->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			last_request = answer->id;
			sem_post(&requests);
		}
	}
	return ret;
}

/* ---- a request that waits ------------------------------------------------------------------------------ */

static void *shut_down(void *unused)
{
	EXPECT(!rshutdown(listener, SHUT_RD));
	return unused;
}

/* The backlog is used up when the request comes. Its reject blocks, in a thread. */
static void reject_blocks(pthread_t *thread)
{
	EXPECT(!sem_init(&requests, 0, 0) && !sem_init(&rejects, 0, 0) && !sem_init(&may_go_on, 0, 0));
	EXPECT((listener = rs_listener(AF_INET, &to, NULL)) >= 0 && !rlisten(listener, 0));
	EXPECT((first = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0 && !rconnect(first, &to.sa, addr_len(&to)));
	EXPECT(poll_wait(listener, POLLIN) == POLLIN);
	blocks = true;
	EXPECT((waiting = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) >= 0);
	EXPECT_ERROR(rconnect(waiting, &to.sa, addr_len(&to)), EINPROGRESS);
	await_semaphore(&requests);
	EXPECT(!pthread_create(thread, NULL, shut_down, NULL));
	await_semaphore(&rejects);
}

static void reject_goes_on(pthread_t thread)
{
	blocks = false;
	EXPECT(!sem_post(&may_go_on));
	EXPECT(!pthread_join(thread, NULL));
	EXPECT(poll_gone(waiting) & POLLERR && !strcmp(so_error(waiting), "ECONNREFUSED"));
	EXPECT(!rclose(first) && !rclose(waiting));
}

static volatile pid_t closer;

static void *close_listener(void *unused)
{
	closer = gettid();
	EXPECT(!rclose(listener));
	return unused;
}

static void close_waits(void)
{
	pthread_t thread, other;

	reject_blocks(&thread);
	EXPECT(!pthread_create(&other, NULL, close_listener, NULL));
	EXPECT(await_sleep(&closer));
	EXPECT(fcntl(listener, F_GETFD) >= 0);
	reject_goes_on(thread);
	EXPECT(!pthread_join(other, NULL));
	EXPECT_ERROR(fcntl(listener, F_GETFD), EBADF);
}

static sem_t handled;

static void call_in_handler(int signal)
{
	union address name;
	socklen_t len = sizeof(name);

	(void)signal;
	EXPECT_ERROR(rgetsockname(listener, &name.sa, &len), EAGAIN);
	EXPECT_ERROR(rlisten(listener, 1), EAGAIN);
	EXPECT_ERROR(rclose(listener), EAGAIN);
	sem_post(&handled);
}

/* The calls would wait for the one that they have interrupted. */
static void a_handler_interrupts(void)
{
	struct sigaction action = { .sa_handler = call_in_handler };
	pthread_t thread;

	EXPECT(!sem_init(&handled, 0, 0) && !sigaction(SIGUSR1, &action, NULL));
	reject_blocks(&thread);
	EXPECT(!pthread_kill(thread, SIGUSR1));
	await_semaphore(&handled);
	reject_goes_on(thread);
	EXPECT(!rclose(listener));
}

/* ---- a request whose id cannot get a channel of its own --------------------------------------------------- */

static void connect_once(void)
{
	EXPECT((first = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0 && !rconnect(first, &to.sa, addr_len(&to)));
	EXPECT(!rclose(raccept(listener, NULL, NULL)) && !rclose(first));
}

static void moving_the_request_fails(void)
{
	int before;

	EXPECT((listener = rs_listener(AF_INET, &to, NULL)) >= 0);
	connect_once();
	before = open_fds();
	moving_fails = true;
	EXPECT((first = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	EXPECT_ERROR(rconnect(first, &to.sa, addr_len(&to)), ECONNREFUSED);
	moving_fails = false;
	EXPECT(!rclose(first));
	await_fds(before);
	connect_once();
	EXPECT(!rclose(listener));
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(close_waits);
	CASE(a_handler_interrupts);
	CASE(moving_the_request_fails);
	return finish();
}
