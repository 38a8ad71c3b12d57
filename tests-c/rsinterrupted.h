/*
 * For programs that interrupt calls: whether the process and its rsockets are in order afterwards.
 */
#ifndef TESTS_C_RSINTERRUPTED_H
#define TESTS_C_RSINTERRUPTED_H

#include "rsblocked.h"

static unsigned int seed = 1;

/* Calls other than the interrupted one, which together take every lock of the process. */
static void all_is_well(void)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct rspair other;
	int count = 0;
	struct ibv_context **list;
	pid_t child = fork();

	if (child == 0)
		_exit(CHILD_DONE);
	EXPECT(child_done(child));
	list = rdma_get_devices(&count);
	EXPECT(list && count > 0);
	rdma_free_devices(list);
	channel = rdma_create_event_channel();
	EXPECT(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) && !rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	EXPECT(rs_pair(&other, AF_INET));
	rs_pair_close(&other);
}

static union address own_name;

static int datagram_socket(void)
{
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	socklen_t len = sizeof(own_name);

	own_name = local_addr(AF_INET, 0);
	EXPECT(fd >= 0 && !rbind(fd, &own_name.sa, addr_len(&own_name)) && !rgetsockname(fd, &own_name.sa, &len));
	return fd;
}

static void *send_datagram(void *fd)
{
	char byte;

	rsendto(*(int *)fd, "x", 1, MSG_DONTWAIT, &own_name.sa, addr_len(&own_name));
	rrecv(*(int *)fd, &byte, 1, MSG_DONTWAIT);
	return NULL;
}

/* Whatever the cancelled thread left on its way is read first. */
static bool pair_works(void)
{
	struct pollfd entry = { .fd = pair.server, .events = POLLIN };
	char byte = 0;

	while (rpoll(&entry, 1, 0) == 1)
		rrecv(pair.server, data, sizeof(data), MSG_DONTWAIT);
	if (rsend(pair.client, "z", 1, 0) != 1)
		return false;
	while (byte != 'z')
		if (rrecv(pair.server, &byte, 1, 0) != 1)
			return false;
	return true;
}

static void *list_devices(void *argument)
{
	struct ibv_context **list = rdma_get_devices(NULL);

	(void)argument;
	if (list)
		rdma_free_devices(list);
	return NULL;
}

#endif
