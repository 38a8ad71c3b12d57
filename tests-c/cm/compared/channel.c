/* Event channels: the descriptor, polling, non-blocking and interrupted waits. */
#define _GNU_SOURCE
#include "common.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/time.h>

/* Returns whether there are channels: there are none on a kernel with an unknown ABI. */
static bool descriptor(void)
{
	struct rdma_event_channel *first, *second;
	struct stat status;
	int before;

	topic("descriptor");
	first = CALL_PTR(rdma_create_event_channel());
	before = open_fds();
	second = CALL_PTR(rdma_create_event_channel());
	if (!first || !second)
		return false;
	obs("descriptors for a channel %d", open_fds() - before);
	CHECK(first != second && first->fd != second->fd);
	CHECK(fcntl(first->fd, F_GETFD) == FD_CLOEXEC);
	obs("access mode read+write %d", (fcntl(first->fd, F_GETFL) & O_ACCMODE) == O_RDWR);
	obs("nonblocking %d", !!(fcntl(first->fd, F_GETFL) & O_NONBLOCK));
	if (!fstat(first->fd, &status))
		obs("character device %d", S_ISCHR(status.st_mode));
	CHECK(!channel_ready(first));
	rdma_destroy_event_channel(first);
	rdma_destroy_event_channel(second);
	obs("descriptors left %d", open_fds() - before);
	return true;
}

static void nonblocking(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event = (void *)&channel;
	struct rdma_cm_id *id = NULL;
	union address to = local_addr(AF_INET, 7001);
	struct pollfd entry = { .fd = channel->fd, .events = POLLIN };

	topic("non-blocking");
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	CALL(rdma_get_cm_event(channel, &event));
	CHECK(event == (void *)&channel);
	CALL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	id_name(id, "id");
	CALL(rdma_get_cm_event(channel, &event));
	CALL(rdma_resolve_addr(id, NULL, &to.sa, 2000));
	CALL(poll(&entry, 1, -1));
	obs("revents POLLIN %d", entry.revents == POLLIN);
	take_event("id", channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CALL(rdma_get_cm_event(channel, &event));
	id_forget(id);
	CALL(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void with_epoll(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct epoll_event wanted = { .events = EPOLLIN }, got;
	int poller = epoll_create1(EPOLL_CLOEXEC);
	struct rdma_cm_id *id = NULL;
	union address to = local_addr(AF_INET, 7001);

	topic("epoll");
	CALL(epoll_ctl(poller, EPOLL_CTL_ADD, channel->fd, &wanted));
	CALL(epoll_wait(poller, &got, 1, 0));
	rdma_create_id(channel, &id, NULL, RDMA_PS_TCP);
	id_name(id, "id");
	CALL(rdma_resolve_addr(id, NULL, &to.sa, 2000));
	CALL(epoll_wait(poller, &got, 1, -1));
	take_event("id", channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CALL(epoll_wait(poller, &got, 1, 0));
	id_destroy(id);
	close(poller);
	rdma_destroy_event_channel(channel);
}

static void on_signal(int number)
{
	(void)number;
}

/* The timer keeps firing, so a signal that comes before the wait is harmless. */
static void interrupted(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sigaction action = { .sa_handler = on_signal };
	struct itimerval every = { { 0, 20000 }, { 0, 20000 } }, never = { { 0, 0 }, { 0, 0 } };
	struct rdma_cm_event *event = NULL;

	topic("interrupted");
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
	CALL(rdma_get_cm_event(channel, &event));
	setitimer(ITIMER_REAL, &never, NULL);
	rdma_destroy_event_channel(channel);
}

static void wrong_descriptor(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event = NULL;
	struct rdma_cm_id *id = NULL;
	int good = channel->fd;

	topic("wrong descriptor");
	channel->fd = -1;
	CALL(rdma_get_cm_event(channel, &event));
	CALL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	channel->fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	CALL(rdma_get_cm_event(channel, &event));
	CALL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	close(channel->fd);
	channel->fd = good;
	rdma_destroy_event_channel(channel);
}

static void user_copy(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_event_channel copy = *channel;
	struct rdma_cm_id *id = NULL;
	union address to = local_addr(AF_INET, 7001);

	topic("events read through a copy of the structure");
	CALL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	id_name(id, "id");
	CALL(rdma_resolve_addr(id, NULL, &to.sa, 2000));
	take_event("id", &copy, RDMA_CM_EVENT_ADDR_RESOLVED);
	id_destroy(id);
	rdma_destroy_event_channel(channel);
}

static void null_event(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	topic("null event");
	CALL(rdma_get_cm_event(channel, NULL));
	CALL(rdma_ack_cm_event(NULL));
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	if (!descriptor())
		return finish();
	nonblocking();
	with_epoll();
	interrupted();
	wrong_descriptor();
	user_copy();
	null_event();
	return finish();
}
