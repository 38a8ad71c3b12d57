/*
 * An id that is destroyed because of its event while the call that caused the event has not returned: `command`
 * holds the call back after the command of the kernel. The call must not use the id, whose memory is overwritten. Run on ours
 * only: the reference's join uses it.
 */
#include "commands.h"
#include "rscommon.h"

#include <malloc.h>
#include <stdatomic.h>
#include <sys/syscall.h>

/* The command that is held back, until this function has ended in a thread of its own. */
static _Atomic uint32_t held_back;
static void *(*meanwhile)(void *);

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;

/* Overwrites what is freed. */
void free(void *memory)
{
	extern void __libc_free(void *);

	if (memory)
		memset(memory, 0x55, malloc_usable_size(memory));
	__libc_free(memory);
}

static ssize_t command(int fd, const void *data, size_t len)
{
	ssize_t ret = to_kernel(fd, data, len);
	struct ucma_abi_cmd_hdr header;
	pthread_t thread;

	if (!held_back || len < sizeof(header))
		return ret;
	memcpy(&header, data, sizeof(header));
	if (header.cmd != held_back)
		return ret;
	held_back = 0;
	EXPECT(ret == (ssize_t)len);
	EXPECT(!pthread_create(&thread, NULL, meanwhile, NULL) && !pthread_join(thread, NULL));
	return ret;
}

static void create(enum rdma_port_space ps)
{
	union address address = local_addr(AF_INET, 0);

	EXPECT((channel = rdma_create_event_channel()) && !rdma_create_id(channel, &id, NULL, ps));
	EXPECT(!rdma_bind_addr(id, &address.sa));
}

static void hold_back(uint32_t command, void *(*until)(void *))
{
	meanwhile = until;
	held_back = command;
}

/* ---- multicast -------------------------------------------------------------------------------------- */

static union address group(void)
{
	return make_addr(AF_INET, "239.1.1.9", 0);
}

static void acknowledge_join(void)
{
	struct rdma_cm_event *event;

	EXPECT(!rdma_get_cm_event(channel, &event) && event->event == RDMA_CM_EVENT_MULTICAST_JOIN);
	EXPECT(!rdma_ack_cm_event(event));
}

static void *joined_and_destroyed(void *unused)
{
	acknowledge_join();
	EXPECT(!rdma_destroy_id(id));
	return unused;
}

static void destroyed_during_join(void)
{
	union address address = group();

	create(RDMA_PS_UDP);
	hold_back(UCMA_CMD_JOIN_MCAST, joined_and_destroyed);
	EXPECT(!rdma_join_multicast(id, &address.sa, NULL));
	rdma_destroy_event_channel(channel);
}

/* The membership has its number as soon as there is an event. */
static void *joined_and_left(void *unused)
{
	union address address = group();

	acknowledge_join();
	EXPECT(!rdma_leave_multicast(id, &address.sa));
	return unused;
}

static void left_during_join(void)
{
	union address address = group();

	create(RDMA_PS_UDP);
	hold_back(UCMA_CMD_JOIN_MCAST, joined_and_left);
	EXPECT(!rdma_join_multicast(id, &address.sa, NULL));
	EXPECT_ERROR(rdma_leave_multicast(id, &address.sa), EADDRNOTAVAIL);
	EXPECT(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* ---- listening ----------------------------------------------------------------------------------------- */

/* A client's request is rejected, and no other one is wanted. */
static void *requested_and_destroyed(void *unused)
{
	union address to = local_addr(AF_INET, ntohs(rdma_get_src_port(id)));
	int client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	struct rdma_cm_event *event;
	struct rdma_cm_id *request;

	EXPECT(client >= 0);
	EXPECT_ERROR(rconnect(client, &to.sa, sizeof(to.in)), EINPROGRESS);
	EXPECT(!rdma_get_cm_event(channel, &event) && event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	request = event->id;
	EXPECT(!rdma_reject(request, NULL, 0) && !rdma_ack_cm_event(event));
	EXPECT(!rdma_destroy_id(request) && !rdma_destroy_id(id));
	EXPECT(poll_gone(client) & POLLERR && !rclose(client));
	return unused;
}

static void destroyed_during_listen(void)
{
	create(RDMA_PS_TCP);
	hold_back(UCMA_CMD_LISTEN, requested_and_destroyed);
	EXPECT(!rdma_listen(id, 1));
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	/* iWARP has no multicast. */
	CASE_IF(!on_siw(), destroyed_during_join);
	CASE_IF(!on_siw(), left_during_join);
	CASE(destroyed_during_listen);
	return finish();
}
